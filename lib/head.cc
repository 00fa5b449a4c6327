#include "head.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "compat.h"
#include "driver.h"
#include "updater_image.h"

namespace graphcache {
namespace {

bool is_grid(const SlotNode& node, const Binding& binding) {
  return binding.target == node.fields + offsetof(KernelFields, grid);
}

// The argument that a binding is of, or their count.
std::uint32_t argument_of(const Slots& slots, const SlotNode& node, const Binding& binding) {
  const auto first = slots.arguments.begin() + node.first_argument;
  return static_cast<std::uint32_t>(std::find(first, first + node.argument_count, binding.target) - first);
}

}  // namespace

CallResult Updater::load(Kernels* out) {
  MutexLock lock(mutex_);
  if (kernels_.large == nullptr && failed_.error == cudaSuccess) {
    LastErrorGuard last_error;
    cudaLibrary_t library = nullptr;
    CallResult done{"cudaLibraryLoadData",
                    cudaLibraryLoadData(&library, updater_image, nullptr, nullptr, 0, nullptr, nullptr, 0),
                    /*latches=*/false};
    if (done.error == cudaSuccess) {
      library_ = Owned<cudaLibrary_t, cudaLibraryUnload>(library);
      done = {"cudaLibraryGetKernel", cudaLibraryGetKernel(&kernels_.small, library, updater::kSmallName), false};
    }
    if (done.error == cudaSuccess) done.error = cudaLibraryGetKernel(&kernels_.large, library, updater::kLargeName);
    if (done.error != cudaSuccess) {
      kernels_ = {};
      failed_ = done;
    }
  }
  *out = kernels_;
  return failed_;
}

void Updater::abandon() {
  MutexLock lock(mutex_);
  library_.release();
}

bool Head::can_write(const Slots& slots, const SlotNode& node) {
  if (node.type != cudaGraphNodeTypeKernel || node.function == nullptr) return false;
  const auto first = slots.bindings.begin() + node.first_binding;
  return std::all_of(first, first + node.binding_count, [&](const Binding& binding) {
    return is_grid(node, binding) || argument_of(slots, node, binding) != node.argument_count;
  });
}

bool Head::can_write_any(const Slots& slots) {
  return std::any_of(slots.nodes.begin(), slots.nodes.end(),
                     [&](const SlotNode& node) { return can_write(slots, node); });
}

// Where the kernel's parameter has the value: slots that many nodes hold are passed once.
bool Head::find_source(const Binding& binding, bool grid, std::uint32_t* at) {
  for (const Source& source : sources_) {
    if (source.offset == binding.offset && source.size == binding.size && source.convert == binding.convert &&
        source.is_grid == grid) {
      *at = source.at;
      return true;
    }
  }
  const std::uint32_t begin = (size_ + 7) / 8 * 8;
  if (binding.size > updater::kLarge || begin > updater::kLarge - binding.size) return false;
  sources_.push_back({binding.offset, binding.size, binding.convert, begin, grid});
  size_ = begin + binding.size;
  *at = begin;
  return true;
}

// False: the node is left to the host.
bool Head::plan_node(const Slots& slots, const SlotNode& node, std::vector<updater::Update>* updates) {
  const std::size_t before = updates->size();
  for (std::uint32_t i = 0; i < node.binding_count; ++i) {
    const Binding& binding = slots.bindings[node.first_binding + i];
    const bool grid = is_grid(node, binding);
    std::size_t offset = updater::Update::kGrid, size = binding.size;
    bool known = driver().function_param_info != nullptr;
    if (known && !grid) {
      known = driver().function_param_info(node.function, argument_of(slots, node, binding), &offset, &size) ==
              CUDA_SUCCESS;
    }
    std::uint32_t source = 0;
    if (!known || size != binding.size || !find_source(binding, grid, &source)) {
      updates->resize(before);
      return false;
    }
    updates->push_back({source, static_cast<unsigned>(offset), binding.size});
  }
  return true;
}

CallResult Head::add(Updater& updater, const Template& graph, const Content& content, cudaStream_t stream,
                     std::unique_ptr<Head>* out) {
  Updater::Kernels kernels;
  if (const CallResult loaded = updater.load(&kernels); loaded.error != cudaSuccess) return loaded;
  const auto set_attribute = driver().set_kernel_attribute;
  std::unique_ptr<Head> head(new Head);
  std::vector<updater::Node> nodes;
  std::vector<updater::Update> updates;
  for (std::uint32_t i = 0; i < content.slots.nodes.size(); ++i) {
    const SlotNode& node = content.slots.nodes[i];
    const auto first = static_cast<unsigned>(updates.size());
    if (set_attribute == nullptr || !can_write(content.slots, node) ||
        !head->plan_node(content.slots, node, &updates)) {
      head->others_.push_back(i);
      continue;
    }
    CUlaunchAttributeValue value;
    std::memset(&value, 0, sizeof value);  // Else it may be refused (fact 26).
    value.deviceUpdatableKernelNode.deviceUpdatable = 1;
    // The handle comes back in the value, const or not (tried).
    const CUresult result =
        set_attribute(graph.nodes[node.index], CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &value);
    if (result != CUDA_SUCCESS) return {"cuGraphKernelNodeSetAttribute", static_cast<cudaError_t>(result), false};
    nodes.push_back({reinterpret_cast<cudaGraphDeviceNode_t>(value.deviceUpdatableKernelNode.devNode), first,
                     static_cast<unsigned>(updates.size()) - first});
  }
  if (nodes.empty()) return {"cuGraphKernelNodeSetAttribute", cudaErrorNotSupported, false};
  head->written_ = nodes.size();

  const bool small = head->size_ <= updater::kSmall;
  head->kernel_ = small ? kernels.small : kernels.large;
  head->parameter_ = std::make_unique<unsigned char[]>(small ? sizeof(updater::Values<updater::kSmall>)
                                                             : sizeof(updater::Values<updater::kLarge>));
  if (CallResult done = head->upload(nodes, updates, stream); done.error != cudaSuccess) return done;
  head->token() = 1;
  bool changed = false;
  if (CallResult done = head->write(content.values.data(), &changed); done.error != cudaSuccess) return done;

  std::size_t root_count = 0;
  cudaError_t error = cudaGraphGetRootNodes(graph.graph.get(), nullptr, &root_count);
  std::vector<cudaGraphNode_t> roots(root_count);
  if (error == cudaSuccess) error = cudaGraphGetRootNodes(graph.graph.get(), roots.data(), &root_count);
  if (error != cudaSuccess) return {"cudaGraphGetRootNodes", error};
  void* arguments[] = {head->parameter_.get()};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(head->kernel_);
  params.gridDim = dim3(head->blocks());
  params.blockDim = dim3(updater::kThreads);
  params.kernelParams = arguments;
  error = cudaGraphAddKernelNode(&head->node_, graph.graph.get(), nullptr, 0, &params);
  if (error != cudaSuccess) return {"cudaGraphAddKernelNode", error};
  for (const cudaGraphNode_t root : roots) {
    error = add_dependency(graph.graph.get(), head->node_, root);
    if (error != cudaSuccess) return {"cudaGraphAddDependencies", error};
  }
  *out = std::move(head);
  return {};
}

// What the kernel reads. Copies from pageable memory have read it when the call returns, and do not wait for work in
// flight (tried).
CallResult Head::upload(const std::vector<updater::Node>& nodes, const std::vector<updater::Update>& updates,
                        cudaStream_t stream) {
  plan().node_count = static_cast<unsigned>(nodes.size());
  const std::size_t updates_at = nodes.size() * sizeof(updater::Node);
  const std::size_t tokens_at = updates_at + updates.size() * sizeof(updater::Update);
  std::vector<unsigned char> host(tokens_at + blocks() * sizeof(unsigned));
  std::memcpy(host.data(), nodes.data(), updates_at);
  std::memcpy(host.data() + updates_at, updates.data(), tokens_at - updates_at);

  void* table = nullptr;
  if (const cudaError_t error = cudaMalloc(&table, host.size()); error != cudaSuccess) return {"cudaMalloc", error};
  table_ = Owned<void*, cudaFree>(table);
  void* error_word = nullptr;
  if (const cudaError_t error = cudaMallocHost(&error_word, sizeof(int)); error != cudaSuccess) {
    return {"cudaMallocHost", error};
  }
  error_ = Owned<void*, cudaFreeHost>(error_word);
  *static_cast<int*>(error_word) = cudaSuccess;
  auto* const device = static_cast<unsigned char*>(table);
  plan().nodes = reinterpret_cast<const updater::Node*>(device);
  plan().updates = reinterpret_cast<const updater::Update*>(device + updates_at);
  plan().tokens = reinterpret_cast<unsigned*>(device + tokens_at);
  plan().error = static_cast<int*>(error_word);
  return {"cudaMemcpyAsync", cudaMemcpyAsync(table, host.data(), host.size(), cudaMemcpyHostToDevice, stream)};
}

// Grids are checked here, since the device could only tell later.
CallResult Head::write(const unsigned char* values, bool* changed) {
  for (const Source& source : sources_) {
    unsigned char* const to = bytes() + source.at;
    const unsigned char* value = values + source.offset;
    unsigned char converted[detail::kMaxConvertedBytes];
    if (source.convert != nullptr) {
      source.convert(value, converted);
      value = converted;
    }
    if (std::memcmp(to, value, source.size) == 0) continue;
    std::memcpy(to, value, source.size);
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

CallResult Head::patch(cudaGraphExec_t executable, const detail::Call& call, bool by_driver, int device,
                       std::size_t* patched_nodes) {
  bool changed = false;
  const CallResult written = write(call.values, &changed);
  if (written.error != cudaSuccess || !changed) return written;
  *patched_nodes += written_;
  if (++token() == 0) token() = 1;  // What the tokens of a new table are.
  void* arguments[] = {parameter_.get()};
  constexpr const char* kCall = "cudaGraphExecKernelNodeSetParams";
  if (by_driver) {
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.kern = reinterpret_cast<CUkernel>(kernel_);
    params.gridDimX = blocks();
    params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = updater::kThreads;
    params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = arguments;
    return {kCall, static_cast<cudaError_t>(driver().set_kernel_node(executable, node_, &params)), false};
  }
  const LastErrorGuard last_error;  // A hit has none.
  const DeviceGuard current(device);
  if (const CallResult failed = current.result(); failed.error != cudaSuccess)
    return {failed.call, failed.error, false};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(kernel_);
  params.gridDim = dim3(blocks());
  params.blockDim = dim3(updater::kThreads);
  params.kernelParams = arguments;
  return {kCall, cudaGraphExecKernelNodeSetParams(executable, node_, &params), false};
}

void Head::abandon() {
  table_.release();
  error_.release();
}

}  // namespace graphcache
