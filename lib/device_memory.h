// Memory that launches of graphs use beside the caller's: of head nodes and their rows, and of values that kernels read
// through pointers.
//
// When the last launch that uses it is over, only the runtime knows: so memory is held by a user object of the graph
// (fact 28), and comes back when that is destroyed, perhaps on a thread of the driver, which may make no CUDA call. And
// to free device memory waits for all work of the device, which may wait for what the caller does next. So memory that
// comes back is kept for whoever wants some next, and freed where somebody may wait.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "errors.h"
#include "mutex.h"

namespace graphcache {

// One for the process, since a graph's launches may outlive the cache. No CUDA call is made under its lock, which the
// threads of the driver take, too. Thread-safe.
class DeviceMemory {
 public:
  enum class Kind {
    kDevice,
    kHost,  // Page-locked, which the device can write.
  };

  struct Block {
    void* at = nullptr;
    std::size_t bytes = 0;
    Kind kind = Kind::kDevice;
    int device = 0;
    unsigned long long context = 0;  // The id of the device's, whose end is that of the memory.
    bool in_use = false;  // By work that nobody knows the end of: it is freed, which waits, and not used again.
    Block* next = nullptr;
  };
  struct GiveBack {
    void operator()(Block* block) const noexcept { of_process().give(block); }
  };
  // Comes back when it is destroyed.
  using Owner = std::unique_ptr<Block, GiveBack>;

  static DeviceMemory& of_process();

  // So many bytes or more, aligned to 16 at least. The device is the current one.
  CallResult take(Kind kind, int device, std::size_t bytes, Owner* out) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees what has come back of the device's. Waits for it.
  void trim(int device) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void give(Block* block) noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  template <class Wanted>
  Block* remove(const Wanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  Block* free_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// Makes the graph, its clones, and what is instantiated or updated from them keep `what` until they are gone and their
// launches are over. Its destructor makes no CUDA call, and may run on any thread. Destroys it at once after a failure.
template <class T>
CallResult keep_alive(cudaGraph_t graph, std::unique_ptr<T> what) {
  cudaUserObject_t object = nullptr;
  const auto destroy = [](void* held) { delete static_cast<T*>(held); };
  cudaError_t error = cudaUserObjectCreate(&object, what.get(), destroy, 1, cudaUserObjectNoDestructorSync);
  if (error != cudaSuccess) return {"cudaUserObjectCreate", error};
  what.release();
  error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (error != cudaSuccess && !is_fatal(error)) cudaUserObjectRelease(object, 1);
  return {"cudaGraphRetainUserObject", error};
}

}  // namespace graphcache
