// The updater's kernels (updater.cu), and the check whether they may write the grids of a kernel's nodes.
#pragma once

#include <absl/base/thread_annotations.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <unordered_map>

#include "cuda/device_code.h"
#include "cuda/errors.h"
#include "cuda/mutex.h"

namespace graphcache {

// The updater's kernels. Each cache has one Updater. Thread-safe.
class Updater {
 public:
  Updater();

  // A failure is permanent in a context: what the driver has refused once is not loaded again.
  CallResult find(const char* name, cudaKernel_t* kernel, std::shared_ptr<void>* code) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (failed_.error == cudaSuccess) failed_ = code_.find(name, kernel, code);
    return failed_;
  }
  // Drops the handles, because their context is lost.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    code_.abandon();
    MutexLock lock(mutex_);
    failed_ = {};
  }

 private:
  DeviceCode code_;
  Mutex mutex_;
  CallResult failed_ ABSL_GUARDED_BY(mutex_);
};

// Whether the device can set the grid of a kernel node. It cannot for kernels with clusters, cooperative kernels, and
// kernels that use dynamic parallelism: without any error, other blocks would run than were set (docs/semantics.md).
// `plain` is updater::kPlainName. `probed` caches the results for the functions of one graph.
using Probed = std::unordered_map<const void*, bool>;
CallResult can_set_grid(cudaGraphNode_t node, cudaKernel_t plain, Probed* probed, bool* can);

}  // namespace graphcache
