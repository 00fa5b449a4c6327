#include "graph/recorder_calls.h"

#include <absl/strings/str_cat.h>
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "cuda/errors.h"

namespace graphcache {

std::string readable(const char* mangled) {
  if (std::strncmp(mangled, "_Z", 2) != 0) return mangled;
  const std::unique_ptr<char, decltype(&std::free)> plain(abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr),
                                                          &std::free);
  return plain != nullptr ? plain.get() : mangled;
}

std::string RecorderCalls::text_of(const Call& call) {
  if (call.kernel == nullptr) return call.name;
  const LastErrorGuard last_error;
  const char* mangled = nullptr;
  const bool is_known = cudaFuncGetName(&mangled, call.kernel) == cudaSuccess && mangled != nullptr;
  return absl::StrCat(call.name, " of ", is_known ? readable(mangled) : "a kernel");
}

std::string RecorderCalls::place(cudaError_t error) const {
  if (count_ == 0) return "in fn, which made no call of its recorder";
  const std::string now = text_of(now_);
  if (error_ == error && error != cudaSuccess) return absl::StrCat("in ", now, " (call ", count_, " of the recorder)");
  if (error_ != kOpen) return absl::StrCat("after ", now, ", the last of ", count_, " calls of the recorder");
  if (before_.name == nullptr) return absl::StrCat("before ", now, ", the first call of the recorder");
  return absl::StrCat("between ", text_of(before_), " and ", now, " (calls ", count_ - 1, " and ", count_,
                      " of the recorder)");
}

}  // namespace graphcache
