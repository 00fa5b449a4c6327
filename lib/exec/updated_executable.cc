#include "exec/updated_executable.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/errors.h"
#include "updater_image.h"

namespace graphcache {
namespace {

constexpr char kSetAttribute[] = "cudaGraphKernelNodeSetAttribute, by the driver";

bool is_of_grid(const updater::Update& update) { return update.offset == updater::kGrid; }

// Adds a node's pieces and the updates that go into them: for sets its grid, if wanted, and all of its arguments.
// Returns the number of pieces.
std::uint32_t add_pieces(cudaGraphDeviceNode_t node, const std::vector<updater::Update>& updates, bool grid,
                         unsigned argument_bytes, WrittenNodes* out) {
  const std::size_t before = out->pieces.size();
  const auto begin = [&](unsigned offset, unsigned size) {
    out->pieces.push_back({node, offset, size, static_cast<unsigned>(out->updates.size()), 0});
  };
  const auto follow = [&](const updater::Update& update) {
    out->updates.push_back(update);
    ++out->pieces.back().count;
  };
  if (grid) begin(updater::kGrid, sizeof(dim3));
  unsigned end = argument_bytes;
  for (const updater::Update& update : updates) {
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
    for (const updater::Update& update : updates) {
      const unsigned from = std::max(at, update.offset), until = std::min(to, update.offset + update.size);
      if (is_of_grid(update) || from >= until) continue;
      if (!std::exchange(begun, true)) begin(at, 0);
      follow({update.source + (from - update.offset), from, until - from});
    }
  }
  return static_cast<std::uint32_t>(out->pieces.size() - before);
}

CallResult dependencies_of(cudaGraphNode_t node, std::vector<cudaGraphNode_t>* out) {
  std::size_t count = 0;
  cudaError_t error = node_dependencies(node, nullptr, nullptr, &count);
  out->resize(count);
  std::vector<cudaGraphEdgeData> edges(count);
  if (error == cudaSuccess && count != 0) error = node_dependencies(node, out->data(), edges.data(), &count);
  return {"cudaGraphNodeGetDependencies", error};
}

// Whether the device can set the grid of a kernel node. It cannot for kernels with clusters, cooperative kernels, and
// kernels that use dynamic parallelism: without any error, other blocks would run than were set (docs/semantics.md).
// `plain` is updater::kPlainName. `probed` caches the results for the functions of one graph.
using Probed = std::unordered_map<const void*, bool>;
CallResult can_set_grid(cudaGraphNode_t node, cudaKernel_t plain, Probed* probed, bool* can) {
  *can = false;
  for (const CUlaunchAttributeID id : {CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE}) {
    CUlaunchAttributeValue value;
    bool is_set = false;
    if (driver().read_attribute(node, id, &value, &is_set) != cudaSuccess || is_set) return {};
  }
  CUDA_KERNEL_NODE_PARAMS params = {};
  if (driver().kernel_params(node, &params) != cudaSuccess) return {};
  const void* const function = params.func != nullptr ? static_cast<const void*>(params.func) : params.kern;
  if (const auto known = probed->find(function); known != probed->end()) {
    *can = known->second;
    return {};
  }
  // CUDA offers no query for kernels that use the device runtime (dynamic parallelism), so we probe: we try to set the
  // kernel into a node of a scratch executable. A node whose kernel did not use the device runtime refuses a kernel
  // that does (cudaGraphExecKernelNodeSetParams).
  LastErrorGuard last_error;
  cudaGraph_t made = nullptr;
  if (const cudaError_t error = cudaGraphCreate(&made, 0); error != cudaSuccess) return {"cudaGraphCreate", error};
  OwnedGraph graph(made);
  GraphExec probe;
  CUDA_KERNEL_NODE_PARAMS nothing = driver_params(dim3(1), dim3(1), 0, nullptr);
  nothing.kern = plain;
  cudaGraphNode_t plain_node = nullptr;
  CallResult done = add_library_kernel(&plain_node, graph.get(), nothing);
  if (done.error == cudaSuccess) done = {"cudaGraphInstantiate", instantiate(graph, 0, &probe)};
  if (done.error == cudaSuccess) {
    const cudaError_t answer = driver().set_kernel_node(probe.get(), plain_node, &params);
    *can = answer == cudaSuccess;
    if (is_fatal(answer) || answer == cudaErrorMemoryAllocation)
      done = {"cudaGraphExecKernelNodeSetParams, by the driver", answer};
  }
  if (done.error == cudaSuccess) probed->emplace(function, *can);
  if (is_fatal(done.error)) {
    graph.release();
    probe.release();
  }
  return done;
}

// All nodes that the updater writes must wait for it. If a graph begins with one root and reaches all written nodes
// through one other node, the updater node stands behind the root and before that node. It then runs beside the nodes
// in between, which hides its time. Otherwise it stands before all roots, because it would cost more as another root
// (test/bench/results/2026-11-24-updater-node.md). Its place is behind one node or none, and before others.
CallResult find_place(const Template& graph, const std::vector<WrittenNodes::Node>& written, cudaGraphNode_t* behind,
                      std::vector<cudaGraphNode_t>* before) {
  std::size_t count = 0;
  cudaError_t error = cudaGraphGetRootNodes(graph.graph.get(), nullptr, &count);
  before->resize(count);
  if (error == cudaSuccess) error = cudaGraphGetRootNodes(graph.graph.get(), before->data(), &count);
  if (error != cudaSuccess || count != 1) return {"cudaGraphGetRootNodes", error};
  const cudaGraphNode_t root = before->front();
  const std::uint32_t first = written.front().index;
  if (graph.nodes[first] == root) return {};
  std::unordered_set<cudaGraphNode_t> behind_first = {graph.nodes[first]};
  std::vector<cudaGraphNode_t> dependencies;
  auto next = written.begin();
  for (std::uint32_t i = first; i <= written.back().index; ++i) {
    const cudaGraphNode_t node = graph.nodes[i];
    const CallResult read = dependencies_of(node, &dependencies);
    if (read.error != cudaSuccess) return read;
    // There is nothing in between.
    if (i == first && std::find(dependencies.begin(), dependencies.end(), root) != dependencies.end()) return {};
    const auto is_behind = [&](cudaGraphNode_t of) { return behind_first.contains(of); };
    if (std::any_of(dependencies.begin(), dependencies.end(), is_behind)) behind_first.insert(node);
    if (next->index != i) continue;
    if (!is_behind(node)) return {};
    ++next;
  }
  *behind = root;
  before->front() = graph.nodes[first];
  return {};
}

}  // namespace

std::size_t UpdatedExecutable::writable_nodes(const Slots& slots) {
  return static_cast<std::size_t>(std::count_if(slots.nodes.begin(), slots.nodes.end(),
                                                [&](const SlotNode& node) { return device_can_write(slots, node); }));
}

std::size_t UpdatedExecutable::estimated_device_bytes(const Content& content) {
  std::size_t pieces = content.slots.bindings.size();
  for (const NodeContent& node : content.nodes) pieces += 1 + (node.size + updater::kPiece - 1) / updater::kPiece;
  constexpr std::size_t kPieceBytes = sizeof(updater::Piece) + sizeof(unsigned) + updater::kPiece + 1;
  const std::size_t plan = pieces * kPieceBytes + 2 * content.slots.bindings.size() * sizeof(updater::Update) +
                           sizeof(updater::Written) + 4 * updater::kSetAlignment;
  return ParameterTable::kChunk + DeviceMemory::taken(plan);
}

CallResult UpdatedExecutable::instantiate(Template& from, std::shared_ptr<const Content> content, bool with_table,
                                          unsigned long long flags, Device& device, std::unique_ptr<Executable>* out) {
  std::unique_ptr<UpdatedExecutable> executable(new UpdatedExecutable(device));
  CallResult done = executable->copies_of(from, *content, &executable->copies_);
  executable->note_copies();
  executable->hold(std::move(content), from.values);
  Template& base = executable->base_;
  if (done.error == cudaSuccess) done = from.clone(&base);
  if (done.error == cudaSuccess) done = executable->add_updater_node(device, with_table);
  if (done.error == cudaSuccess) {
    // Without this flag a grid that the device has written is lost when the next launch is on a stream of another
    // priority (docs/semantics.md).
    done = {"cudaGraphInstantiate",
            graphcache::instantiate(base.graph, flags | cudaGraphInstantiateFlagUseNodePriority, &executable->exec_)};
  }
  if (done.error == cudaSuccess) {
    *out = std::move(executable);
  } else if (is_fatal(done.error)) {
    executable->abandon();
  }
  return done;
}

// Finds the value's offset in the kernel's parameter, which is `residue` modulo kUnit. A slot that many nodes hold is
// passed once for each residue.
bool UpdatedExecutable::find_source(const Binding& binding, bool grid, std::uint32_t residue, std::uint32_t* at) {
  for (const Source& source : sources_) {
    if (source.binding.is_of(binding) && source.is_grid == grid && source.at % updater::kUnit == residue) {
      *at = source.at;
      return true;
    }
  }
  const auto begin = static_cast<std::uint32_t>(detail::align_up(parameter_size_, updater::kUnit)) + residue;
  if (binding.size > updater::kHuge || begin > updater::kHuge - binding.size) return false;
  sources_.push_back({binding, begin, grid});
  parameter_size_ = begin + binding.size;
  *at = begin;
  return true;
}

// Returns false if the host must set the node.
bool UpdatedExecutable::plan_slots(const SlotNode& node, std::vector<updater::Update>* updates) {
  for (const Binding& binding : slots_.bindings_of(node)) {
    const bool grid = is_grid(node, binding);
    std::size_t offset = updater::kGrid, size = 0;
    bool known = true;
    if (!grid) {
      const std::uint32_t argument = argument_of(slots_, node, binding);
      const std::size_t inside = binding.target - slots_.arguments[node.first_argument + argument];
      known = driver().function_param_info(node.function, argument, &offset, &size) == cudaSuccess &&
              inside + binding.size <= size;
      offset += inside;
    }
    // Pieces begin inside a larger value. They need a source that is aligned as they are (updater.h).
    const bool is_cut = !grid && offset / updater::kPiece != (offset + binding.size - 1) / updater::kPiece;
    const auto residue = static_cast<std::uint32_t>(is_cut ? offset % updater::kUnit : 0);
    std::uint32_t source = 0;
    if (!known || !find_source(binding, grid, residue, &source)) {
      updates->clear();
      return false;
    }
    updates->push_back({source, static_cast<unsigned>(offset), binding.size});
  }
  return true;
}

// Makes the slot nodes of the base device-updatable (with a table, the other kernel nodes as well) and adds the updater
// node.
CallResult UpdatedExecutable::add_updater_node(Device& device, bool with_table) {
  cudaKernel_t plain = nullptr;
  CallResult done{"cuLibraryLoadData", device.updater_refused};
  if (done.error == cudaSuccess) {
    done = device.setter.find(updater_image, updater::kPlainName, &plain, &code_);
    device.updater_refused = done.error;
  }
  WrittenNodes written;
  if (done.error == cudaSuccess) done = make_updatable(plain, with_table, &written);
  if (done.error != cudaSuccess) return done;

  constexpr unsigned kSizes[] = {updater::kSmall, updater::kLarge, updater::kHuge};
  constexpr const char* kNames[] = {updater::kSmallName, updater::kLargeName, updater::kHugeName};
  const unsigned* const size = std::lower_bound(std::begin(kSizes), std::end(kSizes), parameter_size_);
  parameter_ = std::make_unique<unsigned char[]>(offsetof(Parameter, bytes) + *size);
  parameter().plan.piece_count = static_cast<unsigned>(written.pieces.size());
  arguments_[0] = parameter_.get();
  node_params_ = driver_params(dim3(blocks()), dim3(updater::kThreads), 0, arguments_);
  node_params_.ctx = current_context();  // For patches: the current one at a hit may be another device's.
  if (with_table) table_ = std::make_unique<ParameterTable>(content_, written);
  done = device.setter.find(updater_image, kNames[size - kSizes], &node_params_.kern, &code_);
  if (done.error == cudaSuccess) done = upload_plan(written);
  bool changed = false;
  if (done.error == cudaSuccess) done = write(content_->values.data(), &changed);
  if (done.error == cudaSuccess) done = add_to_base(written);
  return done;
}

// Decides which nodes the device writes, and makes these device-updatable. Fails if there are none.
CallResult UpdatedExecutable::make_updatable(cudaKernel_t plain, bool with_table, WrittenNodes* out) {
  Probed probed;
  for (std::uint32_t i = 0; i < base_.nodes.size(); ++i) {
    const SlotNode* const node = slots_.node(i);
    std::vector<updater::Update> updates;
    bool wanted = with_table && content_->nodes[i].updatable;
    bool grid = with_table && content_->nodes[i].grid_updatable;
    if (node != nullptr) {
      wanted = (wanted || !with_table) && device_can_write(slots_, *node) && plan_slots(*node, &updates);
    }
    const bool of_grid = std::any_of(updates.begin(), updates.end(), is_of_grid);
    if (wanted && (grid || of_grid)) {
      const CallResult answer = can_set_grid(base_.nodes[i], plain, &probed, &grid);
      if (answer.error != cudaSuccess) return answer;
      wanted = grid || !of_grid;
    }
    if (!wanted) {
      if (node != nullptr) others_.push_back(static_cast<std::uint32_t>(node - slots_.nodes.data()));
      continue;
    }
    CUlaunchAttributeValue value;
    std::memset(&value, 0, sizeof value);  // Unused bytes must be zero (fact 26).
    value.deviceUpdatableKernelNode.deviceUpdatable = 1;
    // The handle is returned in the value, although it is const.
    const cudaError_t error =
        driver().set_kernel_attribute(base_.nodes[i], CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value);
    if (error != cudaSuccess) return {kSetAttribute, error};
    auto* const handle = reinterpret_cast<cudaGraphDeviceNode_t>(value.deviceUpdatableKernelNode.devNode);
    const unsigned size = with_table ? content_->nodes[i].size : 0;
    out->nodes.push_back({i, grid, add_pieces(handle, updates, with_table && grid, size, out)});
  }
  return {kSetAttribute, out->pieces.empty() ? cudaErrorNotSupported : cudaSuccess};
}

CallResult UpdatedExecutable::add_to_base(const WrittenNodes& written) {
  cudaGraphNode_t behind = nullptr;
  std::vector<cudaGraphNode_t> before;
  const cudaGraph_t graph = base_.graph.get();
  CallResult done = find_place(base_, written.nodes, &behind, &before);
  if (done.error == cudaSuccess) done = add_library_kernel(&node_, graph, node_params_);
  if (done.error != cudaSuccess) return done;
  // All nodes that it writes wait for it, so no priority may be higher than its own. A lower number is a higher one.
  CUlaunchAttributeValue highest, priority;
  std::memset(&highest, 0, sizeof highest);
  for (const WrittenNodes::Node& node : written.nodes) {
    const cudaError_t read =
        driver().kernel_attribute(base_.nodes[node.index], CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority);
    if (read == cudaSuccess) highest.priority = std::min(highest.priority, priority.priority);
  }
  cudaError_t error = driver().set_kernel_attribute(node_, CU_LAUNCH_ATTRIBUTE_PRIORITY, &highest);
  if (error != cudaSuccess) return {kSetAttribute, error};
  if (behind != nullptr) error = add_dependency(graph, behind, node_);
  for (const cudaGraphNode_t node : before) {
    if (error == cudaSuccess) error = add_dependency(graph, node_, node);
  }
  return {"cudaGraphAddDependencies", error};
}

// Uploads what the kernel reads.
CallResult UpdatedExecutable::upload_plan(const WrittenNodes& written) {
  updater::Plan& plan = parameter().plan;
  std::vector<unsigned char> host(blocks() * sizeof(updater::Written));
  const auto append = [&](const auto& items) {
    const std::size_t at = detail::align_up(host.size(), updater::kSetAlignment), size = items.size() * sizeof items[0];
    host.resize(at + size);
    if (size != 0) std::memcpy(host.data() + at, items.data(), size);
    return at;
  };
  const std::size_t pieces_at = append(written.pieces), updates_at = append(written.updates);
  ParameterTable::Set base;
  if (table_ != nullptr) base = table_->make_set(*content_, /*whole=*/true);
  const std::size_t base_at = append(base);

  CallResult taken = memory_.take(host.size(), &plan_);
  if (taken.error == cudaSuccess) taken = memory_.take(sizeof(int), &error_, /*of_host=*/true);
  if (taken.error != cudaSuccess) return taken;
  plan.error = static_cast<int*>(error_.get());
  *plan.error = cudaSuccess;
  auto* const device = static_cast<unsigned char*>(plan_.get());
  plan.written = reinterpret_cast<updater::Written*>(device);
  plan.pieces = reinterpret_cast<const updater::Piece*>(device + pieces_at);
  plan.updates = reinterpret_cast<const updater::Update*>(device + updates_at);
  plan.base = base.empty() ? nullptr : device + base_at;
  return memory_.copy(device, host.data(), host.size(), &ready_);
}

// Grids are checked here, because the device would report an error only later.
CallResult UpdatedExecutable::write(const unsigned char* values, bool* changed) {
  for (const Source& source : sources_) {
    unsigned char* const to = parameter_.get() + offsetof(Parameter, bytes) + source.at;
    if (!source.binding.write(values, to)) continue;
    *changed = true;
    if (!source.is_grid) continue;
    dim3 grid;
    std::memcpy(&grid, to, sizeof grid);
    constexpr unsigned kMaxX = 0x7fffffff, kMaxYZ = 0xffff;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMaxX || grid.y > kMaxYZ || grid.z > kMaxYZ) {
      return {"cudaGraphKernelNodeSetGridDim", cudaErrorInvalidValue};
    }
  }
  return {};
}

