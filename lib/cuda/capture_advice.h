// What to do about a call that a capture forbids, or that breaks one.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace graphcache {

// By the error alone; empty if it is none of a capture's. A text begins with the end of the sentence before it.
const char* advice(cudaError_t error);

// By the call, too. `in_other_thread`: another thread than that of the capture made it.
const char* advice(std::string_view call, cudaError_t error, bool in_other_thread);

}  // namespace graphcache
