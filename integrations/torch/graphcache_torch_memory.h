// What captures leave in PyTorch's allocator. For graphcache_torch_state.h, not for users.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "graphcache_torch_versions.h"

namespace graphcache {
namespace torch_detail {

// A pool of the allocator: a new one, or one that PyTorch has made, which this object keeps. The end of a MemPool
// throws if some thread is inside torch.cuda.use_mem_pool, which counts as a capture. That of this object does not: the
// memory then goes back to the device at the next torch.cuda.empty_cache(), or when memory runs out.
class Pool {
 public:
  explicit Pool(c10::DeviceIndex device, PoolId id = MemPool::graph_pool_handle()) : device_(device), id_(id) {
    c10::cuda::CUDACachingAllocator::createOrIncrefPool(device_, id_);
  }
  ~Pool() {
    try {
      c10::cuda::CUDACachingAllocator::releasePool(device_, id_);
      c10::cuda::CUDACachingAllocator::emptyCache(id_);
    } catch (const std::exception&) {
    }
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  PoolId id() const { return id_; }

 private:
  const c10::DeviceIndex device_;
  const PoolId id_;
};

// The memory of a pool at one time.
class PoolMemory {
 public:
  PoolMemory() = default;
  explicit PoolMemory(const Pool& pool) {
    for (const auto& segment : segments_of(pool.id())) {
      ends_[segment.address] = segment.address + segment.total_size;
      std::size_t address = segment.address;
      for (const auto& block : segment.blocks) {
        if (block.allocated) in_use_[address] = block.size;
        address += block.size;
      }
    }
  }

  bool contains(const void* pointer) const {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    const auto next = ends_.upper_bound(address);
    return next != ends_.begin() && address < std::prev(next)->second;
  }

  // Size in bytes of the blocks in use by address.
  const std::map<std::uintptr_t, std::size_t>& in_use() const { return in_use_; }

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_;  // ends of the segments by begin
  std::map<std::uintptr_t, std::size_t> in_use_;
};

// Workspaces of cuBLAS and cuBLASLt: memory that PyTorch allocates at the first call of a thread on a stream, and keeps
// for later calls. One that a graph uses must belong to that graph: launches elsewhere may run at the same time, and
// the memory comes from the pool of the capture.
class Workspaces {
 public:
  // PyTorch finds these from now on, and no others; this object has what it found before.
  void swap_in() {
    for_each_map([this](std::size_t i, WorkspaceMap& map) { map.swap(maps_[i]); });
  }

  // The reverse. What is not of the capture was made by other threads meanwhile, and stays with PyTorch.
  void swap_out(const std::function<bool(const void*)>& is_of_capture) {
    for_each_map([&](std::size_t i, WorkspaceMap& map) {
      map.swap(maps_[i]);
      for (auto one = maps_[i].begin(); one != maps_[i].end();) {
        const auto next = std::next(one);
        if (!is_of_capture(data_of(one->second).get())) map.insert(maps_[i].extract(one));
        one = next;
      }
    });
  }

  static bool are_empty() {
    bool empty = true;
    for_each_map([&](std::size_t, WorkspaceMap& map) { empty = empty && map.empty(); });
    return empty;
  }

  // Whether one of those that PyTorch finds now begins there.
  static bool has(std::uintptr_t address) {
    bool found = false;
    for_each_map([&](std::size_t, WorkspaceMap& map) {
      for (const auto& [key, value] : map) {
        found = found || reinterpret_cast<std::uintptr_t>(data_of(value).get()) == address;
      }
    });
    return found;
  }

 private:
  static const c10::DataPtr& data_of(const c10::DataPtr& data) { return data; }
  template <class Size>
  static const c10::DataPtr& data_of(const std::pair<c10::DataPtr, Size>& data) {
    return data.first;
  }

  std::array<WorkspaceMap, 2> maps_;
};

// The stream that PyTorch sees in captures of one cache. The allocator refers to the stream of its memory as long as it
// has that memory, so these streams are not destroyed, but used by later caches.
class CaptureStream {
 public:
  explicit CaptureStream(c10::DeviceIndex device) : device_(device) {
    const std::lock_guard lock(mutex());
    std::vector<cudaStream_t>& free = free_streams()[device];
    if (free.empty()) {
      const c10::cuda::CUDAGuard guard(device);
      C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    } else {
      stream_ = free.back();
      free.pop_back();
    }
  }
  ~CaptureStream() {
    const std::lock_guard lock(mutex());
    free_streams()[device_].push_back(stream_);
  }
  CaptureStream(const CaptureStream&) = delete;
  CaptureStream& operator=(const CaptureStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<c10::DeviceIndex, std::vector<cudaStream_t>>& free_streams() {
    static auto* const streams = new std::map<c10::DeviceIndex, std::vector<cudaStream_t>>;
    return *streams;
  }

  const c10::DeviceIndex device_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace torch_detail
}  // namespace graphcache