UpdatedExecutable::~UpdatedExecutable() {
  exec_ = {};  // Before what its launches use. They are over then.
  if (const cudaError_t error = take_device_error(); error != cudaSuccess) memory_.late_error = error;
}

CallResult UpdatedExecutable::patch(const detail::Call& call, std::size_t* patched_nodes) {
  bool changed = false;
  if (!in_place_) {
    const CallResult by_host = Executable::patch(call, patched_nodes);
    // So that only a later change counts.
    return by_host.error != cudaSuccess ? by_host : write(call.values, &changed);
  }
  for (const std::uint32_t i : others_) {
    const CallResult result = patch_node(slots_.nodes[i], call, patched_nodes);
    if (result.error != cudaSuccess) return result;
  }
  if (const CallResult written = write(call.values, &changed); written.error != cudaSuccess) return written;
  *patched_nodes += changed ? slots_.nodes.size() - others_.size() : 0;
  if (table_ != nullptr) {
    const updater::ParameterSet set = table_->find(*content_);
    changed |= std::exchange(parameter().set, set) != set;
  }
  if (changed) {
    if (++parameter().token == 0) parameter().token = 1;  // 0 stands in a new plan: the first launch writes nothing.
    if (const CallResult set = set_kernel(node_, node_params_); set.error != cudaSuccess) return set;
  }
  take_values(call);
  return {};
}

