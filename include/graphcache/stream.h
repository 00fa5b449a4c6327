// StreamArg: the stream of a run, as an argument.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

namespace graphcache {
namespace detail {
// The default stream of this translation unit. It has internal linkage, because units of one program may differ.
static inline cudaStream_t default_stream_of_unit() {
#ifdef __CUDART_API_PER_THREAD_DEFAULT_STREAM
  return cudaStreamPerThread;
#else
  return nullptr;
#endif
}
}  // namespace detail

// Converts from cudaStream_t, and from what converts to it. A null stream is the default stream of the code that passes
// it, as in a launch: cudaStreamPerThread where that code is compiled with --default-stream per-thread (or with
// CUDA_API_PER_THREAD_DEFAULT_STREAM), the legacy stream elsewhere.
class StreamArg {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): streams are passed as to CUDA's own functions.
  StreamArg(cudaStream_t stream, cudaStream_t if_null = detail::default_stream_of_unit())
      : stream_(stream != nullptr ? stream : if_null) {}
  // A StreamArg is copied, since it may be passed on in an inline function, which units of both kinds share.
  template <class S, std::enable_if_t<std::is_convertible_v<S&&, cudaStream_t> && !std::is_pointer_v<S> &&
                                          !std::is_base_of_v<StreamArg, std::decay_t<S>>,
                                      int> = 0>
  // NOLINTNEXTLINE(google-explicit-constructor)
  StreamArg(S&& stream, cudaStream_t if_null = detail::default_stream_of_unit())
      : StreamArg(static_cast<cudaStream_t>(stream), if_null) {}
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_;
};

}  // namespace graphcache
