#include "graphcache/graph_info.h"

namespace graphcache {

const char* to_string(NodeDifference) { return "none"; }
GraphDifference difference(const GraphInfo&, const GraphInfo&) { return {}; }

}  // namespace graphcache
