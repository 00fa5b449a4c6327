// An executable and what it is programmed with: bringing it to other values, and launching it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "graph.h"
#include "graphcache/cache.h"

namespace graphcache {

// Which runtime call was made last, and what it returned.
struct CallResult {
  const char* call = "";
  cudaError_t error = cudaSuccess;
  bool latches = true;  // Whether its errors stand in the last-error slot: those of the driver do not.
};

// Not thread-safe: whoever uses it holds its entry's lock from the patch to the launch (law 6).
class Executable {
 public:
  // Instantiates `base` of `device`, which stays as long as the executable: only its node handles can patch it (fact
  // 12). On failure `base` is left whole.
  static cudaError_t instantiate(Template& base, unsigned long long flags, int device,
                                 std::unique_ptr<Executable>* out);

  bool holds(const detail::Call& call) const {
    return call.values_size == 0 || std::memcmp(base_.values.data(), call.values, call.values_size) == 0;
  }

  // Brings the slot nodes to the call's values, compared bit by bit, and adds the number of those that were patched to
  // `patched_nodes`. Later launches only are affected (fact 14). After an error some nodes hold new values and some old
  // ones: the executable must not be launched again.
  CallResult patch(const detail::Call& call, std::size_t* patched_nodes);

  cudaError_t launch(cudaStream_t stream) { return cudaGraphLaunch(exec_.get(), stream); }

  std::size_t node_count() const { return base_.node_count; }
  std::size_t slot_node_count() const { return base_.slot_nodes.size(); }
  std::size_t estimated_device_bytes() const { return base_.node_count * kExecutableBytesPerNode; }

  // Drops the handles without destroying what they stand for.
  void abandon();

 private:
  Executable(Template base, GraphExec exec, int device)
      : device_(device), base_(std::move(base)), exec_(std::move(exec)) {}

  // `driver_usable` is found out by the first node that asks, and again after one that went by the runtime.
  CallResult set_node(SlotNode& node, std::optional<bool>& driver_usable);

  const int device_;
  Template base_;
  GraphExec exec_;  // Destroyed before its base (law 8).
};

}  // namespace graphcache
