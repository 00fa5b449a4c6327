// Linked with a demo that runs on the CUDA runtime.
#include "support.h"

namespace demo {

const char* const kRuntime = "cuda";

std::optional<std::uint64_t> runtime_calls() { return std::nullopt; }

}  // namespace demo
