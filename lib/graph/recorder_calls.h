// Records the calls that `fn` makes of its recorder, to say where a capture broke.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace graphcache {

// A kernel's name as written in its source.
std::string readable(const char* mangled);

class RecorderCalls {
 public:
  // begin() is called before a recorder call, end() when its CUDA call has returned.
  void begin(const char* name, const void* kernel) {
    if (error_ == cudaSuccess) before_ = now_;
    now_ = {name, kernel};
    error_ = kOpen;
    ++count_;
  }
  void end(cudaError_t error = cudaSuccess) { error_ = error; }
  bool any() const { return count_ != 0; }

  // "rec.launch of a", the last call that has begun.
  std::string last() const { return text_of(now_); }

  // Where the capture broke: "between rec.launch of a and rec.memcpy (calls 3 and 4 of the recorder)", or "in
  // rec.memcpy (call 4 of the recorder)" if that call has failed with the error that broke it.
  std::string place(cudaError_t error = cudaSuccess) const;

 private:
  struct Call {
    const char* name = nullptr;
    const void* kernel = nullptr;  // The host symbol of a launched kernel.
  };
  static std::string text_of(const Call& call);

  Call before_, now_;
  // The result of the last call: kOpen until it has returned, and if something else has broken the capture.
  static constexpr cudaError_t kOpen = cudaErrorStreamCaptureInvalidated;
  cudaError_t error_ = cudaSuccess;
  int count_ = 0;
};

}  // namespace graphcache
