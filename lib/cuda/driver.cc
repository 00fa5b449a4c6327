#include "cuda/driver.h"

#include <type_traits>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "cuda/handles.h"

namespace graphcache {

const Driver& driver() {
  static const Driver driver = [] {
    LastErrorGuard last_error;
    Driver found;
    if (cudaDriverGetVersion(&found.version) != cudaSuccess) found.version = 0;
    const auto set = [&](auto& function, const char* name, unsigned version = kOldestVersion) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(driver_function(name, version));
      if (function == nullptr && version == kOldestVersion && found.missing == nullptr) found.missing = name;
    };
    set(found.current_context, "cuCtxGetCurrent");
    set(found.context_id, "cuCtxGetId");
    set(found.stream_context, "cuStreamGetCtx");
    set(found.pointer_attributes, "cuPointerGetAttributes");
    set(found.set_kernel_node, "cuGraphExecKernelNodeSetParams");
    set(found.node_type, "cuGraphNodeGetType");
    set(found.node_dependencies, "cuGraphNodeGetDependencies", 12030);
    set(found.kernel_params, "cuGraphKernelNodeGetParams");
    set(found.set_kernel_params, "cuGraphKernelNodeSetParams");
    set(found.kernel_attribute, "cuGraphKernelNodeGetAttribute");
    set(found.set_kernel_attribute, "cuGraphKernelNodeSetAttribute");
    set(found.function_param_info, "cuFuncGetParamInfo", 12040);
    set(found.kernel_function, "cuKernelGetFunction");
    set(found.kernel_param_info, "cuKernelGetParamInfo", 12040);
    set(found.function_name, "cuFuncGetName", 12030);
    set(found.kernel_name, "cuKernelGetName", 12030);
#if CUDART_VERSION < 12080
    set(found.load_library, "cuLibraryLoadData");
    set(found.unload_library, "cuLibraryUnload");
    set(found.library_kernel, "cuLibraryGetKernel");
    set(found.add_kernel_node, "cuGraphAddKernelNode");
    set(found.launch_kernel, "cuLaunchKernel");
#endif
    return found;
  }();
  return driver;
}

CUcontext current_context() {
  CUcontext context = nullptr;
  return driver().current_context(&context) == CUDA_SUCCESS ? context : nullptr;
}

bool has_context() {
  if (current_context() != nullptr) return true;
  const LastErrorGuard last_error;
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) cudaSetDevice(device);
  return current_context() != nullptr;
}

CallResult find_context(int device, std::uint64_t* id) {
  const DeviceGuard current(device);
  *id = UINT64_MAX - static_cast<std::uint64_t>(device);
  if (current.result().error != cudaSuccess || !has_context()) return current.result();
  unsigned long long found = 0;
  const CUresult result = driver().context_id(nullptr, &found);
  if (result == CUDA_SUCCESS) *id = found;
  return {"cuCtxGetId", static_cast<cudaError_t>(result), /*latches=*/false};
}

CUfunction function_of_library(const void* kernel) {
  RelaxedCaptureMode relaxed;
  if (!has_context()) return nullptr;
  CUfunction function = nullptr;
  const auto of = reinterpret_cast<CUkernel>(const_cast<void*>(kernel));
  return driver().kernel_function(&function, of) == CUDA_SUCCESS ? function : nullptr;
}

}  // namespace graphcache
