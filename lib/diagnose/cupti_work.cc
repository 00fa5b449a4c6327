#include "diagnose/cupti_work.h"

// Code compiled with per-thread default streams calls functions of other names, where stream 0 is the per-thread
// stream.

// Runtime calls: name, version, version of the per-thread variant, and the stream parameter.
#define GRAPHCACHE_RUNTIME_WORK(X)                     \
  X(cudaLaunchKernel, 7000, 7000, stream)              \
  X(cudaLaunchKernelExC, 11060, 11060, config->stream) \
  X(cudaLaunchCooperativeKernel, 9000, 9000, stream)   \
  X(cudaLaunchHostFunc, 10000, 10000, stream)          \
  X(cudaGraphLaunch, 10000, 10000, stream)             \
  X(cudaMemcpyAsync, 3020, 7000, stream)               \
  X(cudaMemcpy2DAsync, 3020, 7000, stream)             \
  X(cudaMemcpy3DAsync, 3020, 7000, stream)             \
  X(cudaMemcpyToSymbolAsync, 3020, 7000, stream)       \
  X(cudaMemcpyFromSymbolAsync, 3020, 7000, stream)     \
  X(cudaMemcpy3DPeerAsync, 4000, 7000, stream)         \
  X(cudaMemsetAsync, 3020, 7000, stream)               \
  X(cudaMemset2DAsync, 3020, 7000, stream)             \
  X(cudaMemset3DAsync, 3020, 7000, stream)             \
  X(cudaMallocAsync, 11020, 11020, hStream)            \
  X(cudaFreeAsync, 11020, 11020, hStream)

// Runtime calls on the default stream: name, version, version of the per-thread variant.
#define GRAPHCACHE_RUNTIME_DEFAULT_WORK(X) \
  X(cudaMemcpy, 3020, 7000)                \
  X(cudaMemcpy2D, 3020, 7000)              \
  X(cudaMemcpy3D, 3020, 7000)              \
  X(cudaMemcpyToSymbol, 3020, 7000)        \
  X(cudaMemcpyFromSymbol, 3020, 7000)      \
  X(cudaMemset, 3020, 7000)                \
  X(cudaMemset2D, 3020, 7000)              \
  X(cudaMemset3D, 3020, 7000)

#define GRAPHCACHE_DRIVER_WORK(X)       \
  X(cuLaunchKernel, hStream)            \
  X(cuLaunchKernelEx, config->hStream)  \
  X(cuLaunchCooperativeKernel, hStream) \
  X(cuLaunchHostFunc, hStream)          \
  X(cuGraphLaunch, hStream)             \
  X(cuMemcpyAsync, hStream)             \
  X(cuMemcpyHtoDAsync_v2, hStream)      \
  X(cuMemcpyDtoHAsync_v2, hStream)      \
  X(cuMemcpyDtoDAsync_v2, hStream)      \
  X(cuMemcpy2DAsync_v2, hStream)        \
  X(cuMemcpy3DAsync_v2, hStream)        \
  X(cuMemsetD8Async, hStream)           \
  X(cuMemsetD16Async, hStream)          \
  X(cuMemsetD32Async, hStream)          \
  X(cuMemAllocAsync, hStream)           \
  X(cuMemFreeAsync, hStream)

#define GRAPHCACHE_DRIVER_DEFAULT_WORK(X) \
  X(cuMemcpy)                             \
  X(cuMemcpyHtoD_v2)                      \
  X(cuMemcpyDtoH_v2)                      \
  X(cuMemcpyDtoD_v2)                      \
  X(cuMemsetD8_v2)                        \
  X(cuMemsetD16_v2)                       \
  X(cuMemsetD32_v2)

namespace graphcache::diagnose {
namespace {

cudaStream_t named(cudaStream_t stream, cudaStream_t null) { return stream != nullptr ? stream : null; }

bool of_runtime(CUpti_CallbackId id, const void* params, cudaStream_t* stream) {
  switch (id) {
#define GRAPHCACHE_CASE(name, version, per_thread_version, field)                                                  \
  case CUPTI_RUNTIME_TRACE_CBID_##name##_v##version:                                                               \
    *stream = named(static_cast<const name##_v##version##_params*>(params)->field, cudaStreamLegacy);              \
    return true;                                                                                                   \
  case CUPTI_RUNTIME_TRACE_CBID_##name##_ptsz_v##per_thread_version:                                               \
    *stream =                                                                                                      \
        named(static_cast<const name##_ptsz_v##per_thread_version##_params*>(params)->field, cudaStreamPerThread); \
    return true;
    GRAPHCACHE_RUNTIME_WORK(GRAPHCACHE_CASE)
#undef GRAPHCACHE_CASE
#define GRAPHCACHE_CASE(name, version, per_thread_version)           \
  case CUPTI_RUNTIME_TRACE_CBID_##name##_v##version:                 \
    *stream = cudaStreamLegacy;                                      \
    return true;                                                     \
  case CUPTI_RUNTIME_TRACE_CBID_##name##_ptds_v##per_thread_version: \
    *stream = cudaStreamPerThread;                                   \
    return true;
    GRAPHCACHE_RUNTIME_DEFAULT_WORK(GRAPHCACHE_CASE)
#undef GRAPHCACHE_CASE
    default:
      return false;
  }
}

bool of_driver(CUpti_CallbackId id, const void* params, cudaStream_t* stream) {
  switch (id) {
#define GRAPHCACHE_CASE(name, field)                                                             \
  case CUPTI_DRIVER_TRACE_CBID_##name:                                                           \
    *stream = named(static_cast<const name##_params*>(params)->field, cudaStreamLegacy);         \
    return true;                                                                                 \
  case CUPTI_DRIVER_TRACE_CBID_##name##_ptsz:                                                    \
    *stream = named(static_cast<const name##_ptsz_params*>(params)->field, cudaStreamPerThread); \
    return true;
    GRAPHCACHE_DRIVER_WORK(GRAPHCACHE_CASE)
#undef GRAPHCACHE_CASE
#define GRAPHCACHE_CASE(name)                 \
  case CUPTI_DRIVER_TRACE_CBID_##name:        \
    *stream = cudaStreamLegacy;               \
    return true;                              \
  case CUPTI_DRIVER_TRACE_CBID_##name##_ptds: \
    *stream = cudaStreamPerThread;            \
    return true;
    GRAPHCACHE_DRIVER_DEFAULT_WORK(GRAPHCACHE_CASE)
#undef GRAPHCACHE_CASE
    default:
      return false;
  }
}

}  // namespace

bool stream_of_work(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* params, cudaStream_t* stream) {
  return domain == CUPTI_CB_DOMAIN_RUNTIME_API ? of_runtime(id, params, stream) : of_driver(id, params, stream);
}

}  // namespace graphcache::diagnose
