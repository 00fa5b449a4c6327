// Calls on kernels themselves: their attributes, which each device's context has of its own, and their names.

#include "function_calls.h"

#include <cstring>

#include "library.h"
#include "state.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

constexpr int kBinaryVersion = 90;
constexpr int kRegisters = 32;  // a made-up number: there is no device code

cudaError_t set_attribute(const Call& call, const void* function, cudaFuncAttribute attribute, int value) {
  const Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  const auto set = [&](int KernelAttributes::*which, int least, int greatest) {
    if (value < least || value > greatest) return cudaErrorInvalidValue;
    call.state.kernel_attributes[{kernel, call.thread.device}].*which = value;
    call.thread.last_error = cudaSuccess;  // as the real runtime does
    return cudaSuccess;
  };
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      return set(&KernelAttributes::max_shared_bytes, 0, static_cast<int>(kMaxSharedBytes));
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return set(&KernelAttributes::carveout, cudaSharedmemCarveoutDefault, cudaSharedmemCarveoutMaxShared);
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      return set(&KernelAttributes::large_clusters, 0, 1);
    default:
      return cudaErrorNotSupported;
  }
}

KernelAttributes attributes_of(const State& state, const Kernel& kernel, int device) {
  const auto found = state.kernel_attributes.find({&kernel, device});
  return found != state.kernel_attributes.end() ? found->second : KernelAttributes{};
}

cudaError_t get_attributes(const Call& call, cudaFuncAttributes* out, const void* function) {
  if (out == nullptr) return cudaErrorInvalidValue;
  const Kernel* const kernel = find_kernel(function);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  const KernelAttributes attributes = attributes_of(call.state, *kernel, call.thread.device);
  std::memset(static_cast<void*>(out), 0, sizeof *out);
  out->maxThreadsPerBlock = kMaxThreadsPerBlock;
  out->numRegs = kRegisters;
  out->ptxVersion = kBinaryVersion;
  out->binaryVersion = kBinaryVersion;
  out->maxDynamicSharedSizeBytes = attributes.max_shared_bytes;
  out->preferredShmemCarveout = attributes.carveout;
  out->nonPortableClusterSizeAllowed = attributes.large_clusters;
  return cudaSuccess;
}

}  // namespace

std::size_t max_shared_bytes(const State& state, const Kernel& kernel, int device) {
  return static_cast<std::size_t>(attributes_of(state, kernel, device).max_shared_bytes);
}

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* func, enum cudaFuncAttribute attr, int value) {
  return enter(Function::kFuncSetAttribute, [&](const Call& call) { return set_attribute(call, func, attr, value); });
}

cudaError_t CUDARTAPI cudaFuncGetAttributes(struct cudaFuncAttributes* attr, const void* func) {
  return enter(Function::kFuncGetAttributes, [&](const Call& call) { return get_attributes(call, attr, func); });
}

cudaError_t CUDARTAPI cudaGetFuncBySymbol(cudaFunction_t* functionPtr, const void* symbolPtr) {
  return enter(Function::kGetFuncBySymbol, [&](const Call&) {
    const bool is_symbol = find_kernel(symbolPtr) != nullptr && !is_of_library(symbolPtr);
    if (functionPtr == nullptr || !is_symbol) return cudaErrorInvalidDeviceFunction;
    *functionPtr = reinterpret_cast<cudaFunction_t>(const_cast<void*>(symbolPtr));
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaFuncGetName(const char** name, const void* func) {
  return enter(Function::kFuncGetName, [&](const Call&) {
    const Kernel* const kernel = find_kernel(func);
    if (name == nullptr || kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    *name = kernel->name.c_str();
    return cudaSuccess;
  });
}

}  // extern "C"
