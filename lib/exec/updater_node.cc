#include "exec/updater_node.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "cuda/compat.h"
#include "cuda/driver.h"

namespace graphcache {
namespace {

constexpr char kSetAttribute[] = "cudaGraphKernelNodeSetAttribute, by the driver";

bool is_of_grid(const updater::Update& update) { return update.offset == updater::kGrid; }

// The pieces of the nodes that the device writes, and the slots that go into each.
struct Pieces {
  std::vector<updater::Piece> all;
  std::vector<updater::Update> updates;

  // Adds a node's pieces and the updates that go into them: for sets its grid, if wanted, and all of its arguments.
  // Returns the number of pieces.
  std::uint32_t add(cudaGraphDeviceNode_t node, const std::vector<updater::Update>& of_node, bool grid,
                    unsigned argument_bytes) {
    const std::size_t before = all.size();
    const auto begin = [&](unsigned offset, unsigned size) {
      all.push_back({node, offset, size, static_cast<unsigned>(updates.size()), 0});
    };
    const auto follow = [&](const updater::Update& update) {
      updates.push_back(update);
      ++all.back().count;
    };
    if (grid) begin(updater::kGrid, sizeof(dim3));
    unsigned end = argument_bytes;
    for (const updater::Update& update : of_node) {
      if (!is_of_grid(update)) {
        end = std::max(end, update.offset + update.size);
        continue;
      }
      if (!grid) begin(updater::kGrid, sizeof(dim3));
      follow(update);
    }
    for (unsigned at = 0; at < end; at += updater::kPiece) {
      const unsigned to = std::min(end, at + updater::kPiece);
      bool begun = at < argument_bytes;
      if (begun) begin(at, std::min(to, argument_bytes) - at);
      for (const updater::Update& update : of_node) {
        const unsigned from = std::max(at, update.offset), until = std::min(to, update.offset + update.size);
        if (is_of_grid(update) || from >= until) continue;
        if (!std::exchange(begun, true)) begin(at, 0);
        follow({update.source + (from - update.offset), from, until - from});
      }
    }
    return static_cast<std::uint32_t>(all.size() - before);
  }
};

// The position of the updater node: behind one node or none, and before others.
struct Place {
  cudaGraphNode_t behind = nullptr;
  std::vector<cudaGraphNode_t> before;
};

CallResult dependencies_of(cudaGraphNode_t node, std::vector<cudaGraphNode_t>* out) {
  std::size_t count = 0;
  cudaError_t error = node_dependencies(node, false, nullptr, nullptr, &count);
  out->resize(count);
  std::vector<cudaGraphEdgeData> edges(count);
  if (error == cudaSuccess && count != 0) error = node_dependencies(node, false, out->data(), edges.data(), &count);
  return {"cudaGraphNodeGetDependencies", error};
}

// All nodes that the updater writes must wait for it. If a graph begins with one root and reaches all written nodes
// through one other node, the updater node stands behind the root and before that node. It then runs beside the nodes
// in between, which hides its time. Otherwise it stands before all roots, because it would cost more as another root
// (test/bench/results/2026-11-24-updater-node.md).
CallResult find_place(const Template& graph, const std::vector<ParameterTable::Node>& written, Place* out) {
  std::size_t count = 0;
  cudaError_t error = cudaGraphGetRootNodes(graph.graph.get(), nullptr, &count);
  out->before.resize(count);
  if (error == cudaSuccess) error = cudaGraphGetRootNodes(graph.graph.get(), out->before.data(), &count);
  if (error != cudaSuccess || count != 1) return {"cudaGraphGetRootNodes", error};
  const cudaGraphNode_t root = out->before.front();
  const std::uint32_t first = written.front().index;
  if (graph.nodes[first] == root) return {};
  std::unordered_set<cudaGraphNode_t> behind_first = {graph.nodes[first]};
  std::vector<cudaGraphNode_t> dependencies;
  auto next = written.begin();
  for (std::uint32_t i = first; i <= written.back().index; ++i) {
    const cudaGraphNode_t node = graph.nodes[i];
    const CallResult read = dependencies_of(node, &dependencies);
    if (read.error != cudaSuccess) return read;
    const auto is_behind = [&](cudaGraphNode_t before) { return behind_first.contains(before); };
    if (i == first) {
      // There is nothing in between.
      if (std::find(dependencies.begin(), dependencies.end(), root) != dependencies.end()) return {};
    } else if (std::any_of(dependencies.begin(), dependencies.end(), is_behind)) {
      behind_first.insert(node);
    }
    if (next->index != i) continue;
    if (!is_behind(node)) return {};
    ++next;
  }
  *out = {root, {graph.nodes[first]}};
  return {};
}

}  // namespace

std::size_t UpdaterNode::writable_nodes(const Slots& slots) {
  return static_cast<std::size_t>(std::count_if(slots.nodes.begin(), slots.nodes.end(),
                                                [&](const SlotNode& node) { return device_can_write(slots, node); }));
}

std::size_t UpdaterNode::estimated_device_bytes(const Content& content) {
  const auto pieces_of = [](const NodeContent& node) {
    return 1 + (node.size + updater::kPiece - 1) / updater::kPiece;
  };
  const std::size_t pieces =
      std::accumulate(content.nodes.begin(), content.nodes.end(), content.slots.bindings.size(),
                      [&](std::size_t sum, const NodeContent& node) { return sum + pieces_of(node); });
  constexpr std::size_t kPieceBytes = sizeof(updater::Piece) + sizeof(unsigned) + updater::kPiece + 1;
  const std::size_t plan = pieces * kPieceBytes + 2 * content.slots.bindings.size() * sizeof(updater::Update) +
                           sizeof(updater::Written) + 4 * updater::kSetAlignment;
  return ParameterTable::kBlock + DeviceMemory::taken(plan);
}

// Its launches are over.
UpdaterNode::~UpdaterNode() {
  if (error_ == nullptr) return;
  if (const cudaError_t error = take_error(); error != cudaSuccess) memory_->tell_late(error);
}

// Finds the value's offset in the kernel's parameter, which is `residue` modulo kUnit. A slot that many nodes hold is
// passed once for each residue.
bool UpdaterNode::find_source(const Binding& binding, bool grid, std::uint32_t residue, std::uint32_t* at) {
  for (const Source& source : sources_) {
    if (source.binding.is_of(binding) && source.is_grid == grid && source.at % updater::kUnit == residue) {
      *at = source.at;
      return true;
    }
  }
  const auto begin = static_cast<std::uint32_t>(detail::align_up(size_, updater::kUnit)) + residue;
  if (binding.size > updater::kHuge || begin > updater::kHuge - binding.size) return false;
  sources_.push_back({binding, begin, grid});
  size_ = begin + binding.size;
  *at = begin;
  return true;
}

// Returns false if the host must set the node.
bool UpdaterNode::plan_slots(const Slots& slots, const SlotNode& node, std::vector<updater::Update>* updates) {
  const std::size_t before = updates->size();
  for (std::uint32_t i = 0; i < node.binding_count; ++i) {
    const Binding& binding = slots.bindings[node.first_binding + i];
    const bool grid = is_grid(node, binding);
    std::size_t offset = updater::kGrid, size = binding.size;
    bool known = driver().function_param_info != nullptr;
    if (known && !grid) {
      const std::uint32_t argument = argument_of(slots, node, binding);
      const std::size_t inside = binding.target - slots.arguments[node.first_argument + argument];
      known = driver().function_param_info(node.function, argument, &offset, &size) == CUDA_SUCCESS &&
              inside + binding.size <= size;
      offset += inside;
      size = binding.size;
    }
    // Pieces begin inside a larger value. They need a source that is aligned as they are (updater.h).
    const bool is_cut = !grid && offset / updater::kPiece != (offset + binding.size - 1) / updater::kPiece;
    const auto residue = static_cast<std::uint32_t>(is_cut ? offset % updater::kUnit : 0);
    std::uint32_t source = 0;
    if (!known || size != binding.size || !find_source(binding, grid, residue, &source)) {
      updates->resize(before);
      return false;
    }
    updates->push_back({source, static_cast<unsigned>(offset), binding.size});
  }
  return true;
}

// The nodes that an updater node writes.
struct UpdaterNode::WrittenNodes {
  Pieces pieces;
  std::vector<ParameterTable::Node> nodes;
  CUlaunchAttributeValue highest;  // The highest priority among them.
};

CallResult UpdaterNode::add(Updater& updater, const Template& graph, std::shared_ptr<const Content> content,
                            bool with_table, std::unique_ptr<UpdaterNode>* out) {
  Updater::Kernels kernels = {};
  if (const CallResult loaded = updater.load(&kernels); loaded.error != cudaSuccess) return loaded;
  if (driver().set_kernel_attribute == nullptr) return {kSetAttribute, cudaErrorNotSupported, false};
  std::unique_ptr<UpdaterNode> made(new UpdaterNode(updater));
  WrittenNodes written;
  CallResult done = made->make_updatable(updater, graph, *content, with_table, &written);
  if (done.error != cudaSuccess) return done;
  Place place;
  done = find_place(graph, written.nodes, &place);
  if (done.error != cudaSuccess) return done;

  if (driver().current_context != nullptr) driver().current_context(&made->context_);
  made->take_kernel(kernels);
  made->holds_ = content->id;
  const Pieces& pieces = written.pieces;
  if (with_table) {
    made->table_ =
        std::make_unique<ParameterTable>(content, std::move(written.nodes), pieces.all, pieces.updates, made->memory_);
  }
  done = made->upload(pieces.all, pieces.updates);
  bool changed = false;
  if (done.error == cudaSuccess) done = made->write(content->values.data(), &changed);
  if (done.error == cudaSuccess) done = made->add_to(graph, place.behind, place.before, written.highest);
  if (done.error == cudaSuccess) *out = std::move(made);
  return done;
}

// Decides which nodes the device writes, and makes these device-updatable. Fails if there are none.
CallResult UpdaterNode::make_updatable(Updater& updater, const Template& graph, const Content& content, bool with_table,
                                       WrittenNodes* out) {
  const Slots& slots = content.slots;
  Updater::Probed probed;
  std::uint32_t slot = 0;
  std::memset(&out->highest, 0, sizeof out->highest);
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    const bool has_slots = slot < slots.nodes.size() && slots.nodes[slot].index == i;
    std::vector<updater::Update> updates;
    bool wanted = with_table && content.nodes[i].updatable;
    bool grid = with_table && content.nodes[i].grid_updatable;
    bool of_grid = false;
    if (has_slots) {
      const SlotNode& node = slots.nodes[slot];
      wanted = (wanted || !with_table) && device_can_write(slots, node) && plan_slots(slots, node, &updates);
      of_grid = std::any_of(updates.begin(), updates.end(), is_of_grid);
    }
    if (wanted && (grid || of_grid)) {
      const CallResult answer = updater.can_set_grid(graph.nodes[i], &probed, &grid);
      if (answer.error != cudaSuccess) return answer;
      wanted = grid || !of_grid;
    }
    if (has_slots) {
      if (!wanted) others_.push_back(slot);
      written_ += wanted ? 1 : 0;
      ++slot;
    }
    if (!wanted) continue;
    cudaGraphDeviceNode_t handle = nullptr;
    if (const CallResult made = make_updatable(graph.nodes[i], &handle, &out->highest); made.error != cudaSuccess) {
      return made;
    }
    const unsigned size = with_table ? content.nodes[i].size : 0;
    out->nodes.push_back({i, grid, out->pieces.add(handle, updates, with_table && grid, size)});
  }
  return {kSetAttribute, out->pieces.all.empty() ? cudaErrorNotSupported : cudaSuccess, false};
}

