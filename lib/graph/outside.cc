#include "graph/outside.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "graph/describe.h"
#include "graph/fields.h"

namespace graphcache {
namespace {

struct Range {
  const char* begin;
  std::size_t size;
};

// What a copy reads or writes, from its first byte to its last, or nothing for arrays.
Range range_of(const cudaMemcpy3DParms& copy, const cudaPitchedPtr& memory, const cudaPos& at) {
  if (memory.ptr == nullptr || copy.extent.width == 0) return {nullptr, 0};
  const std::size_t rows = std::max<std::size_t>(1, copy.extent.height);
  const std::size_t last = (std::max<std::size_t>(1, copy.extent.depth) - 1) * memory.ysize + rows - 1;
  const std::size_t first = at.z * memory.ysize + at.y;
  return {static_cast<const char*>(memory.ptr) + first * memory.pitch + at.x, last * memory.pitch + copy.extent.width};
}

bool overlap(const Range& a, const Range& b) {
  const std::less<> before;
  return before(a.begin, b.begin + b.size) && before(b.begin, a.begin + a.size);
}

}  // namespace

std::optional<std::uint64_t> allocation_at(std::uint64_t address) {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 16, kEnd = std::uint64_t{1} << 57;
  const auto get = driver().pointer_attribute;
  if (address < kLeast || address >= kEnd || get == nullptr || !has_context()) return std::nullopt;
  unsigned long long id = 0;
  const CUresult result = get(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, static_cast<CUdeviceptr>(address));
  return result == CUDA_SUCCESS ? std::optional<std::uint64_t>(id) : std::nullopt;
}

void note_allocations(const Template& graph, Content* content) {
  const std::optional<Reading> reading = read_all(graph);
  if (!reading) return;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    for (const Field& field : fields_of(*reading, content->slots, i)) {
      if (field.slot != nullptr || (field.kind != Field::Kind::kBytes && field.kind != Field::Kind::kAddress)) continue;
      std::uint64_t word = 0;
      for (std::size_t at = 0; at + sizeof word <= field.value.size(); at += sizeof word) {
        std::memcpy(&word, field.value.data() + at, sizeof word);
        if (const auto id = allocation_at(word)) content->allocations.emplace(word, *id);
      }
    }
  }
}

HostSources::HostSources(const Template& graph, const Content& content) : content_(content) {
  const bool by_driver = has_context();
  std::vector<Range> targets;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    if (node_type(graph.nodes[i], by_driver, &type) != cudaSuccess || type == cudaGraphNodeTypeHost) {
      sources_.clear();
      return;
    }
    cudaMemcpy3DParms copy = {};
    if (type != cudaGraphNodeTypeMemcpy || copy_params(graph.nodes[i], &copy).error != cudaSuccess) continue;
    targets.push_back(range_of(copy, copy.dstPtr, copy.dstPos));
    const SlotNode* const slots = content.slots.node(static_cast<std::uint32_t>(i));
    if (slots != nullptr && content.slots.binding(*slots, slots->fields + offsetof(MemcpyFields, src)) != nullptr) {
      continue;
    }
    if (const auto found = hash(copy)) sources_.push_back({i, copy, *found});
  }
  const auto is_written = [&](const Source& source) {
    const Range read = range_of(source.copy, source.copy.srcPtr, source.copy.srcPos);
    return std::any_of(targets.begin(), targets.end(), [&](const Range& target) { return overlap(read, target); });
  };
  sources_.erase(std::remove_if(sources_.begin(), sources_.end(), is_written), sources_.end());
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
  const Range range = range_of(copy, copy.srcPtr, copy.srcPos);
  if (range.begin == nullptr) return std::nullopt;
  const auto is_kept = [&](const KeptMemory& kept) {
    const std::less_equal<> up_to;
    const auto* const begin = static_cast<const char*>(kept.begin);
    return kept.begin == range.begin ||
           (up_to(begin, range.begin) && up_to(range.begin + range.size, begin + kept.bytes));
  };
  if (std::none_of(content_.kept_memory.begin(), content_.kept_memory.end(), is_kept)) {
    cudaPointerAttributes attributes = {};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, range.begin);
    if (error != cudaSuccess || attributes.type != cudaMemoryTypeHost) return std::nullopt;
    const auto first = reinterpret_cast<std::uintptr_t>(range.begin);
    const auto allocation = allocation_at(first);
    if (!allocation || allocation_at(first + range.size - 1) != allocation) return std::nullopt;
  }
  const std::size_t rows = std::max<std::size_t>(1, copy.extent.height);
  std::uint64_t hash = 0;
  for (std::size_t z = 0; z < std::max<std::size_t>(1, copy.extent.depth); ++z) {
    for (std::size_t y = 0; y < rows; ++y) {
      const char* const row = range.begin + (z * copy.srcPtr.ysize + y) * copy.srcPtr.pitch;
      hash = hash * 31 + std::hash<std::string_view>()(std::string_view(row, copy.extent.width));
    }
  }
  return hash;
}

}  // namespace graphcache
