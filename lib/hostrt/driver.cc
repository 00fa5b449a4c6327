// The few driver functions that a program reaches through the runtime. Each is counted and made to fail under the name
// of the runtime function with the same meaning (cuFuncGetParamInfo as cudaFuncGetParamInfo, cuCtxGetId as
// cudaCtxGetId, cuPointerGetAttributes as cudaPointerGetAttributes, cuStreamGetCtx as cudaStreamGetDevice). Like the
// real ones, they do not touch the last-error slot. cuCtxGetCurrent has no such runtime function and is not counted.

#include "../cuda/driver.h"

#include <cuda.h>

#include <cstring>

#include "error_texts.h"
#include "exec.h"
#include "graph.h"
#include "kernels.h"
#include "launch.h"
#include "library.h"
#include "params.h"
#include "state.h"
#include "work.h"

// A toolkit header may mark the calls for one node type as deprecated. This file still forwards to them.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace graphcache::hostrt {
namespace {

// A thread has a context once it has made a runtime call.
bool has_context() {
  const Thread& thread = this_thread();
  return thread.id != 0 && thread.epoch == state().epoch;
}

constexpr std::uintptr_t kContexts = std::uintptr_t{0xc0c} << 52;  // no address of anything

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(kContexts + device); }

// The contexts that cuCtxCreate makes have handles of their own. Streams, memory and executables belong to the device
// here, whatever the context: only the ids tell the contexts of a device apart.
constexpr std::uintptr_t kMadeContexts = kContexts + (std::uintptr_t{1} << 32);

CUresult current_context(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Thread& thread = this_thread();
  *context = !has_context()        ? nullptr
             : thread.context != 0 ? reinterpret_cast<CUcontext>(kMadeContexts + thread.context)
                                   : context_of(thread.device);
  return CUDA_SUCCESS;
}

// The codes of driver and runtime are the same, number by number.
template <typename Run>
CUresult leave_last_error(Run&& run) {
  const cudaError_t found = has_context() ? this_thread().last_error : cudaSuccess;
  const cudaError_t error = run();
  this_thread().last_error = found;
  return static_cast<CUresult>(error);
}

// `run` calls enter() with `function`.
template <typename Run>
[[gnu::always_inline]] inline CUresult call_driver(Function function, Run&& run) {
  const CallerScope caller(__builtin_return_address(0));
  if (!has_context()) {  // the real driver crashes
    const cudaError_t error = enter(function, [](const Call& call) {
      return call.misuse(cudaErrorDeviceUninitialized, "the driver was called by a thread without a context");
    });
    this_thread().last_error = cudaSuccess;
    return static_cast<CUresult>(error);
  }
  return leave_last_error(run);
}

cudaKernelNodeParams runtime_params(const CUDA_KERNEL_NODE_PARAMS& params) {
  cudaKernelNodeParams wanted = {};
  // cudaGetFuncBySymbol gives the symbol itself, and so do cudaLibraryGetKernel and cuKernelGetFunction.
  wanted.func = params.func != nullptr ? static_cast<void*>(params.func) : params.kern;
  wanted.gridDim = dim3(params.gridDimX, params.gridDimY, params.gridDimZ);
  wanted.blockDim = dim3(params.blockDimX, params.blockDimY, params.blockDimZ);
  wanted.sharedMemBytes = params.sharedMemBytes;
  wanted.kernelParams = params.kernelParams;
  wanted.extra = params.extra;
  return wanted;
}

CUresult add_kernel_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                         const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const cudaKernelNodeParams wanted = runtime_params(*params);
  return call_driver(Function::kGraphAddKernelNode,
                     [&] { return cudaGraphAddKernelNode(node, graph, dependencies, count, &wanted); });
}

// The stream of a function that is looked up for programs with per-thread default streams, or for others.
template <bool kPerThread>
cudaStream_t stream_of(CUstream stream) {
  return kPerThread && stream == nullptr ? cudaStreamPerThread : stream;
}

template <bool kPerThread>
CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments,
                       void** extra) {
  return call_driver(Function::kLaunchKernel, [&] {
    return enter(Function::kLaunchKernel, [&](const Call& call) {
      return launch(call, {function, dim3(grid_x, grid_y, grid_z), dim3(block_x, block_y, block_z), arguments, extra,
                           shared_bytes, stream_of<kPerThread>(stream)});
    });
  });
}

