// Memory calls. Device memory is host memory, aligned as device memory is.

#include "memory.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "capture.h"
#include "schedule.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

// Larger blocks are not filled, because that would commit memory that may never be touched.
constexpr std::size_t kScribbledBytes = std::size_t{1} << 20;
constexpr int kScribble = 0xcd;

}  // namespace

unsigned long long Allocation::next_id() {
  static std::atomic<unsigned long long> last{0};
  return ++last;
}

void* fresh_memory(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = block_bytes(bytes);
  if (rounded < bytes || rounded > kDeviceMemoryBytes) return nullptr;
  void* address = std::aligned_alloc(alignment, (rounded + alignment - 1) / alignment * alignment);
  if (address != nullptr) scribble(address, bytes);
  return address;
}

void scribble(void* address, std::size_t bytes) {
  std::memset(address, kScribble, bytes < kScribbledBytes ? bytes : kScribbledBytes);
}

namespace {

cudaError_t allocate(const Call& call, Memory& memory, void** out, std::size_t bytes, bool is_managed = false) {
  if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  if (out == nullptr) return cudaErrorInvalidValue;
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* address = fresh_memory(bytes);
  if (address == nullptr) return cudaErrorMemoryAllocation;
  memory.emplace(address, Allocation{bytes, call.thread.device, nullptr, call.state.endings.here, {}, is_managed});
  poison(static_cast<char*>(address) + bytes, block_bytes(bytes) - bytes);
  *out = address;
  return cudaSuccess;
}

// Memory whose rows begin at multiples of a pitch.
cudaError_t allocate_rows(const Call& call, void** out, std::size_t* pitch, const cudaExtent& extent) {
  constexpr std::size_t kPitchAlignment = 512;
  std::size_t bytes = 0, rows = 0;
  if (out == nullptr || pitch == nullptr || extent.width > kMaxPitch ||
      __builtin_mul_overflow(extent.height, extent.depth, &rows)) {
    return cudaErrorInvalidValue;
  }
  const std::size_t row = (extent.width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  if (__builtin_mul_overflow(row, rows, &bytes)) return cudaErrorMemoryAllocation;
  const cudaError_t error = allocate(call, call.state.device_memory, out, bytes);
  if (error == cudaSuccess) *pitch = row;
  return error;
}

}  // namespace

cudaError_t refuse_release(const Call& call, const void* address) {
  const bool is_live = call.state.device_memory.count(address) + call.state.host_memory.count(address) != 0;
  const Place freed = is_live ? Place{} : call.state.endings.find(address);
  return call.misuse(cudaErrorInvalidValue,
                     freed.is_known() ? "memory was freed" : "not the address of live memory of this kind",
                     {{"freed", freed}});
}

namespace {

cudaError_t release(const Call& call, Memory& memory, void* address) {
  // applies to a null pointer as well
  if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  if (address == nullptr) return cudaSuccess;
  const auto found = memory.find(address);
  if (found == memory.end()) {
    if (&memory == &call.state.device_memory && free_graph_memory(call.state, address)) return cudaSuccess;
    return refuse_release(call, address);
  }
  // "will not perform any implicit synchronization" for cudaMallocAsync; freeing other memory synchronizes
  if (found->second.block == nullptr) finish_device(call.state, kAllDevices);
  free_block(call.state, memory, found);
  return cudaSuccess;
}

// The allocation that contains the address with its first address, or null.
const Memory::value_type* find_placed(const Memory& memory, const void* address) {
  const auto behind = memory.upper_bound(address);
  if (behind == memory.begin()) return nullptr;
  const auto found = std::prev(behind);
  const auto distance = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(found->first);
  return distance < found->second.bytes ? &*found : nullptr;
}

const Allocation* find_allocation(const Memory& memory, const void* address) {
  const Memory::value_type* const found = find_placed(memory, address);
  return found != nullptr ? &found->second : nullptr;
}

const Allocation* find_pinned(const State& state, const void* address) {
  const Allocation* const found = find_allocation(state.host_memory, address);
  return found != nullptr ? found : find_allocation(state.registered_memory, address);
}

cudaError_t register_memory(const Call& call, const void* address, std::size_t bytes, unsigned flags) {
  constexpr unsigned kKnownFlags = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
  if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  if (address == nullptr || bytes == 0 || (flags & ~kKnownFlags) != 0) return cudaErrorInvalidValue;
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(address);
  if (bytes - 1 > UINTPTR_MAX - first) return cudaErrorInvalidValue;
  const auto* const last = reinterpret_cast<const void*>(first + (bytes - 1));
  if (find_pinned(call.state, address) != nullptr || find_pinned(call.state, last) != nullptr) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  call.state.registered_memory.emplace(address, Allocation{bytes, call.thread.device});
  return cudaSuccess;
}

}  // namespace

std::optional<int> device_of_memory(const State& state, const void* address) {
  if (const Allocation* const found = find_allocation(state.device_memory, address); found != nullptr) {
    return found->device;
  }
  const std::shared_ptr<const Block> of_graph = find_graph_memory(state, address);
  return of_graph != nullptr ? std::optional<int>(of_graph->device) : std::nullopt;
}

std::optional<int> device_of_known(const State& state, const void* address) {
  const Allocation* const pinned = find_pinned(state, address);
  return pinned != nullptr ? std::optional<int>(pinned->device) : device_of_memory(state, address);
}

namespace {

cudaError_t read_attributes(const Call& call, cudaPointerAttributes* out, const void* pointer) {
  if (out == nullptr) return cudaErrorInvalidValue;
  std::memset(static_cast<void*>(out), 0, sizeof *out);
  // Memory of an allocation node is known while a launch has allocated it (docs/semantics.md).
  const std::shared_ptr<const Block> of_graph = find_graph_memory(call.state, pointer);
  const bool is_known = of_graph == nullptr || call.state.graph_memory.live.count(of_graph->address) != 0;
  const std::optional<int> device = is_known ? device_of_memory(call.state, pointer) : std::nullopt;
  const Allocation* host = find_pinned(call.state, pointer);
  const bool is_managed = device && memory_kind(call.state, pointer) == MemoryKind::kManaged;
  out->type = is_managed        ? cudaMemoryTypeManaged
              : device          ? cudaMemoryTypeDevice
              : host != nullptr ? cudaMemoryTypeHost
                                : cudaMemoryTypeUnregistered;
  out->device = host != nullptr ? host->device : device.value_or(cudaInvalidDeviceId);
  // Pinned memory is mapped at the same address on the device.
  if (out->type != cudaMemoryTypeUnregistered) out->devicePointer = const_cast<void*>(pointer);
  if (out->type != cudaMemoryTypeDevice) out->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

}  // namespace

cudaError_t read_attribute(const Call& call, const void* address, CUpointer_attribute attribute, void* out) {
  if (out == nullptr) return cudaErrorInvalidValue;
  const auto put = [out](const auto& value) {
    std::memcpy(out, &value, sizeof value);
    return cudaSuccess;
  };
  const Memory::value_type* found = nullptr;
  for (const Memory* memory : {&call.state.device_memory, &call.state.host_memory, &call.state.registered_memory}) {
    if (found == nullptr) found = find_placed(*memory, address);
  }
  cudaPointerAttributes memory;
  if (const cudaError_t error = read_attributes(call, &memory, address); error != cudaSuccess) return error;
  const bool is_managed = memory.type == cudaMemoryTypeManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(found != nullptr ? found->second.id : decltype(found->second.id){});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(found != nullptr ? found->first : decltype(found->first){});
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(found != nullptr ? found->second.bytes : std::size_t{0});
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(is_managed ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(memory.device);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(memory.type == cudaMemoryTypeDevice || is_managed ? static_cast<unsigned>(CU_MEMORYTYPE_DEVICE)
                 : memory.type == cudaMemoryTypeHost               ? static_cast<unsigned>(CU_MEMORYTYPE_HOST)
                                                                   : 0u);
    default:
      return cudaErrorNotSupported;
  }
}

MemoryKind memory_kind(const State& state, const void* address) {
  if (find_pinned(state, address) != nullptr) return MemoryKind::kPinned;
  for (const Memory* memory : {&state.device_memory, &state.quarantine.blocks()}) {
    const Allocation* const found = find_allocation(*memory, address);
    if (found != nullptr) return found->is_managed ? MemoryKind::kManaged : MemoryKind::kDevice;
  }
  return find_graph_memory(state, address) != nullptr ? MemoryKind::kDevice : MemoryKind::kPageable;
}

bool is_pageable(const State& state, const void* address) {
  return memory_kind(state, address) == MemoryKind::kPageable;
}

unsigned long long allocation_id(const State& state, const void* address) {
  const Allocation* found = find_pinned(state, address);
  if (found == nullptr) found = find_allocation(state.device_memory, address);
  if (found == nullptr && is_pageable(state, address)) return kPageableId;
  return found != nullptr && found->block == nullptr ? found->id : 0;
}

bool is_other(const State& state, const void* address, unsigned long long id) {
  const unsigned long long now = id != 0 ? allocation_id(state, address) : 0;
  return now != 0 && now != kPageableId && now != id;
}

bool is_freed(const State& state, const void* address) {
  return find_allocation(state.quarantine.blocks(), address) != nullptr && find_pinned(state, address) == nullptr &&
         find_allocation(state.device_memory, address) == nullptr;
}

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaMalloc(void** devPtr, size_t size) {
  return enter(Function::kMalloc,
               [&](const Call& call) { return allocate(call, call.state.device_memory, devPtr, size); });
}

cudaError_t CUDARTAPI cudaMallocManaged(void** devPtr, size_t size, unsigned int flags) {
  return enter(Function::kMallocManaged, [&](const Call& call) {
    if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) return cudaErrorInvalidValue;
    return allocate(call, call.state.device_memory, devPtr, size, /*is_managed=*/true);
  });
}

cudaError_t CUDARTAPI cudaMallocPitch(void** devPtr, size_t* pitch, size_t width, size_t height) {
  return enter(Function::kMallocPitch, [&](const Call& call) {
    return allocate_rows(call, devPtr, pitch, {width, height, 1});
  });
}

cudaError_t CUDARTAPI cudaMalloc3D(struct cudaPitchedPtr* pitchedDevPtr, struct cudaExtent extent) {
  return enter(Function::kMalloc3D, [&](const Call& call) {
    if (pitchedDevPtr == nullptr) return cudaErrorInvalidValue;
    void* address = nullptr;
    std::size_t pitch = 0;
    const cudaError_t error = allocate_rows(call, &address, &pitch, extent);
    if (error == cudaSuccess) *pitchedDevPtr = {address, pitch, extent.width, extent.height};
    return error;
  });
}

cudaError_t CUDARTAPI cudaFree(void* devPtr) {
  return enter(Function::kFree, [&](const Call& call) { return release(call, call.state.device_memory, devPtr); });
}

cudaError_t CUDARTAPI cudaMallocHost(void** ptr, size_t size) {
  return enter(Function::kMallocHost,
               [&](const Call& call) { return allocate(call, call.state.host_memory, ptr, size); });
}

cudaError_t CUDARTAPI cudaHostAlloc(void** pHost, size_t size, unsigned int flags) {
  return enter(Function::kHostAlloc, [&](const Call& call) {
    constexpr unsigned kKnownFlags = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if ((flags & ~kKnownFlags) != 0) return cudaErrorInvalidValue;
    return allocate(call, call.state.host_memory, pHost, size);
  });
}

cudaError_t CUDARTAPI cudaFreeHost(void* ptr) {
  return enter(Function::kFreeHost, [&](const Call& call) { return release(call, call.state.host_memory, ptr); });
}

cudaError_t CUDARTAPI cudaHostRegister(void* ptr, size_t size, unsigned int flags) {
  return enter(Function::kHostRegister, [&](const Call& call) { return register_memory(call, ptr, size, flags); });
}

cudaError_t CUDARTAPI cudaHostUnregister(void* ptr) {
  return enter(Function::kHostUnregister, [&](const Call& call) {
    if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
    finish_device(call.state, kAllDevices);
    const bool was_registered = call.state.registered_memory.erase(ptr) != 0;
    return was_registered ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* ptr) {
  return enter(Function::kPointerGetAttributes,
               [&](const Call& call) { return read_attributes(call, attributes, ptr); });
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t* free, size_t* total) {
  return enter(Function::kMemGetInfo, [&](const Call& call) {
    if (free == nullptr || total == nullptr) return cudaErrorInvalidValue;
    std::size_t used = 0;
    for (const auto& [address, allocation] : call.state.device_memory) {
      if (allocation.device == call.thread.device) used += allocation.bytes;
    }
    used += call.state.graph_memory.usage[call.thread.device].current;
    *total = kDeviceMemoryBytes;
    *free = used < kDeviceMemoryBytes ? kDeviceMemoryBytes - used : 0;
    return cudaSuccess;
  });
}

}  // extern "C"
