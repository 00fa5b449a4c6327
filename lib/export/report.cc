#include "graphcache_export/report.h"
namespace graphcache {
std::string report_html(const Cache&, const ReportOptions&) { return ""; }
}  // namespace graphcache