CUresult set_kernel_node(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const cudaKernelNodeParams wanted = runtime_params(*params);
  return call_driver(Function::kGraphExecKernelNodeSetParams, [&] {
    return enter({Function::kGraphExecKernelNodeSetParams, executable, node}, [&](const Call& call) {
      return patch_kernel(call, executable, node, &wanted, /*on_current_device=*/false);
    });
  });
}

CUresult get_kernel_node(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return call_driver(Function::kGraphKernelNodeGetParams, [&] {
    return enter({Function::kGraphKernelNodeGetParams, node}, [&](const Call& call) {
      const auto* const kernel = params_of<KernelParams>(call, node);
      if (kernel == nullptr) return cudaErrorInvalidValue;
      cudaKernelNodeParams found;
      write_kernel(*kernel, &found);
      *params = driver_params(found.gridDim, found.blockDim, found.sharedMemBytes, found.kernelParams);
      params->extra = found.extra;
      params->func = static_cast<CUfunction>(found.func);
      params->ctx = context_of(kernel->device);
      return cudaSuccess;
    });
  });
}

CUresult set_kernel_of_graph(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const cudaKernelNodeParams wanted = runtime_params(*params);
  return call_driver(Function::kGraphKernelNodeSetParams, [&] { return cudaGraphKernelNodeSetParams(node, &wanted); });
}

CUresult get_copy(CUgraphNode node, CUDA_MEMCPY3D* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return call_driver(Function::kGraphMemcpyNodeGetParams, [&] {
    cudaMemcpy3DParms copy;
    const cudaError_t error = cudaGraphMemcpyNodeGetParams(node, &copy);
    if (error != cudaSuccess) return error;
    std::memset(static_cast<void*>(params), 0, sizeof *params);
    params->srcMemoryType = params->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    params->srcDevice = reinterpret_cast<CUdeviceptr>(copy.srcPtr.ptr);
    params->srcPitch = copy.srcPtr.pitch;
    params->srcHeight = copy.srcPtr.ysize;
    params->dstDevice = reinterpret_cast<CUdeviceptr>(copy.dstPtr.ptr);
    params->dstPitch = copy.dstPtr.pitch;
    params->dstHeight = copy.dstPtr.ysize;
    params->WidthInBytes = copy.extent.width;
    params->Height = copy.extent.height;
    params->Depth = copy.extent.depth;
    return cudaSuccess;
  });
}

// Copies between addresses of unified memory, without offsets. The kind stays.
CUresult set_copy(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return call_driver(Function::kGraphMemcpyNodeSetParams, [&] {
    cudaMemcpy3DParms copy;
    const cudaError_t error = cudaGraphMemcpyNodeGetParams(node, &copy);
    if (error != cudaSuccess) return error;
    if (params->srcMemoryType != CU_MEMORYTYPE_UNIFIED || params->dstMemoryType != CU_MEMORYTYPE_UNIFIED) {
      return cudaErrorNotSupported;
    }
    copy.srcPtr = {reinterpret_cast<void*>(params->srcDevice), params->srcPitch, 0, params->srcHeight};
    copy.dstPtr = {reinterpret_cast<void*>(params->dstDevice), params->dstPitch, 0, params->dstHeight};
    copy.extent = {params->WidthInBytes, params->Height, params->Depth};
    return cudaGraphMemcpyNodeSetParams(node, &copy);
  });
}

CUresult get_node_type(CUgraphNode node, CUgraphNodeType* type) {
  return call_driver(Function::kGraphNodeGetType,
                     [&] { return cudaGraphNodeGetType(node, reinterpret_cast<cudaGraphNodeType*>(type)); });
}

CUresult get_dependencies(CUgraphNode node, CUgraphNode* dependencies, CUgraphEdgeData* edges, std::size_t* count) {
  static_assert(sizeof *edges == sizeof(cudaGraphEdgeData), "the driver's edges are the runtime's");
  auto* const data = reinterpret_cast<cudaGraphEdgeData*>(edges);
  return call_driver(Function::kGraphNodeGetDependencies, [&] {
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependencies(node, dependencies, data, count);
#else
    return cudaGraphNodeGetDependencies_v2(node, dependencies, data, count);
#endif
  });
}

