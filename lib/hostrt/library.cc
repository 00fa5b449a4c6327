#include "library.h"

#include <device_launch_parameters.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "../conditional/condition.h"
#include "../exec/updater.h"
#include "../graph/setter.h"
#include "attributes.h"
#include "builtins.h"
#include "device_nodes.h"
#include "graphcache/hostrt.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

// What device code reads or writes by words.
void check_aligned(const void* address, std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) throw MisalignedAddress{};
}

cudaError_t set_argument(State& state, cudaGraphDeviceNode_t node, std::size_t offset, const void* value,
                         std::size_t size) {
  if (const auto error = injected_failure(state, Function::kGraphKernelNodeSetParam)) return *error;
  // The alignment that a device needs (updater.h).
  const std::size_t bits = offset | size | updater::kUnit;
  check_aligned(value, bits & (~bits + 1));
  KernelParams* const params = node_to_write(state, node);
  return params != nullptr && params->arguments.write(offset, value, size) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t set_grid(State& state, cudaGraphDeviceNode_t node, dim3 grid) {
  if (const auto error = injected_failure(state, Function::kGraphKernelNodeSetGridDim)) return *error;
  KernelParams* const params = node_to_write(state, node);
  // Refused, because a device would silently do the wrong thing (docs/semantics.md).
  if (params != nullptr && (has_attribute(*params, cudaLaunchAttributeClusterDimension) ||
                            has_attribute(*params, cudaLaunchAttributeCooperative))) {
    return cudaErrorNotSupported;
  }
  if (params == nullptr || check_shape(grid, params->block, 0, 0) != cudaSuccess) return cudaErrorInvalidValue;
  write_grid(*params, grid);
  return cudaSuccess;
}

// The CPU version of updater.cu. Threads run one after the other here, so the first thread of a block does all of the
// block's work.
template <unsigned kBytes>
void update(const updater::Values<kBytes>& values) {
  const updater::Plan& plan = values.plan;
  updater::Written& written = plan.written[blockIdx.x];
  if (threadIdx.x != 0 || written.token == values.token) return;
  const updater::Written held = std::exchange(written, {values.set, values.token});
  State& world = state();
  const unsigned begin = blockIdx.x * blockDim.x;
  for (unsigned i = begin; i < begin + blockDim.x && i < plan.piece_count; ++i) {
    updater::update_piece(plan, i, plan.pieces[i], held.set, values.set, values.bytes,
                          [&](cudaGraphDeviceNode_t node, unsigned offset, const unsigned char* value, unsigned size) {
                            unsigned grid[3] = {};
                            if (offset == updater::kGrid) {
                              check_aligned(value, alignof(unsigned));
                              std::memcpy(grid, value, sizeof grid);
                            }
                            const cudaError_t error = offset == updater::kGrid
                                                          ? set_grid(world, node, dim3(grid[0], grid[1], grid[2]))
                                                          : set_argument(world, node, offset, value, size);
                            if (error != cudaSuccess) *plan.error = error;
                          });
  }
}

void update_small(updater::Values<updater::kSmall> values) { update(values); }
void update_large(updater::Values<updater::kLarge> values) { update(values); }
void update_huge(updater::Values<updater::kHuge> values) { update(values); }
void plain() {}

// The CPU version of setter.cu.
void set_small(unsigned char* to, setter::Value<setter::kSmall> value) { to[threadIdx.x] = value.bytes[threadIdx.x]; }
void set_large(unsigned char* to, setter::Value<setter::kLarge> value) { to[threadIdx.x] = value.bytes[threadIdx.x]; }

// The CPU versions of condition.cu. An invalid pointer is a fault, as on a device.
void set_condition(cudaGraphConditionalHandle handle, const unsigned* condition, const unsigned** kept) {
  check_aligned(kept, alignof(const unsigned*));
  check_aligned(condition, alignof(unsigned));
  if (kept != nullptr) *kept = condition;
  if (condition == nullptr || !set_conditional(handle, *condition)) throw IllegalAddress{};
}
void set_kept_condition(cudaGraphConditionalHandle handle, const unsigned* const* kept) {
  set_condition(handle, *kept, nullptr);
}

struct LibraryKernel {
  const char* name;
  const void* function;
};

// A loaded library has these kernels whatever its image contains, because these are the ones with a CPU version.
const LibraryKernel kKernels[] = {
    {updater::kSmallName, reinterpret_cast<const void*>(&update_small)},
    {updater::kLargeName, reinterpret_cast<const void*>(&update_large)},
    {updater::kHugeName, reinterpret_cast<const void*>(&update_huge)},
    {updater::kPlainName, reinterpret_cast<const void*>(&plain)},
    {setter::kSmallName, reinterpret_cast<const void*>(&set_small)},
    {setter::kLargeName, reinterpret_cast<const void*>(&set_large)},
    {condition::kSetName, reinterpret_cast<const void*>(&set_condition)},
    {condition::kSetKeptName, reinterpret_cast<const void*>(&set_kept_condition)},
};

}  // namespace

