// Linked with a demo that runs on hostrt.
#include "graphcache/hostrt.h"
#include "support.h"

namespace demo {

const char* const kRuntime = "hostrt";

std::optional<std::uint64_t> runtime_calls() { return graphcache::hostrt::calls(); }

}  // namespace demo