CUresult get_dependents(CUgraphNode node, CUgraphNode* dependents, CUgraphEdgeData* edges, std::size_t* count) {
  auto* const data = reinterpret_cast<cudaGraphEdgeData*>(edges);
  return call_driver(Function::kGraphNodeGetDependentNodes, [&] {
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependentNodes(node, dependents, data, count);
#else
    return cudaGraphNodeGetDependentNodes_v2(node, dependents, data, count);
#endif
  });
}

CUresult get_kernel_attribute(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue* value) {
  static_assert(sizeof *value == sizeof(cudaLaunchAttributeValue), "the driver's values are the runtime's");
  return call_driver(Function::kGraphKernelNodeGetAttribute, [&] {
    return cudaGraphKernelNodeGetAttribute(node, static_cast<cudaLaunchAttributeID>(id),
                                           reinterpret_cast<cudaLaunchAttributeValue*>(value));
  });
}

CUresult set_kernel_attribute(CUgraphNode node, CUlaunchAttributeID id, const CUlaunchAttributeValue* value) {
  return call_driver(Function::kGraphKernelNodeSetAttribute, [&] {
    return cudaGraphKernelNodeSetAttribute(node, static_cast<cudaLaunchAttributeID>(id),
                                           reinterpret_cast<const cudaLaunchAttributeValue*>(value));
  });
}

CUresult parameter_info(CUfunction function, std::size_t index, std::size_t* offset, std::size_t* size) {
  return call_driver(Function::kFuncGetParamInfo, [&] {
    return enter(Function::kFuncGetParamInfo, [&](const Call& call) {
      if (function == nullptr || offset == nullptr) return cudaErrorInvalidValue;
      const Kernel* kernel = nullptr;
      if (const cudaError_t error = resolve_kernel(call, function, &kernel); error != cudaSuccess) return error;
      if (index >= kernel->parameters.size()) return cudaErrorInvalidValue;
      *offset = kernel->offsets[index];
      if (size != nullptr) *size = kernel->parameters[index].size;
      return cudaSuccess;
    });
  });
}

CUresult function_name(const char** name, CUfunction function) {
  return call_driver(Function::kFuncGetName, [&] {
    return enter(Function::kFuncGetName, [&](const Call& call) {
      if (name == nullptr || function == nullptr) return cudaErrorInvalidValue;
      const Kernel* kernel = nullptr;
      if (const cudaError_t error = resolve_kernel(call, function, &kernel); error != cudaSuccess) return error;
      *name = kernel->name.c_str();
      return cudaSuccess;
    });
  });
}

CUresult function_of(CUfunction* function, CUkernel kernel) {
  return call_driver(Function::kKernelGetFunction, [&] {
    return enter(Function::kKernelGetFunction, [&](const Call&) {
      if (function == nullptr || kernel == nullptr) return cudaErrorInvalidValue;
      if (!is_of_library(kernel)) return cudaErrorInvalidResourceHandle;
      *function = reinterpret_cast<CUfunction>(kernel);
      return cudaSuccess;
    });
  });
}

CUresult make_context(CUcontext* context, unsigned, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return call_driver(Function::kCtxCreate, [&] {
    return enter(Function::kCtxCreate, [&](const Call& call) {
      if (!call.state.has_device(device)) return cudaErrorInvalidDevice;
      const std::uint64_t id = ++call.state.last_context_id;
      call.state.contexts[id] = device;
      call.thread.context = id;
      call.thread.device = device;
      *context = reinterpret_cast<CUcontext>(kMadeContexts + id);
      return cudaSuccess;
    });
  });
}

CUresult set_current_context(CUcontext context) {
  return call_driver(Function::kCtxSetCurrent, [&] {
    return enter(Function::kCtxSetCurrent, [&](const Call& call) {
      const std::uintptr_t primary = reinterpret_cast<std::uintptr_t>(context) - kContexts;
      if (primary < static_cast<std::uintptr_t>(call.state.device_count)) {
        call.thread.context = 0;
        call.thread.device = static_cast<int>(primary);
        return cudaSuccess;
      }
      const auto made = call.state.contexts.find(reinterpret_cast<std::uintptr_t>(context) - kMadeContexts);
      if (made == call.state.contexts.end()) return cudaErrorDeviceUninitialized;
      call.thread.context = made->first;
      call.thread.device = made->second;
      return cudaSuccess;
    });
  });
}

