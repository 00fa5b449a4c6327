// Device-updatable nodes: the values that device code has written into them, and when these are lost. All functions
// expect the state to be locked.
//
// A grid written by the device is lost when the executable is launched on a stream of another priority than before.
// gridDim still reads the written grid, but the number of blocks is the one that the host has set, until the device
// writes the grid again. With cudaGraphInstantiateFlagUseNodePriority no grid is lost (docs/semantics.md).
//
// In deferred execution, the device's writes in the first launch may be refused or lost if the upload may not be
// complete. The upload of a graph without forks is ordered on its stream. The upload of any other graph is complete
// only once the host has waited for it.

#ifndef GRAPHCACHE_LIB_HOSTRT_DEVICE_NODES_H_
#define GRAPHCACHE_LIB_HOSTRT_DEVICE_NODES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "objects.h"

namespace graphcache::hostrt {

struct State;

struct DeviceNode {
  NodeParams params;  // kernel parameters as the device last wrote them
  dim3 host_grid;     // grid as captured, or as the host last patched it
};

// The device-updatable nodes of an executable and of its child graphs.
struct DeviceNodes {
  std::unordered_map<cudaGraphNode_t, DeviceNode> all;
  bool uses_node_priority = false;
  bool has_forks = false;
  bool is_launched = false;
  enum class Upload { kNone, kGoingOn, kOver } upload = Upload::kNone;

  std::optional<int> priority;  // priority of the stream of the last launch that began
  // What happens to the device's writes in that launch.
  enum class Writes { kDone, kRefused, kLost } writes = Writes::kDone;
  NodeParams lost;  // receives the writes that are lost
};

// An upload that the host has not yet waited for.
struct PendingUpload {
  std::weak_ptr<DeviceNodes> nodes;
  unsigned long long stream;
  int device;
  bool is_blocking;
};

// Whether nodes of the graph may run concurrently. The updater node does not count, because it runs before all others.
bool has_forks(const Graph& graph);

// The parameters a node runs with: those that device code wrote, else those of the program.
const NodeParams& params_to_run(const Program& program, const ProgramNode& node);

// The parameters of a node of the running graph, for device code to write; null if the write is refused.
KernelParams* node_to_write(State& state, cudaGraphDeviceNode_t node);
void write_grid(KernelParams& params, const dim3& grid);

// Called after the host has patched the node.
void patch_device_node(DeviceNodes& nodes, cudaGraphNode_t node, const KernelParams& params);

// Called by cudaGraphUpload.
void upload(State& state, const Stream& stream, const std::shared_ptr<DeviceNodes>& nodes);

// Call one of these when the host has waited for the stream or the device. An event does not show the end of an upload.
void end_uploads(State& state, const Stream& stream);
void end_uploads(State& state, int device);

// make_start() is called when a launch is enqueued, run_start() when it begins.
LaunchStart make_start(const State& state, const Stream& stream, const std::shared_ptr<DeviceNodes>& nodes);
void run_start(State& state, const LaunchStart& start);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_DEVICE_NODES_H_