CallResult UpdaterNode::make_updatable(cudaGraphNode_t node, cudaGraphDeviceNode_t* handle,
                                       CUlaunchAttributeValue* highest) {
  CUlaunchAttributeValue value, priority;
  std::memset(&value, 0, sizeof value);  // Unused bytes must be zero (fact 26).
  value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  // The handle is returned in the value, although it is const.
  const CUresult result = driver().set_kernel_attribute(node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value);
  if (result != CUDA_SUCCESS) return {kSetAttribute, static_cast<cudaError_t>(result), false};
  *handle = reinterpret_cast<cudaGraphDeviceNode_t>(value.deviceUpdatableKernelNode.devNode);
  if (driver().kernel_attribute != nullptr &&
      driver().kernel_attribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority) == CUDA_SUCCESS) {
    highest->priority = std::min(highest->priority, priority.priority);  // A lower number is a higher priority.
  }
  return {};
}

CallResult UpdaterNode::add_to(const Template& graph, cudaGraphNode_t behind,
                               const std::vector<cudaGraphNode_t>& before, const CUlaunchAttributeValue& highest) {
  void* arguments[] = {parameter_.get()};
  const CallResult added = add_library_kernel(&node_, graph.graph.get(), node_params(arguments));
  if (added.error != cudaSuccess) return added;
  // All nodes that it writes wait for it, so no priority may be higher than its own.
  if (const CUresult result = driver().set_kernel_attribute(node_, CU_LAUNCH_ATTRIBUTE_PRIORITY, &highest);
      result != CUDA_SUCCESS) {
    return {kSetAttribute, static_cast<cudaError_t>(result), false};
  }
  cudaError_t error = cudaSuccess;
  if (behind != nullptr) error = add_dependency(graph.graph.get(), behind, node_);
  for (const cudaGraphNode_t node : before) {
    if (error == cudaSuccess) error = add_dependency(graph.graph.get(), node_, node);
  }
  return {"cudaGraphAddDependencies", error};
}