CUresult destroy_context(CUcontext context) {
  return call_driver(Function::kCtxDestroy, [&] {
    return enter(Function::kCtxDestroy, [&](const Call& call) {
      const std::uint64_t id = reinterpret_cast<std::uintptr_t>(context) - kMadeContexts;
      return call.state.contexts.erase(id) != 0 ? cudaSuccess : cudaErrorDeviceUninitialized;
    });
  });
}

CUresult context_id_of(CUcontext context, unsigned long long* id) {
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return call_driver(Function::kCtxGetId, [&] {
    return enter(Function::kCtxGetId, [&](const Call& call) {
      const std::uint64_t made =
          context == nullptr ? call.thread.context : reinterpret_cast<std::uintptr_t>(context) - kMadeContexts;
      if (made != 0 && (context == nullptr || call.state.contexts.count(made) != 0)) {
        *id = made;
        return call.state.contexts.count(made) != 0 ? cudaSuccess : cudaErrorContextIsDestroyed;
      }
      const std::uintptr_t device = reinterpret_cast<std::uintptr_t>(context) - kContexts;
      const bool is_known = context == nullptr || device < static_cast<std::uintptr_t>(call.state.device_count);
      if (!is_known) return cudaErrorDeviceUninitialized;
      *id = context_id(call.state, context == nullptr ? call.thread.device : static_cast<int>(device));
      return *id != 0 ? cudaSuccess : cudaErrorContextIsDestroyed;
    });
  });
}

// An attribute of memory that is not known is 0.
CUresult pointer_attributes(unsigned count, CUpointer_attribute* attributes, void** out, CUdeviceptr address) {
  return call_driver(Function::kPointerGetAttributes, [&] {
    return enter(Function::kPointerGetAttributes, [&](const Call& call) {
      if (count == 0 || attributes == nullptr || out == nullptr) return cudaErrorInvalidValue;
      for (unsigned i = 0; i < count; ++i) {
        const auto* const pointer = reinterpret_cast<const void*>(address);
        const cudaError_t error = read_attribute(call, pointer, attributes[i], out[i]);
        if (error != cudaSuccess) return error;
      }
      return cudaSuccess;
    });
  });
}

// Allowed on a capturing stream as well.
template <bool kPerThread>
CUresult context_of_stream(CUstream stream, CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return call_driver(Function::kStreamGetDevice, [&] {
    return enter(Function::kStreamGetDevice, [&](const Call& call) {
      const Stream* const found = find_stream(call, stream_of<kPerThread>(stream));
      if (found == nullptr) return cudaErrorInvalidResourceHandle;
      *context = context_of(found->device);
      return cudaSuccess;
    });
  });
}

// A library belongs to no context.
CUresult load_library_data(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned jit_options,
                           CUlibraryOption*, void**, unsigned library_options) {
  const CallerScope caller(__builtin_return_address(0));
  return leave_last_error([&] {
    return enter(Function::kLibraryLoadData,
                 [&](const Call& call) { return load_library(call, library, code, jit_options + library_options); });
  });
}

CUresult unload(CUlibrary library) {
  const CallerScope caller(__builtin_return_address(0));
  return leave_last_error(
      [&] { return enter(Function::kLibraryUnload, [&](const Call& call) { return unload_library(call, library); }); });
}

CUresult kernel_of_library(CUkernel* kernel, CUlibrary library, const char* name) {
  const CallerScope caller(__builtin_return_address(0));
  return leave_last_error([&] {
    return enter(Function::kLibraryGetKernel,
                 [&](const Call& call) { return library_kernel(call, kernel, library, name); });
  });
}

struct EntryPoint {
  const char* symbol;
  unsigned since;  // CUDA version that introduced this form of the function; older forms are not provided
  void* function;
  void* per_thread = function;  // another function if a null stream is the per-thread stream
};

