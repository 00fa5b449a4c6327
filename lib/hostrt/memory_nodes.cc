#include "memory_nodes.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "capture.h"
#include "graph.h"
#include "memory.h"
#include "schedule.h"

namespace graphcache::hostrt {

namespace {

constexpr std::size_t kPage = 4096;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Fails where the system forbids it, and then the program may read the memory.
void protect(const Block& block, int protection) {
  (void)mprotect(block.address, whole_pages(block.bytes), protection);
}

}  // namespace

Block::~Block() {
  if (former != nullptr) return;
  if (graph != nullptr) protect(*this, PROT_READ | PROT_WRITE);
  std::free(address);
}

namespace {

std::shared_ptr<Block> make_block(int device, std::size_t bytes, std::size_t alignment = kMemoryAlignment) {
  void* address = fresh_memory(bytes, alignment);
  return address != nullptr ? std::make_shared<Block>(device, address, bytes) : nullptr;
}

// A block of this size that the graph frees before these edges, or null.
std::shared_ptr<Block> freed_before(const State& state, const Graph& graph, const std::vector<Edge>& edges, int device,
                                    std::size_t bytes) {
  std::set<const Node*> seen;
  std::vector<const Node*> left;
  const auto add = [&](const std::vector<Edge>& from) {
    for (const Edge& edge : from) {
      if (seen.insert(edge.from).second) left.push_back(edge.from);
    }
  };
  for (add(edges); !left.empty();) {
    const Node& node = *left.back();
    left.pop_back();
    add(node.dependencies);
    const auto* const free = std::get_if<FreeParams>(&node.params);
    if (free == nullptr || free->block->graph != graph.handle || free->block->device != device) continue;
    const auto last = state.graph_memory.reserved.find(free->block->address);
    const bool is_given_again = last == state.graph_memory.reserved.end() || last->second.lock() != free->block;
    if (!is_given_again && whole_pages(free->block->bytes) == whole_pages(bytes)) return free->block;
  }
  return nullptr;
}

// Reserves memory that launches of the graph will allocate: that of a former block, or new memory, which not even the
// host can access before the first launch.
std::shared_ptr<Block> reserve(State& state, const Graph& graph, int device, std::size_t bytes,
                               std::shared_ptr<Block> former = nullptr) {
  std::shared_ptr<Block> block =
      former != nullptr ? std::make_shared<Block>(device, former->address, bytes) : make_block(device, bytes, kPage);
  if (block == nullptr) return nullptr;
  block->graph = graph.handle;
  block->former = std::move(former);
  if (block->former == nullptr) protect(*block, PROT_NONE);
  block->properties.allocType = cudaMemAllocationTypePinned;
  block->properties.location = {cudaMemLocationTypeDevice, device};
  auto& reserved = state.graph_memory.reserved;
  std::erase_if(reserved, [](const auto& entry) { return entry.second.expired(); });
  reserved[block->address] = block;
  return block;
}

// The memory that a new free node of the graph frees. Returns null for "an allocation twice in the same graph" (this
// graph or the one that allocates) and for "an address that was not returned by an allocation node".
std::shared_ptr<Block> take_for_free(State& state, const Graph& graph, const void* address) {
  const auto found = state.graph_memory.reserved.find(address);
  std::shared_ptr<Block> block = found != state.graph_memory.reserved.end() ? found->second.lock() : nullptr;
  if (block == nullptr || block->freed_in.count(graph.handle) != 0 || block->freed_in.count(block->graph) != 0) {
    return nullptr;
  }
  if (block->graph == graph.handle && !block->freed_in.empty()) return nullptr;
  block->freed_in.insert(graph.handle);
  return block;
}

constexpr std::uint64_t kChunkBytes = std::uint64_t{32} << 20;

std::uint64_t live_chunks(const GraphMemory& memory, int device) {
  std::uint64_t bytes = 0;
  for (const auto& [address, block] : memory.live) bytes += block->device == device ? block->bytes : 0;
  return (bytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
}

void use(GraphMemory& memory, const Block& block) {
  GraphMemory::Usage& usage = memory.usage[block.device];
  usage.current = std::max(usage.current, live_chunks(memory, block.device));
  usage.used_high = std::max(usage.used_high, usage.current);
  usage.reserved_high = std::max(usage.reserved_high, usage.current);
}

cudaError_t allocate_async(const Call& call, void** out, std::size_t bytes, cudaStream_t handle) {
  if (out == nullptr) return cudaErrorInvalidValue;
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  Capture* capture = nullptr;
  if (const cudaError_t error = admit_work(call.state, *stream, &capture); error != cudaSuccess) return error;
  if (capture == nullptr) {
    if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  }
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  const auto reserve_in = [&](const Graph& graph) {
    return reserve(call.state, graph, stream->device, bytes,
                   freed_before(call.state, graph, stream->next, stream->device, bytes));
  };
  const std::shared_ptr<Block> block =
      capture != nullptr ? reserve_in(*capture->graph) : make_block(stream->device, bytes);
  if (block == nullptr) return cudaErrorMemoryAllocation;
  *out = block->address;
  if (capture != nullptr) {
    add_captured_node(call.state, *stream, AllocationParams{block});
    return cudaSuccess;
  }
  note_stray(call, *stream);
  call.state.device_memory.emplace(block->address, Allocation{bytes, stream->device, block});
  enqueue(call.state, *stream, AllocationParams{block});
  return cudaSuccess;
}

cudaError_t free_async(const Call& call, void* address, cudaStream_t handle) {
  Stream* stream = find_stream(call, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  Capture* capture = nullptr;
  if (const cudaError_t error = admit_work(call.state, *stream, &capture); error != cudaSuccess) return error;
  if (address == nullptr) return cudaSuccess;
  if (capture != nullptr) {
    std::shared_ptr<Block> block = take_for_free(call.state, *capture->graph, address);
    if (block == nullptr) return cudaErrorInvalidValue;
    add_captured_node(call.state, *stream, FreeParams{std::move(block)});
    return cudaSuccess;
  }
  if (const cudaError_t error = refuse_unsafe(call); error != cudaSuccess) return error;
  // The enqueued work keeps the memory alive until it runs.
  if (const auto graph = call.state.graph_memory.live.find(address); graph != call.state.graph_memory.live.end()) {
    note_stray(call, *stream);
    FreeParams params{graph->second};
    free_graph_memory(call.state, address);
    enqueue(call.state, *stream, NodeParams(std::move(params)));
    return cudaSuccess;
  }
  const auto found = call.state.device_memory.find(address);
  if (found == call.state.device_memory.end()) {
    return refuse_release(call, address);
  }
  note_stray(call, *stream);
  call.state.endings.add(address);
  Allocation allocation = std::move(found->second);
  call.state.device_memory.erase(found);
  if (allocation.block == nullptr) {  // memory from cudaMalloc
    allocation.block = std::make_shared<Block>(allocation.device, address, allocation.bytes);
    allocation.block->freed = call.state.endings.here;
  }
  enqueue(call.state, *stream, FreeParams{std::move(allocation.block)});
  return cudaSuccess;
}

cudaError_t read_allocation(const Call& call, const Graph& graph, const cudaMemAllocNodeParams* from,
                            NodeParams* params) {
  if (from == nullptr || from->bytesize == 0) return cudaErrorInvalidValue;
  if (graph.parent != nullptr) return cudaErrorNotSupported;  // "cannot be added to the returned graph"
  const cudaMemPoolProps& properties = from->poolProps;
  const int device = properties.location.id;
  if (properties.allocType != cudaMemAllocationTypePinned || properties.handleTypes != cudaMemHandleTypeNone ||
      properties.location.type != cudaMemLocationTypeDevice || !call.state.has_device(device)) {
    return cudaErrorInvalidValue;
  }
  const std::size_t devices = static_cast<std::size_t>(call.state.device_count);
  if (from->accessDescCount > devices || (from->accessDescs == nullptr && from->accessDescCount != 0)) {
    return cudaErrorInvalidValue;
  }
  std::shared_ptr<Block> block = reserve(call.state, graph, device, from->bytesize);
  if (block == nullptr) return cudaErrorMemoryAllocation;
  block->properties = properties;
  block->access.assign(from->accessDescs, from->accessDescs + from->accessDescCount);
  *params = AllocationParams{std::move(block)};
  return cudaSuccess;
}

cudaError_t attribute(const Call& call, int device, cudaGraphMemAttributeType which, std::uint64_t** found) {
  if (!call.state.has_device(device)) return cudaErrorInvalidDevice;
  GraphMemory::Usage& usage = call.state.graph_memory.usage[device];
  switch (which) {
    case cudaGraphMemAttrUsedMemCurrent:
    case cudaGraphMemAttrReservedMemCurrent:
      *found = &usage.current;
      return cudaSuccess;
    case cudaGraphMemAttrUsedMemHigh:
      *found = &usage.used_high;
      return cudaSuccess;
    case cudaGraphMemAttrReservedMemHigh:
      *found = &usage.reserved_high;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

// "High watermark can only be reset to zero", and immediately rises to the current value.
cudaError_t reset_attribute(const Call& call, int device, cudaGraphMemAttributeType which, const void* value) {
  std::uint64_t* found = nullptr;
  const cudaError_t error = attribute(call, device, which, &found);
  if (error != cudaSuccess) return error;
  const bool is_high = which == cudaGraphMemAttrUsedMemHigh || which == cudaGraphMemAttrReservedMemHigh;
  std::uint64_t wanted = 0;
  if (value != nullptr) std::memcpy(&wanted, value, sizeof wanted);
  if (!is_high || value == nullptr || wanted != 0) return cudaErrorInvalidValue;
  *found = call.state.graph_memory.usage[device].current;
  return cudaSuccess;
}

}  // namespace

cudaError_t launch_memory(const Call& call, const Executable& executable) {
  GraphMemory& memory = call.state.graph_memory;
  std::set<std::shared_ptr<Block>> allocated;
  std::set<std::shared_ptr<Block>> freed;
  for (const ProgramNode& node : executable.program->nodes) {
    if (const auto* allocation = std::get_if<AllocationParams>(&node.params)) allocated.insert(allocation->block);
    if (const auto* free = std::get_if<FreeParams>(&node.params)) freed.insert(free->block);
  }
  const auto is_live = [&](const auto& block) { return memory.live.count(block->address) != 0; };
  const bool frees_itself = (executable.flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0;
  if (!frees_itself && std::any_of(allocated.begin(), allocated.end(), is_live)) return cudaErrorInvalidValue;
  const auto may_free = [&](const auto& block) { return allocated.count(block) != 0 || is_live(block); };
  if (!std::all_of(freed.begin(), freed.end(), may_free)) return cudaErrorInvalidValue;

  for (const auto& block : allocated) {
    free_graph_memory(call.state, block->address);
    memory.live[block->address] = block;
    protect(*block, PROT_READ | PROT_WRITE);
    use(memory, *block);
  }
  for (const auto& block : freed) free_graph_memory(call.state, block->address);
  for (const auto& block : allocated) {  // Another one that was freed may have had its address.
    if (freed.count(block) == 0) memory.live[block->address] = block;
  }
  return cudaSuccess;
}

bool free_graph_memory(State& state, const void* address) {
  const auto found = state.graph_memory.live.find(address);
  if (found == state.graph_memory.live.end()) return false;
  state.graph_memory.live.erase(found);
  return true;
}

std::shared_ptr<const Block> find_graph_memory(const State& state, const void* address) {
  const auto behind = state.graph_memory.reserved.upper_bound(address);
  if (behind == state.graph_memory.reserved.begin()) return nullptr;
  std::shared_ptr<const Block> block = std::prev(behind)->second.lock();
  if (block == nullptr) return nullptr;
  const auto distance = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(block->address);
  return distance < block->bytes ? block : nullptr;
}

void trim_graph_memory(State& state, int device) {
  state.graph_memory.usage[device].current = live_chunks(state.graph_memory, device);
}

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaMallocAsync(void** devPtr, size_t size, cudaStream_t hStream) {
  return enter(Function::kMallocAsync, [&](const Call& call) { return allocate_async(call, devPtr, size, hStream); });
}

cudaError_t CUDARTAPI cudaFreeAsync(void* devPtr, cudaStream_t hStream) {
  return enter(Function::kFreeAsync, [&](const Call& call) { return free_async(call, devPtr, hStream); });
}

cudaError_t CUDARTAPI cudaGraphAddMemAllocNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                               const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                               struct cudaMemAllocNodeParams* nodeParams) {
  return add_by_hand(
      Function::kGraphAddMemAllocNode, pGraphNode, graph, pDependencies, numDependencies,
      [&](const Call& call, const Graph& to, NodeParams* params) {
        return read_allocation(call, to, nodeParams, params);
      },
      [&](const Call&, const Node& node) {
        nodeParams->dptr = std::get<AllocationParams>(node.params).block->address;
      });
}

cudaError_t CUDARTAPI cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node, struct cudaMemAllocNodeParams* params_out) {
  return enter({Function::kGraphMemAllocNodeGetParams, node}, [&](const Call& call) {
    const AllocationParams* params = params_of<AllocationParams>(call, node);
    if (params == nullptr || params_out == nullptr) return cudaErrorInvalidValue;
    const Block& block = *params->block;
    *params_out = {block.properties, block.access.empty() ? nullptr : block.access.data(), block.access.size(),
                   block.bytes, block.address};
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaGraphAddMemFreeNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                              const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                              void* dptr) {
  return add_by_hand(Function::kGraphAddMemFreeNode, pGraphNode, graph, pDependencies, numDependencies,
                     [&](const Call& call, const Graph& to, NodeParams* params) {
                       if (to.parent != nullptr) return cudaErrorNotSupported;
                       std::shared_ptr<Block> block = take_for_free(call.state, to, dptr);
                       if (block == nullptr) return cudaErrorInvalidValue;
                       *params = FreeParams{std::move(block)};
                       return cudaSuccess;
                     });
}

cudaError_t CUDARTAPI cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* dptr_out) {
  return enter({Function::kGraphMemFreeNodeGetParams, node}, [&](const Call& call) {
    const FreeParams* params = params_of<FreeParams>(call, node);
    if (params == nullptr || dptr_out == nullptr) return cudaErrorInvalidValue;
    *static_cast<void**>(dptr_out) = params->block->address;
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attr, void* value) {
  return enter(Function::kDeviceGetGraphMemAttribute, [&](const Call& call) {
    std::uint64_t* found = nullptr;
    const cudaError_t error = attribute(call, device, attr, &found);
    if (error != cudaSuccess) return error;
    if (value == nullptr) return cudaErrorInvalidValue;
    std::memcpy(value, found, sizeof *found);
    return cudaSuccess;
  });
}

cudaError_t CUDARTAPI cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attr, void* value) {
  return enter(Function::kDeviceSetGraphMemAttribute,
               [&](const Call& call) { return reset_attribute(call, device, attr, value); });
}

}  // extern "C"
