#include "graph/compare.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "graph/inspect.h"
#include "graph/node_names.h"
#include "graph/signature.h"

namespace graphcache {
namespace {

// ---- Texts ----------------------------------------------------------------------------------------------------------

// What a value points to if it may be a pointer, else empty.
std::string place_of(std::uint64_t value) {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 16, kEnd = std::uint64_t{1} << 57;
  if (value < kLeast || value >= kEnd) return "";
  cudaPointerAttributes memory = {};
  if (cudaPointerGetAttributes(&memory, reinterpret_cast<const void*>(value)) != cudaSuccess) return "";
  switch (memory.type) {
    case cudaMemoryTypeDevice:
      return absl::StrCat("memory of device ", memory.device);
    case cudaMemoryTypeManaged:
      return "managed memory";
    case cudaMemoryTypeHost:
      return "pinned host memory";
    default:
      // Smaller values are numbers more often than addresses.
      constexpr std::uint64_t kLeastOfHost = std::uint64_t{1} << 32;
      if (value < kLeastOfHost || value >= std::uint64_t{1} << 47) return "";
      return is_on_this_threads_stack(reinterpret_cast<const void*>(value)) ? "on this thread's stack"
                                                                            : "pageable host memory or freed memory";
  }
}

template <class T>
T as(const unsigned char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::string text_of(const void* pointer) {
  const auto value = reinterpret_cast<std::uintptr_t>(pointer);
  const std::string place = place_of(value);
  return place.empty() ? absl::StrFormat("%#x", value) : absl::StrFormat("%#x (%s)", value, place);
}

// A value of unknown type: its hexadecimal digits, and what it may point to.
std::string text_of(const unsigned char* bytes, std::size_t size) {
  switch (size) {
    case 1:
      return absl::StrCat(as<std::uint8_t>(bytes));
    case 2:
      return absl::StrFormat("%#x (%d)", as<std::uint16_t>(bytes), as<std::int16_t>(bytes));
    case 4:
      return absl::StrFormat("%#x (%d, as a float %g)", as<std::uint32_t>(bytes), as<std::int32_t>(bytes),
                             as<float>(bytes));
    case 8: {
      const auto value = as<std::uint64_t>(bytes);
      const std::string place = place_of(value);
      if (!place.empty()) return absl::StrFormat("%#x (%s)", value, place);
      return absl::StrFormat("%#x (%d, as a double %g)", value, as<std::int64_t>(bytes), as<double>(bytes));
    }
    default: {
      std::string digits;
      for (std::size_t i = 0; i < size; ++i) {
        absl::StrAppendFormat(&digits, "%s%02x", i == 0 ? "" : " ", bytes[i]);
      }
      return digits;
    }
  }
}

std::string text_of(unsigned x, unsigned y, unsigned z) { return absl::StrFormat("(%u, %u, %u)", x, y, z); }

std::string was_and_is(std::string_view what, const std::string& was, const std::string& is) {
  return absl::StrCat(std::string(what), " was ", was, " when the key was recorded, and is ", is, " now");
}

// ---- The comparison -------------------------------------------------------------------------------------------------

const Slots kNoSlots;

// One of the two recordings.
struct Side {
  Side(const Template& of, const Content& of_graph) : graph(of), slots(of_graph.slots), content(of_graph) {}
  // For nodes inside a node, which hold no slots.
  Side(const Template& body, const Side& of) : graph(body), slots(kNoSlots), content(of.content) {}

  const NodeContent& node(std::uint32_t index) const { return reading.content.nodes[index]; }
  const unsigned char* bytes(const NodeContent& node) const { return reading.content.bytes.data() + node.bytes; }
  template <class Params>
  Params params(const NodeContent& node) const {
    return as<Params>(bytes(node));
  }
  std::string_view signature(std::uint32_t begin, std::uint32_t end) const {
    return std::string_view(reading.signature).substr(begin, end - begin);
  }
  // The slot node with this index, or null.
  const SlotNode* slot_node(std::uint32_t index) const {
    const auto found = std::lower_bound(slots.nodes.begin(), slots.nodes.end(), index,
                                        [](const SlotNode& node, std::uint32_t i) { return node.index < i; });
    return found != slots.nodes.end() && found->index == index ? &*found : nullptr;
  }
  // The binding of the slot node's field or argument, or null.
  const Binding* field(const SlotNode* node, std::size_t offset) const {
    return node == nullptr ? nullptr : slots.binding(*node, node->fields + offset);
  }
  const Binding* argument(const SlotNode* node, std::uint32_t index) const {
    if (node == nullptr || index >= node->argument_count) return nullptr;
    return slots.binding(*node, slots.arguments[node->first_argument + index]);
  }

  const Template& graph;
  const Slots& slots;
  const Content& content;
  Reading reading;
};

class Comparison {
 public:
  Comparison(const Template& kept, const Content& of_kept, const Template& now, const Content& of_now)
      : kept_(kept, of_kept), now_(now, of_now) {}
  // With a second new recording.
  Comparison(const Template& kept, const Content& of_kept, const Template& now, const Content& of_now,
             const Template& again, const Content& of_again)
      : kept_(kept, of_kept), now_(now, of_now), again_(std::in_place, again, of_again) {}

  std::optional<std::string> run() {
    for (Side* const side : {&kept_, &now_, again_ ? &*again_ : nullptr}) {
      if (side == nullptr) continue;
      std::optional<Reading> reading = read_all(side->graph);
      if (!reading) return std::nullopt;
      side->reading = *std::move(reading);
    }
    find_own_memory();
    std::string found = compare_nodes();
    return found.empty() ? compare_inner() : found;
  }

 private:
  // Compares nodes inside a node of each.
  Comparison(const Template& kept, const Template& now, const Comparison& around)
      : kept_(kept, around.kept_), now_(now, around.now_), own_memory_(around.own_memory_) {}

  std::string compare_nodes() {
    const auto kept = static_cast<std::uint32_t>(kept_.graph.nodes.size());
    const auto now = static_cast<std::uint32_t>(now_.graph.nodes.size());
    std::string found;
    for (std::uint32_t i = 0; i < std::min(kept, now) && found.empty(); ++i) {
      compare(i);
      if (!found_.empty()) found = absl::StrCat("node ", i, " (", kind_of(kept_.node(i)), "): ", found_);
    }
    if (kept == now) return found;
    if (found.empty()) {
      const bool is_missing = now < kept;
      const std::uint32_t first = std::min(kept, now);
      found = absl::StrCat("node ", first, " (", kind_of((is_missing ? kept_ : now_).node(first)),
                           is_missing ? ") is missing now" : ") is new");
    }
    return absl::StrCat(was_and_is("the number of nodes", absl::StrCat(kept), absl::StrCat(now)), "; ", found);
  }

  // Compares the nodes inside nodes, unless they cannot be read. Undefined bytes of arguments count there.
  std::optional<std::string> compare_inner() const {
    const std::vector<InnerNodes>&kept = kept_.graph.inner, &now = now_.graph.inner;
    for (std::size_t i = 0; i < std::min(kept.size(), now.size()); ++i) {
      if (kept[i].name != now[i].name) return was_and_is(absl::StrCat("part ", i), kept[i].name, now[i].name);
      Template of_kept, of_now;
      of_kept.nodes = kept[i].nodes;
      of_now.nodes = now[i].nodes;
      std::optional<std::string> found = Comparison(of_kept, of_now, *this).run_inner();
      if (!found) return std::nullopt;
      if (!found->empty()) return absl::StrCat(kept[i].name, ", ", *found);
    }
    if (kept.size() == now.size()) return "";
    return was_and_is("the number of parts of bodies", absl::StrCat(kept.size()), absl::StrCat(now.size()));
  }

  std::optional<std::string> run_inner() {
    for (Side* const side : {&kept_, &now_}) {
      std::optional<Reading> reading = read_all(side->graph);
      if (!reading) return std::nullopt;
      side->reading = *std::move(reading);
    }
    return compare_nodes();
  }

  // A block of memory that each recording got for itself.
  struct OwnMemory {
    std::uint64_t kept, now;
    std::size_t size;
  };

  void find_own_memory() {
    const auto add = [this](const void* kept, const void* now, std::size_t size) {
      own_memory_.push_back({reinterpret_cast<std::uintptr_t>(kept), reinterpret_cast<std::uintptr_t>(now), size});
    };
    const auto &needed = kept_.content.needs, &needed_now = now_.content.needs;
    for (std::size_t i = 0; i < std::min(needed.size(), needed_now.size()); ++i) {
      add(needed[i].get(), needed_now[i].get(), sizeof(void*));
    }
    const auto &kept = kept_.content.kept_memory, &now = now_.content.kept_memory;
    for (std::size_t i = 0; i < std::min(kept.size(), now.size()); ++i) {
      add(kept[i].begin, now[i].begin, std::max<std::size_t>(1, std::min(kept[i].bytes, now[i].bytes)));
    }
    const auto &of_kept = kept_.graph.handles, &of_now = now_.graph.handles;
    for (std::size_t i = 0; i < std::min(of_kept.size(), of_now.size()); ++i) {
      own_memory_.push_back({of_kept[i], of_now[i], 1});
    }
    const std::size_t nodes = std::min(kept_.graph.nodes.size(), now_.graph.nodes.size());
    for (std::uint32_t i = 0; i < nodes; ++i) {
      const bool both =
          kept_.node(i).type == cudaGraphNodeTypeMemAlloc && now_.node(i).type == cudaGraphNodeTypeMemAlloc;
      void *a = nullptr, *b = nullptr;
      std::size_t bytes_of_a = 0, bytes_of_b = 0;
      if (both && allocated_memory(kept_.graph.nodes[i], &a, &bytes_of_a).error == cudaSuccess &&
          allocated_memory(now_.graph.nodes[i], &b, &bytes_of_b).error == cudaSuccess) {
        add(a, b, std::min(bytes_of_a, bytes_of_b));
      }
    }
  }

  bool same_word(std::uint64_t kept, std::uint64_t now) const {
    if (kept == now) return true;
    return std::any_of(own_memory_.begin(), own_memory_.end(), [&](const OwnMemory& memory) {
      return kept - memory.kept < memory.size && kept - memory.kept == now - memory.now;
    });
  }
  bool same(const void* kept, const void* now) const {
    return same_word(reinterpret_cast<std::uintptr_t>(kept), reinterpret_cast<std::uintptr_t>(now));
  }

  // Records a difference in this node. The first one is kept.
  void find(std::string what) {
    if (found_.empty()) found_ = std::move(what);
  }
  void find(std::string_view what, const std::string& was, const std::string& is) { find(was_and_is(what, was, is)); }

  // Whether a field's values must be compared, because it follows a slot in neither recording.
  bool is_constant(const std::string& what, const Binding* kept, const Binding* now) {
    if (kept == nullptr && now == nullptr) return true;
    if (kept == nullptr || now == nullptr) {
      find(what, kept == nullptr ? "a constant" : "a slot", now == nullptr ? "a constant" : "a slot");
    } else if (kept->offset != now->offset || kept->size != now->size || kept->convert != now->convert) {
      find(what, "a slot", "another slot");
    }
    return false;
  }
  bool is_constant(const std::string& what, std::uint32_t index, std::size_t field) {
    return is_constant(what, kept_.field(kept_.slot_node(index), field), now_.field(now_.slot_node(index), field));
  }

  void compare(std::uint32_t index) {
    const NodeContent& kept = kept_.node(index);
    const NodeContent& now = now_.node(index);
    if (kept.type != now.type) return find(absl::StrCat("is a ", kind_of(now), " now"));
    const Reading::Part& a = kept_.reading.parts[index];
    const Reading::Part& b = now_.reading.parts[index];
    const bool same_place = kept_.signature(a.begin, a.dependencies_end) == now_.signature(b.begin, b.dependencies_end);
    switch (kept.type) {
      case cudaGraphNodeTypeKernel:
        compare_kernels(index, kept, now);
        compare_attributes(kept_.signature(a.dependencies_end, a.end), now_.signature(b.dependencies_end, b.end));
        break;
      case cudaGraphNodeTypeMemcpy:
        if (kept.size != 0 && now.size != 0) compare_copies(index, kept, now);
        break;
      case cudaGraphNodeTypeMemset:
        if (kept.size != 0 && now.size != 0) compare_sets(index, kept, now);
        break;
      case cudaGraphNodeTypeHost:
        if (kept.size != 0 && now.size != 0) compare_host_functions(kept, now);
        break;
      case cudaGraphNodeTypeMemAlloc:
      case cudaGraphNodeTypeMemFree:
        compare_memory(index, kept.type);
        break;
      default:
        break;
    }
    if (!same_place) find("it depends on other nodes now");
  }

  void compare_kernels(std::uint32_t index, const NodeContent& kept, const NodeContent& now) {
    const CUDA_KERNEL_NODE_PARAMS& a = kept.kernel;
    const CUDA_KERNEL_NODE_PARAMS& b = now.kernel;
    const auto is_known = [](const CUDA_KERNEL_NODE_PARAMS& kernel) {
      return kernel.func != nullptr || kernel.kern != nullptr;
    };
    if (!is_known(a) || !is_known(b)) return;
    if (a.func != b.func || a.kern != b.kern) {
      const std::string was = name_of(a), is = name_of(b);
      return find("the kernel", was, was == is ? absl::StrCat(is, " of another module, or on another device") : is);
    }
    if (is_constant("the grid", index, offsetof(KernelFields, grid)) &&
        (a.gridDimX != b.gridDimX || a.gridDimY != b.gridDimY || a.gridDimZ != b.gridDimZ)) {
      find("the grid", text_of(a.gridDimX, a.gridDimY, a.gridDimZ), text_of(b.gridDimX, b.gridDimY, b.gridDimZ));
    }
    if (is_constant("the block", index, offsetof(KernelFields, block)) &&
        (a.blockDimX != b.blockDimX || a.blockDimY != b.blockDimY || a.blockDimZ != b.blockDimZ)) {
      find("the block", text_of(a.blockDimX, a.blockDimY, a.blockDimZ), text_of(b.blockDimX, b.blockDimY, b.blockDimZ));
    }
    if (is_constant("dynamic shared memory", index, offsetof(KernelFields, shared_bytes)) &&
        a.sharedMemBytes != b.sharedMemBytes) {
      find("dynamic shared memory", absl::StrCat(a.sharedMemBytes), absl::StrCat(b.sharedMemBytes));
    }
    if (!kept.readable || !now.readable || kept.argument_count != now.argument_count) return;
    const SlotNode* const kept_slots = kept_.slot_node(index);
    const SlotNode* const now_slots = now_.slot_node(index);
    for (std::uint32_t i = 0; i < kept.argument_count && found_.empty(); ++i) {
      const std::string what = absl::StrCat("argument ", i);
      if (!is_constant(what, kept_.argument(kept_slots, i), now_.argument(now_slots, i))) continue;
      const std::uint32_t offset = kept_.reading.content.arguments[kept.first_argument + i];
      compare_bytes(what, kept_.bytes(kept) + offset, now_.bytes(now) + offset, bytes_again(index, now, offset),
                    kept_.reading.sizes[kept.first_argument + i]);
    }
  }

  // The bytes of a kernel's argument in the second new recording, or null.
  const unsigned char* bytes_again(std::uint32_t index, const NodeContent& now, std::uint32_t offset) const {
    if (!again_ || index >= again_->graph.nodes.size()) return nullptr;
    const NodeContent& again = again_->node(index);
    const bool is_same = again.type == cudaGraphNodeTypeKernel && again.readable &&
                         again.kernel.func == now.kernel.func && again.kernel.kern == now.kernel.kern &&
                         again.argument_count == now.argument_count;
    return is_same ? again_->bytes(again) + offset : nullptr;
  }

  void compare_attributes(std::string_view kept, std::string_view now) {
    const bool known = !kept.empty() && !now.empty();
    if (known && kept != now) find("its launch attributes (cooperative, cluster size) have changed");
  }

  // Compares word by word, because a structure may contain addresses. Bytes that differ between the two new recordings
  // are undefined, or are stack addresses.
  void compare_bytes(const std::string& what, const unsigned char* kept, const unsigned char* now,
                     const unsigned char* again, std::size_t size) {
    constexpr std::size_t kWord = sizeof(std::uint64_t);
    if (std::memcmp(kept, now, size) == 0) return;
    for (std::size_t at = 0; at < size; at += kWord) {
      const std::size_t length = std::min(kWord, size - at);
      bool differs = false;
      for (std::size_t i = at; i < at + length; ++i) {
        differs = differs || (kept[i] != now[i] && (again == nullptr || again[i] == now[i]));
      }
      if (!differs) continue;
      if (length == kWord && same_word(as<std::uint64_t>(kept + at), as<std::uint64_t>(now + at))) continue;
      if (length == kWord && again != nullptr && are_of_stack(kept + at, now + at, again + at)) continue;
      const std::string where =
          size <= kWord ? what : absl::StrFormat("%s, bytes %d to %d of %d", what, at, at + length - 1, size);
      return find(where, text_of(kept + at, length), text_of(now + at, length));
    }
  }

  // Whether these are addresses of a variable on the stack, which is elsewhere in each recording. Their upper bytes may
  // be equal in both new ones.
  static bool are_of_stack(const unsigned char* kept, const unsigned char* now, const unsigned char* again) {
    const void* const of_now = as<const void*>(now);
    const void* const of_again = as<const void*>(again);
    if (of_now == of_again || !is_on_a_stack(of_now) || !is_on_a_stack(of_again)) return false;
    bool pageable = false;
    (void)find_pageable(as<const void*>(kept), &pageable);
    return pageable;
  }

  void compare_addresses(std::string_view what, const void* kept, const void* now) {
    if (!same(kept, now)) find(what, text_of(kept), text_of(now));
  }
  void compare_numbers(std::string_view what, std::uint64_t kept, std::uint64_t now) {
    if (kept != now) find(what, absl::StrCat(kept), absl::StrCat(now));
  }

  void compare_copies(std::uint32_t index, const NodeContent& kept, const NodeContent& now) {
    const auto a = kept_.params<cudaMemcpy3DParms>(kept), b = now_.params<cudaMemcpy3DParms>(now);
    const bool dst = is_constant("the target", index, offsetof(MemcpyFields, dst));
    const bool src = is_constant("the source", index, offsetof(MemcpyFields, src));
    const bool bytes = is_constant("the size", index, offsetof(MemcpyFields, bytes));
    if (dst) compare_addresses("the target", a.dstPtr.ptr, b.dstPtr.ptr);
    if (src) compare_addresses("the source", a.srcPtr.ptr, b.srcPtr.ptr);
    if (bytes) compare_numbers("the size", a.extent.width, b.extent.width);
    // The kind follows from the memory at both ends, so it means nothing where an end is a slot.
    if (dst && src) compare_numbers("the kind (cudaMemcpyKind)", a.kind, b.kind);
    // The remaining fields of a copy of rows; copies of one row have none.
    const auto rest = [](const cudaMemcpy3DParms& copy) {
      const bool has_rows = copy.extent.height > 1 || copy.extent.depth > 1;
      return std::tuple(copy.dstArray, copy.srcArray, copy.dstPos.x, copy.dstPos.y, copy.dstPos.z, copy.srcPos.x,
                        copy.srcPos.y, copy.srcPos.z, has_rows ? copy.dstPtr.pitch : 0,
                        has_rows ? copy.srcPtr.pitch : 0, copy.extent.height, copy.extent.depth);
    };
    if (rest(a) != rest(b)) find("its arrays, positions, pitches or numbers of rows have changed");
  }

  void compare_sets(std::uint32_t index, const NodeContent& kept, const NodeContent& now) {
    const auto a = kept_.params<cudaMemsetParams>(kept), b = now_.params<cudaMemsetParams>(now);
    if (is_constant("the target", index, offsetof(MemsetFields, dst))) compare_addresses("the target", a.dst, b.dst);
    if (is_constant("the value", index, offsetof(MemsetFields, value))) compare_numbers("the value", a.value, b.value);
    if (!is_constant("the size", index, offsetof(MemsetFields, bytes))) return;
    compare_numbers("the size of an element", a.elementSize, b.elementSize);
    compare_numbers("the width", a.width, b.width);
    compare_numbers("the height", a.height, b.height);
    if (a.height > 1) compare_numbers("the pitch", a.pitch, b.pitch);
  }

  void compare_host_functions(const NodeContent& kept, const NodeContent& now) {
    const auto a = kept_.params<cudaHostNodeParams>(kept), b = now_.params<cudaHostNodeParams>(now);
    compare_addresses("the function", reinterpret_cast<const void*>(a.fn), reinterpret_cast<const void*>(b.fn));
    compare_addresses("its data", a.userData, b.userData);
  }

  void compare_memory(std::uint32_t index, cudaGraphNodeType type) {
    const cudaGraphNode_t kept = kept_.graph.nodes[index], now = now_.graph.nodes[index];
    void *a = nullptr, *b = nullptr;
    if (type == cudaGraphNodeTypeMemAlloc) {
      std::size_t bytes_of_a = 0, bytes_of_b = 0;
      if (allocated_memory(kept, &a, &bytes_of_a).error != cudaSuccess) return;
      if (allocated_memory(now, &b, &bytes_of_b).error == cudaSuccess) {
        compare_numbers("the size", bytes_of_a, bytes_of_b);
      }
    } else {
      if (freed_memory(kept, &a).error != cudaSuccess) return;
      if (freed_memory(now, &b).error == cudaSuccess) compare_addresses("its memory", a, b);
    }
  }

  Side kept_, now_;
  std::optional<Side> again_;
  std::vector<OwnMemory> own_memory_;
  std::string found_;
};

}  // namespace

std::optional<std::string> first_difference(const Template& kept, const Content& of_kept, const Template& now,
                                            const Content& of_now) {
  LastErrorGuard last_error;
  return Comparison(kept, of_kept, now, of_now).run();
}

std::optional<std::string> first_difference(const Template& kept, const Content& of_kept, const Template& now,
                                            const Content& of_now, const Template& again, const Content& of_again) {
  LastErrorGuard last_error;
  return Comparison(kept, of_kept, now, of_now, again, of_again).run();
}

}  // namespace graphcache
