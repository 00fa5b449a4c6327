// The names that a program calls if it is compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM, as by nvcc's
// --default-stream per-thread. The headers then rename each function that takes a stream to NAME_ptsz. There, a null
// stream is cudaStreamPerThread, and every other handle has its own meaning. The synchronous copies and sets, which
// become NAME_ptds, are in copies.cc.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <tuple>

#include "state.h"

namespace graphcache::hostrt {
namespace {

template <typename Argument>
Argument own(Argument argument) {
  return argument;
}

cudaStream_t own(cudaStream_t stream) { return stream != nullptr ? stream : cudaStreamPerThread; }

class OwnConfig {
 public:
  explicit OwnConfig(const cudaLaunchConfig_t* config) : is_null_(config == nullptr) {
    if (is_null_) return;
    config_ = *config;
    config_.stream = own(config->stream);
  }
  // NOLINTNEXTLINE(google-explicit-constructor): passed as the argument that it stands for
  operator const cudaLaunchConfig_t*() const { return is_null_ ? nullptr : &config_; }

 private:
  bool is_null_;
  cudaLaunchConfig_t config_ = {};
};

OwnConfig own(const cudaLaunchConfig_t* config) { return OwnConfig(config); }

unsigned long long own_functions(unsigned long long flags) {
  if (flags != cudaEnableDefault) return flags;
  return cudaEnablePerThreadDefaultStream;
}

template <typename Function>
struct Signature;
template <typename Result, typename... Arguments>
struct Signature<Result(Arguments...)> {
  template <std::size_t kIndex>
  using Argument = std::tuple_element_t<kIndex, std::tuple<Arguments...>>;
};

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

// The parameters, and the arguments of the call, of a function with so many.
#define PARAMETER(name, index) Signature<decltype(name)>::Argument<index> a##index
#define PARAMETERS_1(name) PARAMETER(name, 0)
#define PARAMETERS_2(name) PARAMETERS_1(name), PARAMETER(name, 1)
#define PARAMETERS_3(name) PARAMETERS_2(name), PARAMETER(name, 2)
#define PARAMETERS_4(name) PARAMETERS_3(name), PARAMETER(name, 3)
#define PARAMETERS_5(name) PARAMETERS_4(name), PARAMETER(name, 4)
#define PARAMETERS_6(name) PARAMETERS_5(name), PARAMETER(name, 5)
#define PARAMETERS_7(name) PARAMETERS_6(name), PARAMETER(name, 6)
#define PARAMETERS_8(name) PARAMETERS_7(name), PARAMETER(name, 7)
#define ARGUMENTS_1 own(a0)
#define ARGUMENTS_2 ARGUMENTS_1, own(a1)
#define ARGUMENTS_3 ARGUMENTS_2, own(a2)
#define ARGUMENTS_4 ARGUMENTS_3, own(a3)
#define ARGUMENTS_5 ARGUMENTS_4, own(a4)
#define ARGUMENTS_6 ARGUMENTS_5, own(a5)
#define ARGUMENTS_7 ARGUMENTS_6, own(a6)
#define ARGUMENTS_8 ARGUMENTS_7, own(a7)

#define TWIN(name, count)                                       \
  cudaError_t CUDARTAPI name##_ptsz(PARAMETERS_##count(name)) { \
    const CallerScope caller(__builtin_return_address(0));      \
    return name(ARGUMENTS_##count);                             \
  }

extern "C" {

TWIN(cudaEventRecord, 2)
TWIN(cudaEventRecordWithFlags, 3)
TWIN(cudaFreeAsync, 2)
TWIN(cudaGraphLaunch, 2)
TWIN(cudaGraphUpload, 2)
TWIN(cudaLaunchHostFunc, 3)
TWIN(cudaLaunchKernel, 6)
TWIN(cudaLaunchKernelExC, 3)
TWIN(cudaMallocAsync, 3)
TWIN(cudaMemcpy2DAsync, 8)
TWIN(cudaMemcpy3DAsync, 2)
TWIN(cudaMemcpyAsync, 5)
TWIN(cudaMemset2DAsync, 6)
TWIN(cudaMemsetAsync, 4)
TWIN(cudaStreamBeginCapture, 2)
TWIN(cudaStreamBeginCaptureToGraph, 6)
TWIN(cudaStreamEndCapture, 2)
TWIN(cudaStreamGetFlags, 2)
TWIN(cudaStreamGetId, 2)
TWIN(cudaStreamGetPriority, 2)
TWIN(cudaStreamIsCapturing, 2)
TWIN(cudaStreamQuery, 1)
TWIN(cudaStreamSynchronize, 1)
TWIN(cudaStreamWaitEvent, 3)
#if CUDART_VERSION >= 12080
TWIN(cudaStreamGetDevice, 2)
#endif
#if CUDART_VERSION >= 13000
TWIN(cudaStreamGetCaptureInfo, 7)
TWIN(cudaStreamUpdateCaptureDependencies, 5)
#else
TWIN(cudaStreamGetCaptureInfo_v2, 6)
TWIN(cudaStreamGetCaptureInfo_v3, 7)
TWIN(cudaStreamUpdateCaptureDependencies, 4)
TWIN(cudaStreamUpdateCaptureDependencies_v2, 5)
#endif

// Their flags choose which functions they give, and 0 leaves the choice to the name.
#if CUDART_VERSION >= 12050
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion_ptsz(PARAMETERS_5(cudaGetDriverEntryPointByVersion)) {
  const CallerScope caller(__builtin_return_address(0));
  return cudaGetDriverEntryPointByVersion(a0, a1, a2, own_functions(a3), a4);
}
#else
cudaError_t CUDARTAPI cudaGetDriverEntryPoint_ptsz(PARAMETERS_4(cudaGetDriverEntryPoint)) {
  const CallerScope caller(__builtin_return_address(0));
  return cudaGetDriverEntryPoint(a0, a1, own_functions(a2), a3);
}
#endif

}  // extern "C"