BroughtOver UpdatedExecutable::switch_set(const Template& graph, std::shared_ptr<const Content> to,
                                          const detail::Call& call) {
  BroughtOver brought;
  std::vector<HeldCopy> copies;
  brought.result = copies_of(graph, *to, &copies);
  if (unfit(copies) != nullptr) {
    brought.result = {"cudaGraphExecMemcpyNodeSetParams1D", cudaErrorInvalidValue};
  }
  brought.is_whole = brought.result.error != cudaSuccess;
  if (brought.is_whole) return brought;
  const Slots before = hold(std::move(to));
  // Nodes that only the host sets: their captured parameters may differ as well.
  for (const std::uint32_t i : others_) {
    const SlotNode& node = slots_.nodes[i];
    slots_.update_fields(node, call.values);
    if (std::memcmp(before.fields.data() + node.fields, slots_.fields.data() + node.fields, node.fields_size) == 0)
      continue;
    brought.result = set_node(node);
    if (brought.result.error != cudaSuccess) return brought;
    ++brought.patched_nodes;
  }
  brought.result = patch(call, &brought.patched_nodes);
  return brought;
}

CallResult UpdatedExecutable::add_set(const Content& of, const ParameterTable::Set& set) {
  RelaxedCaptureMode relaxed;
  return table_->add(of, set, memory_, &ready_);
}

}  // namespace graphcache