void UpdaterNode::take_kernel(const Updater::Kernels& kernels) {
  if (size_ <= updater::kSmall) {
    kernel_ = kernels[Updater::kSmall];
    parameter_ = std::make_unique<unsigned char[]>(sizeof(updater::Values<updater::kSmall>));
  } else if (size_ <= updater::kLarge) {
    kernel_ = kernels[Updater::kLarge];
    parameter_ = std::make_unique<unsigned char[]>(sizeof(updater::Values<updater::kLarge>));
  } else {
    kernel_ = kernels[Updater::kHuge];
    parameter_ = std::make_unique<unsigned char[]>(sizeof(updater::Values<updater::kHuge>));
  }
}

// Uploads what the kernel reads.
CallResult UpdaterNode::upload(const std::vector<updater::Piece>& pieces, const std::vector<updater::Update>& updates) {
  plan().piece_count = static_cast<unsigned>(pieces.size());
  std::vector<unsigned char> host(blocks() * sizeof(updater::Written));
  const auto append = [&](const void* bytes, std::size_t size) {
    const std::size_t at = detail::align_up(host.size(), updater::kSetAlignment);
    host.resize(at + size);
    if (size != 0) std::memcpy(host.data() + at, bytes, size);
    return at;
  };
  const std::size_t pieces_at = append(pieces.data(), pieces.size() * sizeof(updater::Piece));
  const std::size_t updates_at = append(updates.data(), updates.size() * sizeof(updater::Update));
  const std::vector<unsigned char> base = table_ != nullptr ? table_->base_set() : std::vector<unsigned char>();
  const std::size_t base_at = append(base.data(), base.size());

  if (const CallResult taken = memory_->take(host.size(), &plan_); taken.error != cudaSuccess) return taken;
  if (const CallResult taken = memory_->take_error_word(&error_); taken.error != cudaSuccess) return taken;
  auto* const device = static_cast<unsigned char*>(plan_.get());
  plan().written = reinterpret_cast<updater::Written*>(device);
  plan().pieces = reinterpret_cast<const updater::Piece*>(device + pieces_at);
  plan().updates = reinterpret_cast<const updater::Update*>(device + updates_at);
  plan().base = base.empty() ? nullptr : device + base_at;
  plan().error = static_cast<int*>(error_.get());
  return memory_->copy(device, host.data(), host.size());
}

