#include "device_nodes.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "library.h"
#include "schedule.h"
#include "state.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

bool updates_nodes(const Node& node) {
  const auto* kernel = std::get_if<KernelParams>(&node.params);
  return kernel != nullptr && is_updater(kernel->kernel->function);
}

template <typename Covers>
void end_uploads_if(State& state, Covers&& covers) {
  std::erase_if(state.uploads, [&](const PendingUpload& upload) {
    const std::shared_ptr<DeviceNodes> nodes = upload.nodes.lock();
    if (nodes != nullptr && !covers(upload)) return false;
    if (nodes != nullptr) nodes->upload = DeviceNodes::Upload::kOver;
    return true;
  });
}

}  // namespace

bool has_forks(const Graph& graph) {
  std::ptrdiff_t roots = 0;
  for (const Node* node : graph.nodes) {
    if (updates_nodes(*node)) continue;
    const auto before = std::count_if(node->dependencies.begin(), node->dependencies.end(),
                                      [](const Edge& edge) { return !updates_nodes(*edge.from); });
    if (before == 0) ++roots;
    if (before > 1 || roots > 1 || node->dependents.size() > 1) return true;
  }
  return false;
}

const NodeParams& params_to_run(const Program& program, const ProgramNode& node) {
  const auto& updated = program.device_nodes->all;
  if (updated.empty()) return node.params;
  const auto found = updated.find(node.base_node);
  return found == updated.end() ? node.params : found->second.params;
}

KernelParams* node_to_write(State& state, cudaGraphDeviceNode_t node) {
  DeviceNodes& nodes = *state.running->device_nodes;
  const auto found = nodes.all.find(reinterpret_cast<cudaGraphNode_t>(node));
  if (found == nodes.all.end()) return nullptr;
  auto& params = std::get<KernelParams>(found->second.params);
  if (params.device != current_device()) throw IllegalAddress{};  // as on a real device
  switch (nodes.writes) {
    case DeviceNodes::Writes::kDone:
      return &params;
    case DeviceNodes::Writes::kRefused:
      return nullptr;
    case DeviceNodes::Writes::kLost:
      nodes.lost = params;
      return &std::get<KernelParams>(nodes.lost);
  }
  return nullptr;
}

void write_grid(KernelParams& params, const dim3& grid) {
  params.grid = grid;
  params.blocks.reset();
}

void patch_device_node(DeviceNodes& nodes, cudaGraphNode_t node, const KernelParams& params) {
  const auto found = nodes.all.find(node);
  if (found != nodes.all.end()) found->second = {params, params.grid};
}

void upload(State& state, const Stream& stream, const std::shared_ptr<DeviceNodes>& nodes) {
  if (nodes->all.empty()) return;
  nodes->upload = nodes->has_forks ? DeviceNodes::Upload::kGoingOn : DeviceNodes::Upload::kOver;
  if (!nodes->has_forks) return;
  end_uploads_if(state, [](const PendingUpload&) { return false; });  // forgets uploads of destroyed executables
  state.uploads.push_back({nodes, stream.id, stream.device, stream.is_blocking()});
}

// The legacy stream includes the blocking streams.
void end_uploads(State& state, const Stream& stream) {
  end_uploads_if(state, [&](const PendingUpload& upload) {
    return upload.stream == stream.id || (stream.is_legacy && upload.is_blocking && upload.device == stream.device);
  });
}

void end_uploads(State& state, int device) {
  end_uploads_if(state, [&](const PendingUpload& upload) { return device == kAllDevices || upload.device == device; });
}

LaunchStart make_start(const State& state, const Stream& stream, const std::shared_ptr<DeviceNodes>& nodes) {
  const bool is_first = !std::exchange(nodes->is_launched, true);
  // Its nodes wait for their parts of the upload.
  const bool is_over = std::exchange(nodes->upload, DeviceNodes::Upload::kOver) == DeviceNodes::Upload::kOver;
  return {nodes, stream.priority, state.deferred && is_first && !is_over};
}

void run_start(State& state, const LaunchStart& start) {
  using Writes = DeviceNodes::Writes;
  DeviceNodes& nodes = *start.nodes;
  constexpr Writes kMayBe[] = {Writes::kDone, Writes::kDone, Writes::kRefused, Writes::kLost};
  nodes.writes = start.is_early ? kMayBe[draw(state, std::size(kMayBe))] : Writes::kDone;
  const int before = std::exchange(nodes.priority, start.priority).value_or(start.priority);
  if (before == start.priority || nodes.uses_node_priority) return;
  for (auto& [handle, node] : nodes.all) std::get<KernelParams>(node.params).blocks = node.host_grid;
}

}  // namespace graphcache::hostrt
