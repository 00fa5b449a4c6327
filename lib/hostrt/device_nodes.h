// Device-updatable nodes: what device code has written into them, and when that is lost. All functions expect the state
// to be locked.
//
// A grid that the device wrote is lost when the executable is launched on a stream of another priority than before.
// Then gridDim still reads the written grid, but as many blocks run as the host has set, until the device writes the
// grid again. Under cudaGraphInstantiateFlagUseNodePriority no grid is lost (docs/semantics.md).
//
// Where execution is deferred, the device's writes in the first launch may be refused or lost if the upload may still
// be going on. The upload of a graph without forks keeps the order of its stream. That of any other graph is over when
// the host has waited for it.

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
  NodeParams params;  // of a kernel, as the device has left them
  dim3 host_grid;     // as it was captured, or as the host has patched it since
};

// The device-updatable nodes of an executable and of its child graphs.
struct DeviceNodes {
  std::unordered_map<cudaGraphNode_t, DeviceNode> all;
  bool uses_node_priority = false;
  bool has_forks = false;
  bool is_launched = false;
  enum class Upload { kNone, kGoingOn, kOver } upload = Upload::kNone;

  std::optional<int> priority;  // of the stream of the last launch that began
  // What becomes of the device's writes in that launch.
  enum class Writes { kDone, kRefused, kLost } writes = Writes::kDone;
  NodeParams lost;  // takes the writes that are lost
};

// An upload that the host has not waited for.
struct PendingUpload {
  std::weak_ptr<DeviceNodes> nodes;
  std::uint64_t call;  // the number of the call
  unsigned long long stream;
  int device;
  bool is_blocking;
};

// Whether nodes of the graph may run beside each other. The updater, which runs before all others, does not count.
bool has_forks(const Graph& graph);

// What a node runs: what device code has left there, or else what the program has.
const NodeParams& params_to_run(const Program& program, const ProgramNode& node);

// Where device code writes the parameters of a node of the running graph; null if the write is refused.
KernelParams* node_to_write(State& state, cudaGraphDeviceNode_t node);
void write_grid(KernelParams& params, const dim3& grid);

// Follows a patch by the host.
void patch_device_node(DeviceNodes& nodes, cudaGraphNode_t node, const KernelParams& params);

// Follows a call of cudaGraphUpload.
void upload(State& state, const Stream& stream, const std::shared_ptr<DeviceNodes>& nodes);

// The host has waited for the event, the stream or the device.
void end_uploads(State& state, const Event& event);
void end_uploads(State& state, const Stream& stream);
void end_uploads(State& state, int device);

// A launch, when it is enqueued and when it begins.
LaunchStart make_start(const State& state, const Stream& stream, const std::shared_ptr<DeviceNodes>& nodes);
void run_start(State& state, const LaunchStart& start);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_DEVICE_NODES_H_