// Grids are checked here, because the device would report an error only later.
CallResult UpdaterNode::write(const unsigned char* values, bool* changed) {
  for (const Source& source : sources_) {
    unsigned char* const to = bytes() + source.at;
    unsigned char room[detail::kMaxConvertedBytes];
    const unsigned char* const value = source.binding.bytes(values, room);
    if (std::memcmp(to, value, source.binding.size) == 0) continue;
    std::memcpy(to, value, source.binding.size);
    *changed = true;
    if (!source.is_grid) continue;
    dim3 grid;
    std::memcpy(&grid, to, sizeof grid);
    constexpr unsigned kMaxX = 0x7fffffff, kMaxYZ = 0xffff;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMaxX || grid.y > kMaxYZ || grid.z > kMaxYZ) {
      return {"cudaGraphKernelNodeSetGridDim", cudaErrorInvalidValue, false};
    }
  }
  return {};
}

CallResult UpdaterNode::patch(cudaGraphExec_t executable, const Content& content, const detail::Call& call,
                              bool by_driver, int device, std::size_t* patched_nodes) {
  bool changed = false;
  if (const CallResult written = write(call.values, &changed); written.error != cudaSuccess) return written;
  *patched_nodes += changed ? written_ : 0;
  if (table_ != nullptr && content.id != holds_) {
    const ParameterTable::Place& place = table_->find(content);
    *patched_nodes += place.differing;
    held_set() = place.set;
    holds_ = content.id;
    changed = true;
  }
  if (!changed) return {};
  if (++token() == 0) token() = 1;  // 0 stands in a new plan: the first launch writes nothing.
  return set(executable, by_driver, device);
}

cudaKernelNodeParams UpdaterNode::node_params(void** arguments) const {
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(kernel_);
  params.gridDim = dim3(blocks());
  params.blockDim = dim3(updater::kThreads);
  params.kernelParams = arguments;
  return params;
}

CallResult UpdaterNode::set(cudaGraphExec_t executable, bool by_driver, int device) {
  void* arguments[] = {parameter_.get()};
  if (by_driver) {
    CUDA_KERNEL_NODE_PARAMS params = driver_params(dim3(blocks()), dim3(updater::kThreads), 0, arguments);
    params.kern = reinterpret_cast<CUkernel>(kernel_);
    params.ctx = context_;  // Else the current one, which at a hit may be another device's.
    return {"cudaGraphExecKernelNodeSetParams",
            static_cast<cudaError_t>(driver().set_kernel_node(executable, node_, &params)), false};
  }
  const LastErrorGuard last_error;  // A hit has none.
  const DeviceGuard current(device);
  if (const CallResult failed = current.result(); failed.error != cudaSuccess)
    return {failed.call, failed.error, false};
  const CallResult done = patch_kernel(executable, node_, node_params(arguments));
  return {done.call, done.error, false};
}

}  // namespace graphcache
