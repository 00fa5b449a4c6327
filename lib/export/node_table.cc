#include "graphcache_export/node_table.h"
namespace graphcache {
std::string node_table(const Cache&) { return ""; }
}  // namespace graphcache
