#include "exec/parameter_table.h"

#include <algorithm>
#include <cstring>

namespace graphcache {
namespace {

std::size_t aligned(std::size_t bytes) { return detail::align_up(bytes, updater::kSetAlignment); }

}  // namespace

bool is_grid(const SlotNode& node, const Binding& binding) {
  return binding.target == node.fields + offsetof(KernelFields, grid);
}

std::uint32_t argument_of(const Slots& slots, const SlotNode& node, const Binding& binding) {
  const auto first = slots.arguments.begin() + node.first_argument, end = first + node.argument_count;
  const auto behind = std::upper_bound(first, end, binding.target);
  return behind == first ? node.argument_count : static_cast<std::uint32_t>(behind - first - 1);
}

bool device_can_write(const Slots& slots, const SlotNode& node) {
  // Writing a node of another device would be an illegal address.
  if (node.type != cudaGraphNodeTypeKernel || node.function == nullptr || !node.is_of_device) return false;
  return std::ranges::all_of(slots.bindings_of(node), [&](const Binding& binding) {
    return is_grid(node, binding) || argument_of(slots, node, binding) != node.argument_count;
  });
}

bool ParameterTable::can_hold(const Content& to) const {
  const Content& base = *base_;
  if (to.nodes.size() != base.nodes.size() || to.values.size() != base.values.size()) return false;
  const Slots &a = base.slots, &b = to.slots;
  if (a.nodes != b.nodes || a.arguments != b.arguments || a.bindings != b.bindings) return false;
  auto next = written_.nodes.begin();
  for (std::uint32_t i = 0; i < base.nodes.size(); ++i) {
    Change written = Change::kNone;
    if (next != written_.nodes.end() && next->index == i) written = next++->grid ? Change::kGrid : Change::kArguments;
    // The host sets nodes that hold slots and that the device does not write, with all their parameters.
    const bool by_host = written == Change::kNone && base.slots.node(i) != nullptr;
    if (change(base, to, i) > written && !by_host) return false;
  }
  return true;
}

std::size_t ParameterTable::estimated_set_bytes(const Content& content) {
  std::size_t bytes = 0;
  for (const NodeContent& node : content.nodes) bytes += node.updatable ? aligned(node.size) + sizeof(unsigned) : 0;
  return aligned(bytes);
}

// A hash of what can_hold() compares.
std::uint64_t ParameterTable::class_of(const Content& content) {
  std::uint64_t hash = content.values.size();
  const auto put = [&](auto... values) {
    ((hash = (hash ^ static_cast<std::uint64_t>(values)) * 0x9e3779b97f4a7c15u + (hash >> 29)), ...);
  };
  const auto put_pointer = [&](const void* value) { put(reinterpret_cast<std::uintptr_t>(value)); };
  bool is_of_use = false;
  const Slots& slots = content.slots;
  for (const SlotNode& node : slots.nodes) {
    put(node.index, node.binding_count);
    put_pointer(node.function);
  }
  for (const Binding& binding : slots.bindings) put(binding.target, binding.offset, binding.size, binding.addend);
  for (std::uint32_t i = 0; i < content.nodes.size(); ++i) {
    const NodeContent& node = content.nodes[i];
    is_of_use |= node.updatable;
    const SlotNode* const slot = slots.node(i);
    if (slot != nullptr && !device_can_write(slots, *slot)) continue;  // The host sets it.
    const CUDA_KERNEL_NODE_PARAMS& kernel = node.kernel;
    put_pointer(kernel.func);
    put_pointer(kernel.kern);
    put(node.readable, kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ, kernel.sharedMemBytes);
    if (!node.grid_updatable) put(kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ);
    if (node.updatable) continue;
    for (std::uint32_t k = 0; k < node.size; ++k) put(content.bytes[node.bytes + k]);
  }
  return is_of_use ? std::max<std::uint64_t>(hash, 1) : 0;
}

// Writes the piece's bytes, and returns whether they differ from the base's.
bool ParameterTable::fill(const updater::Piece& piece, const Content& of, std::uint32_t index,
                          unsigned char* out) const {
  const NodeContent& node = of.nodes[index];
  const NodeContent& base = base_->nodes[index];
  const auto first = written_.updates.begin() + piece.first;
  if (piece.offset == updater::kGrid) {
    const unsigned grid[] = {node.kernel.gridDimX, node.kernel.gridDimY, node.kernel.gridDimZ};
    const unsigned of_base[] = {base.kernel.gridDimX, base.kernel.gridDimY, base.kernel.gridDimZ};
    std::memcpy(out, grid, sizeof grid);
    return piece.count == 0 && std::memcmp(grid, of_base, sizeof grid) != 0;
  }
  const unsigned char* const of_base = base_->bytes.data() + base.bytes;
  std::memcpy(out, of.bytes.data() + node.bytes + piece.offset, piece.size);
  // What slots write is written in any case, so it does not count.
  std::for_each(first, first + piece.count, [&](const updater::Update& update) {
    std::memcpy(out + (update.offset - piece.offset), of_base + update.offset, update.size);
  });
  return std::memcmp(out, of_base + piece.offset, piece.size) != 0;
}

// Pieces that do not differ from the base are left out, unless the set is to be whole.
ParameterTable::Set ParameterTable::make_set(const Content& of, bool whole) const {
  std::vector<unsigned> sources(written_.pieces.size());
  std::size_t end = aligned(sources.size() * sizeof(unsigned));
  Set built(end);
  auto piece = written_.pieces.begin();
  for (const WrittenNodes::Node& node : written_.nodes) {
    for (std::uint32_t k = 0; k < node.pieces; ++k, ++piece) {
      unsigned char bytes[updater::kPiece] = {};
      if (!fill(*piece, of, node.index, bytes) && !whole) continue;
      sources[static_cast<std::size_t>(piece - written_.pieces.begin())] = static_cast<unsigned>(end);
      built.insert(built.end(), bytes, bytes + aligned(piece->size));
      end = built.size();
    }
  }
  std::memcpy(built.data(), sources.data(), sources.size() * sizeof(unsigned));
  return built;
}

CallResult ParameterTable::add(const Content& of, const Set& set, DeviceMemory& memory, Event* ready) {
  const std::size_t bytes = set.size();
  if (bytes > free_.size()) {
    const std::size_t size = std::max(kChunk, bytes);
    DeviceMemory::Block& chunk = chunks_.emplace_back();
    if (const CallResult taken = memory.take(size, &chunk); taken.error != cudaSuccess) return taken;
    free_ = {static_cast<unsigned char*>(chunk.get()), size};
  }
  const CallResult done = memory.copy(free_.data(), set.data(), bytes, ready);
  if (done.error != cudaSuccess) return done;
  places_[of.id] = free_.data();
  free_ = free_.subspan(bytes);
  return done;
}

}  // namespace graphcache
