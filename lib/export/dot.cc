#include "graphcache_export/dot.h"
namespace graphcache {
std::string to_dot(const GraphInfo&) { return ""; }
std::string to_dot(const GraphInfo&, const GraphInfo&) { return ""; }
}  // namespace graphcache