const EntryPoint kEntryPoints[] = {
    {"cuCtxCreate", 3020, reinterpret_cast<void*>(&make_context)},
    {"cuCtxDestroy", 4000, reinterpret_cast<void*>(&destroy_context)},
    {"cuCtxGetCurrent", 4000, reinterpret_cast<void*>(&current_context)},
    {"cuCtxGetId", 12000, reinterpret_cast<void*>(&context_id_of)},
    {"cuCtxSetCurrent", 4000, reinterpret_cast<void*>(&set_current_context)},
    {"cuFuncGetName", 12030, reinterpret_cast<void*>(&function_name)},
    {"cuFuncGetParamInfo", 12040, reinterpret_cast<void*>(&parameter_info)},
    {"cuGetErrorName", 6000, reinterpret_cast<void*>(&name_of_error)},
    {"cuGetErrorString", 6000, reinterpret_cast<void*>(&text_of_error)},
    {"cuGraphAddKernelNode", 12000, reinterpret_cast<void*>(&add_kernel_node)},
    {"cuGraphExecKernelNodeSetParams", 12000, reinterpret_cast<void*>(&set_kernel_node)},
    {"cuGraphKernelNodeGetAttribute", 11080, reinterpret_cast<void*>(&get_kernel_attribute)},
    {"cuGraphKernelNodeGetParams", 12000, reinterpret_cast<void*>(&get_kernel_node)},
    {"cuGraphKernelNodeSetAttribute", 11080, reinterpret_cast<void*>(&set_kernel_attribute)},
    {"cuGraphKernelNodeSetParams", 12000, reinterpret_cast<void*>(&set_kernel_of_graph)},
    {"cuGraphMemcpyNodeGetParams", 10000, reinterpret_cast<void*>(&get_copy)},
    {"cuGraphMemcpyNodeSetParams", 10000, reinterpret_cast<void*>(&set_copy)},
    {"cuGraphNodeGetDependencies", 12030, reinterpret_cast<void*>(&get_dependencies)},
    {"cuGraphNodeGetDependentNodes", 12030, reinterpret_cast<void*>(&get_dependents)},
    {"cuGraphNodeGetType", 10000, reinterpret_cast<void*>(&get_node_type)},
    {"cuKernelGetFunction", 12000, reinterpret_cast<void*>(&function_of)},
    {"cuLaunchKernel", 4000, reinterpret_cast<void*>(&launch_kernel<false>),
     reinterpret_cast<void*>(&launch_kernel<true>)},
    {"cuLibraryGetKernel", 12000, reinterpret_cast<void*>(&kernel_of_library)},
    {"cuLibraryLoadData", 12000, reinterpret_cast<void*>(&load_library_data)},
    {"cuLibraryUnload", 12000, reinterpret_cast<void*>(&unload)},
    {"cuPointerGetAttributes", 7000, reinterpret_cast<void*>(&pointer_attributes)},
    {"cuStreamGetCtx", 9020, reinterpret_cast<void*>(&context_of_stream<false>),
     reinterpret_cast<void*>(&context_of_stream<true>)},
};

cudaError_t entry_point(const char* symbol, void** function, unsigned version, unsigned long long flags,
                        cudaDriverEntryPointQueryResult* result) {
  if (symbol == nullptr || function == nullptr) return cudaErrorInvalidValue;
  *function = nullptr;
  cudaDriverEntryPointQueryResult outcome = cudaDriverEntryPointSymbolNotFound;
  for (const EntryPoint& entry : kEntryPoints) {
    if (std::strcmp(symbol, entry.symbol) != 0) continue;
    const bool is_old = version < entry.since;
    outcome = is_old ? cudaDriverEntryPointVersionNotSufficent : cudaDriverEntryPointSuccess;
    *function = is_old ? nullptr : flags == cudaEnablePerThreadDefaultStream ? entry.per_thread : entry.function;
  }
  if (result != nullptr) *result = outcome;
  return cudaSuccess;
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

#if CUDART_VERSION >= 12050
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char* symbol, void** funcPtr, unsigned int cudaVersion,
                                                       unsigned long long flags,
                                                       enum cudaDriverEntryPointQueryResult* driverStatus) {
  return enter(Function::kGetDriverEntryPoint,
               [&](const Call&) { return entry_point(symbol, funcPtr, cudaVersion, flags, driverStatus); });
}
#else
cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char* symbol, void** funcPtr, unsigned long long flags,
                                              enum cudaDriverEntryPointQueryResult* driverStatus) {
  return enter(Function::kGetDriverEntryPoint,
               [&](const Call&) { return entry_point(symbol, funcPtr, CUDART_VERSION, flags, driverStatus); });
}
#endif

}  // extern "C"
