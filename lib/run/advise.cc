#include "run/impl.h"

namespace graphcache {

const char* to_string(FindingKind) { return "sizes"; }
std::vector<Finding> Cache::Impl::advise() { return {}; }

}  // namespace graphcache
