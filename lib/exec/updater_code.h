// The updater's kernels (updater.cu), and the check whether they may write the nodes of a kernel.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <unordered_map>

#include "cuda/device_code.h"
#include "cuda/errors.h"
#include "cuda/mutex.h"

namespace graphcache {

// The updater's kernels, one for each size of values, and a kernel that does nothing. Each cache has one Updater.
// Thread-safe.
class Updater {
 public:
  enum Kernel : std::size_t { kSmall, kLarge, kHuge, kPlain, kCount };
  using Kernels = DeviceCode<kCount>::Kernels;

  Updater();

  // A failure is permanent in a context: what the driver has refused once is not loaded again.
  CallResult load(Kernels* out) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (failed_.error == cudaSuccess) failed_ = code_.load(out);
    return failed_;
  }
  std::shared_ptr<void> code() { return code_.code(); }
  // Whether the device can set the grid of a kernel node. REQUIRES: load() was called. It cannot for kernels with
  // clusters, cooperative kernels, and kernels that use dynamic parallelism: without any error, other blocks would run
  // than were set (docs/semantics.md). `probed` caches the results for the functions of one graph.
  using Probed = std::unordered_map<const void*, bool>;
  CallResult can_set_grid(cudaGraphNode_t node, Probed* probed, bool* can);
  // Drops the handles, because their context is lost.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    code_.abandon();
    MutexLock lock(mutex_);
    failed_ = {};
  }

 private:
  CallResult probe(const CUDA_KERNEL_NODE_PARAMS& params, bool* can);

  DeviceCode<kCount> code_;
  Mutex mutex_;
  CallResult failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace graphcache
