#include "run/impl.h"

namespace graphcache {

const char* to_string(FindingKind) { return "sizes"; }
std::vector<Finding> Cache::Impl::advise() { return {}; }
std::string Cache::Impl::manifest(std::size_t) const { return ""; }

}  // namespace graphcache
