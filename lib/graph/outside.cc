#include "graph/outside.h"

#include <absl/strings/str_cat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <string_view>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "graph/describe.h"
#include "graph/fields.h"
#include "graph/inspect.h"

namespace graphcache {
namespace {

// What a copy reads, from its first byte to its last, or nothing of arrays.
absl::Span<const char> source_of(const cudaMemcpy3DParms& copy) {
  const cudaPitchedPtr& memory = copy.srcPtr;
  const cudaPos& at = copy.srcPos;
  if (memory.ptr == nullptr || copy.extent.width == 0) return {};
  const std::size_t rows = std::max<std::size_t>(1, copy.extent.height);
  const std::size_t last = (std::max<std::size_t>(1, copy.extent.depth) - 1) * memory.ysize + rows - 1;
  const std::size_t first = at.z * memory.ysize + at.y;
  return {static_cast<const char*>(memory.ptr) + first * memory.pitch + at.x, last * memory.pitch + copy.extent.width};
}

// Queries attributes of the memory at an address. CUDA says 0 of memory that it does not know.
template <std::size_t N>
bool ask(std::uint64_t address, CUpointer_attribute (&&attributes)[N], void* (&&out)[N]) {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 16, kEnd = std::uint64_t{1} << 57;
  if (address < kLeast || address >= kEnd || !has_context()) return false;
  return driver().pointer_attributes(N, attributes, out, static_cast<CUdeviceptr>(address)) == cudaSuccess;
}

// Whether the key names the address.
bool is_in_key(const Key& whole, std::uint64_t address) {
  const Key part = key(reinterpret_cast<const void*>(address));
  return std::string_view(whole.data(), whole.size()).find(std::string_view(part.data(), part.size())) !=
         std::string_view::npos;
}

}  // namespace

AddressRange allocation_at(std::uint64_t address) {
  AddressRange found;
  const bool is_known = ask(
      address, {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID},
      {&found.begin, &found.size, &found.id});
  return is_known ? found : AddressRange();
}

bool is_host_memory(std::uint64_t address) {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 16, kBytes = 8, kEnd = std::uint64_t{1} << 47;
  if (address < kLeast || address >= kEnd) return false;
  // The kernel reads the set of signals before it refuses what should be done with them.
  const int before = errno;
  const long done = syscall(SYS_rt_sigprocmask, ~0, address / kBytes * kBytes, nullptr, kBytes);
  const bool is_readable = done == -1 && errno == EINVAL;
  errno = before;
  return is_readable && allocation_at(address).id == 0;
}

std::uint64_t memory_kind(std::uint64_t address, int device) {
  unsigned type = 0, is_managed = 0;
  int ordinal = 0;
  if (!ask(address,
           {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
           {&type, &is_managed, &ordinal})) {
    return address == 0 ? 0 : 1;
  }
  if (type == CU_MEMORYTYPE_DEVICE && is_managed == 0 && ordinal == device) return 0;
  return 2 + type + (is_managed << 8) + (static_cast<std::uint64_t>(type == CU_MEMORYTYPE_DEVICE ? ordinal : 0) << 16);
}

void note_allocations(const Template& graph, Content* content) {
  const std::optional<Reading> reading = read_all(graph, content->slots);
  if (!reading) return;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    for (const Field& field : fields_of(*reading, content->slots, i)) {
      if (field.slot != nullptr || (field.kind != Field::Kind::kBytes && field.kind != Field::Kind::kAddress)) continue;
      for (std::size_t at = 0; at + sizeof(std::uint64_t) <= field.value.size(); at += sizeof(std::uint64_t)) {
        const auto word = read_as<std::uint64_t>(field.value.data() + at);
        const AddressRange memory = allocation_at(word);
        const auto is_of_value = [&](const AddressRange& of) { return word - of.begin < of.size; };
        if (memory.id != 0 && !is_in_key(content->key, word) && !is_in_key(content->key, memory.begin) &&
            std::ranges::none_of(content->ranges, is_of_value)) {
          content->allocations.emplace(word, memory.id);
        }
      }
    }
  }
}

void note_ranges(const detail::Call& call, Content* content) {
  const absl::Span<const detail::ValuePlace> places = call.places();
  content->ranges.resize(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (call.list != nullptr) {  // Without its end, where other memory may begin.
      const ValueList::Memory& memory = call.list->memory()[i];
      content->ranges[i] = {reinterpret_cast<std::uintptr_t>(memory.begin), memory.bytes - (memory.bytes != 0)};
    } else if (places[i].is_pointer) {
      content->ranges[i] = allocation_at(read_as<std::uint64_t>(content->values.data() + places[i].offset));
    }
  }
}

HostSources::HostSources(const Template& graph, const Content& content) : content_(content) {
  if (!has_context()) return;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    if (node_type(graph.nodes[i], &type) != cudaSuccess || type != cudaGraphNodeTypeMemcpy) continue;
    cudaMemcpy3DParms copy = {};
    if (cudaGraphMemcpyNodeGetParams(graph.nodes[i], &copy) != cudaSuccess) continue;
    const SlotNode* const node = content.slots.node(i);
    if (content.slots.binding(node, offsetof(cudaMemcpy3DParms, srcPtr.ptr)) != nullptr) continue;
    if (node != nullptr) put_captured(content.slots, *node, &copy);
    if (const auto found = hash(copy)) sources_.push_back({i, copy, *found});
  }
}

std::string HostSources::change() const {
  for (const Source& source : sources_) {
    const auto now = hash(source.copy);
    if (!now || *now == source.hash) continue;
    return absl::StrCat("node ", source.node, " (copy): the bytes of its source were others before this call of fn, ",
                        "which writes there; a replay copies what another call has left");
  }
  return "";
}

std::optional<std::uint64_t> HostSources::hash(const cudaMemcpy3DParms& copy) const {
  const absl::Span<const char> range = source_of(copy);
  if (range.empty()) return std::nullopt;
  const auto is_kept = [&](const KeptMemory& kept) { return kept.contains(range.data(), range.size()); };
  const PointerAttributes attributes(range.data());
  if (attributes.type == cudaMemoryTypeHost) {
    const auto first = reinterpret_cast<std::uintptr_t>(range.data());
    const AddressRange allocation = allocation_at(first);
    if (first + range.size() - allocation.begin > allocation.size) return std::nullopt;
  } else if (!attributes.is_pageable() || std::ranges::none_of(content_.kept_memory, is_kept)) {
    return std::nullopt;
  }
  const std::size_t rows = std::max<std::size_t>(1, copy.extent.height);
  std::uint64_t hash = 0;
  for (std::size_t z = 0; z < std::max<std::size_t>(1, copy.extent.depth); ++z) {
    for (std::size_t y = 0; y < rows; ++y) {
      const char* const row = range.data() + (z * copy.srcPtr.ysize + y) * copy.srcPtr.pitch;
      hash = hash * 31 + std::hash<std::string_view>()(std::string_view(row, copy.extent.width));
    }
  }
  return hash;
}

}  // namespace graphcache
