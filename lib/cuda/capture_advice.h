// Advice about a call that a capture forbids or that breaks a capture.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace graphcache {

// Advice by the error alone; empty unless it is an error of captures. The text continues a sentence.
const char* advice(cudaError_t error);

// Advice by the call and the error. `in_other_thread`: the call was made by another thread than the capturing one.
const char* advice(std::string_view call, cudaError_t error, bool in_other_thread);

}  // namespace graphcache