bool is_of_library(const void* kernel) {
  return std::any_of(std::begin(kKernels), std::end(kKernels),
                     [&](const LibraryKernel& known) { return known.function == kernel; });
}

bool is_updater(const void* kernel) {
  return kernel == reinterpret_cast<const void*>(&update_small) ||
         kernel == reinterpret_cast<const void*>(&update_large) ||
         kernel == reinterpret_cast<const void*>(&update_huge);
}

cudaError_t load_library(const Call& call, CUlibrary* library, const void* code, unsigned option_count) {
  if (library == nullptr || code == nullptr) return cudaErrorInvalidValue;
  if (option_count != 0) return cudaErrorNotSupported;
  *library = reinterpret_cast<CUlibrary>(++call.state.last_library);
  call.state.libraries.insert(*library);
  return cudaSuccess;
}

cudaError_t unload_library(const Call& call, CUlibrary library) {
  if (call.state.libraries.erase(library) != 0) return cudaSuccess;
  return call.misuse(cudaErrorInvalidResourceHandle, "the library is not loaded");
}

cudaError_t library_kernel(const Call& call, CUkernel* kernel, CUlibrary library, const char* name) {
  if (kernel == nullptr || name == nullptr) return cudaErrorInvalidValue;
  if (call.state.libraries.count(library) == 0) {
    return call.misuse(cudaErrorInvalidResourceHandle, "the library is not loaded");
  }
  for (const LibraryKernel& known : kKernels) {
    if (std::strcmp(known.name, name) != 0) continue;
    *kernel = reinterpret_cast<CUkernel>(const_cast<void*>(known.function));
    return cudaSuccess;
  }
  return cudaErrorSymbolNotFound;
}

}  // namespace graphcache::hostrt

GRAPHCACHE_HOST_KERNEL(graphcache::hostrt::update_small)
GRAPHCACHE_HOST_KERNEL(graphcache::hostrt::update_large)
GRAPHCACHE_HOST_KERNEL(graphcache::hostrt::update_huge)
GRAPHCACHE_HOST_KERNEL(graphcache::hostrt::plain)
GRAPHCACHE_HOST_KERNEL(graphcache::hostrt::set_small)
GRAPHCACHE_HOST_KERNEL(graphcache::hostrt::set_large)
GRAPHCACHE_HOST_KERNEL(graphcache::hostrt::set_condition)
GRAPHCACHE_HOST_KERNEL(graphcache::hostrt::set_kept_condition)

#if CUDART_VERSION >= 12080
using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaLibraryLoadData(cudaLibrary_t* library, const void* code, enum cudaJitOption*, void**,
                                          unsigned int jit_options, enum cudaLibraryOption*, void**,
                                          unsigned int library_options) {
  return enter(Function::kLibraryLoadData,
               [&](const Call& call) { return load_library(call, library, code, jit_options + library_options); });
}

cudaError_t CUDARTAPI cudaLibraryUnload(cudaLibrary_t library) {
  return enter(Function::kLibraryUnload, [&](const Call& call) { return unload_library(call, library); });
}

cudaError_t CUDARTAPI cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  return enter(Function::kLibraryGetKernel,
               [&](const Call& call) { return library_kernel(call, kernel, library, name); });
}

}  // extern "C"
#endif
