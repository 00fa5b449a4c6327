#include "graph/compare.h"

#include <absl/strings/str_cat.h>
#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/compat.h"
#include "cuda/errors.h"
#include "graph/describe.h"
#include "graph/fields.h"
#include "graph/inspect.h"
#include "graph/outside.h"

namespace graphcache {
namespace {

// ---- Texts ----------------------------------------------------------------------------------------------------------

// What a value points to if it may be a pointer, else empty.
std::string place_of(std::uint64_t value) {
  // Addresses of the host's memory, as a rule. A smaller value is rather a number, or two.
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 38, kEnd = std::uint64_t{1} << 47;
  const PointerAttributes memory(reinterpret_cast<const void*>(value));
  if (memory.query.error != cudaSuccess) return "";
  switch (memory.type) {
    case cudaMemoryTypeDevice:
      return absl::StrCat("memory of device ", memory.device);
    case cudaMemoryTypeManaged:
      return "managed memory";
    case cudaMemoryTypeHost:
      return "pinned host memory";
    default:
      if (value < kLeast || value >= kEnd) return "";
      return is_on_this_threads_stack(reinterpret_cast<const void*>(value)) ? "on this thread's stack"
                                                                            : "pageable host memory or freed memory";
  }
}

// Not by absl::StrFormat here and below, which ends the process if memory runs out.
template <class T>
std::string hex_of(T value) {
  return absl::StrCat("0x", absl::Hex(value));
}

// With what the value points to, or else with `otherwise`.
std::string text_of(std::uint64_t value, const std::string& otherwise) {
  const std::string place = place_of(value);
  return absl::StrCat(hex_of(value), place.empty() ? otherwise : absl::StrCat(" (", place, ")"));
}

// A value of unknown type: its hexadecimal digits, and what it may point to.
std::string text_of(const unsigned char* bytes, std::size_t size) {
  switch (size) {
    case 1:
      return absl::StrCat(read_as<std::uint8_t>(bytes));
    case 2:
      return absl::StrCat(hex_of(read_as<std::uint16_t>(bytes)), " (", read_as<std::int16_t>(bytes), ")");
    case 4:
      return absl::StrCat(hex_of(read_as<std::uint32_t>(bytes)), " (", read_as<std::int32_t>(bytes), ", as a float ",
                          read_as<float>(bytes), ")");
    case 8: {
      const auto value = read_as<std::uint64_t>(bytes);
      return text_of(value,
                     absl::StrCat(" (", read_as<std::int64_t>(bytes), ", as a double ", read_as<double>(bytes), ")"));
    }
    default: {
      std::string digits;
      for (std::size_t i = 0; i < size; ++i) {
        absl::StrAppend(&digits, i == 0 ? "" : " ", absl::Hex(bytes[i], absl::kZeroPad2));
      }
      return digits;
    }
  }
}

const unsigned char* bytes_of(const Field& field) { return reinterpret_cast<const unsigned char*>(field.value.data()); }

// An address, a shape or a number.
std::string text_of(const Field& field) {
  const unsigned char* const bytes = bytes_of(field);
  if (field.kind == Field::Kind::kAddress) return text_of(read_as<std::uint64_t>(bytes), "");
  if (field.kind == Field::Kind::kShape) {
    const auto [x, y, z] = read_as<std::array<unsigned, 3>>(bytes);
    return absl::StrCat("(", x, ", ", y, ", ", z, ")");
  }
  const bool is_wide = field.value.size() == sizeof(std::uint64_t);
  return absl::StrCat(is_wide ? read_as<std::uint64_t>(bytes) : read_as<std::uint32_t>(bytes));
}

std::string was_and_is(std::string_view what, const std::string& was, const std::string& is,
                       std::string_view when = "when the key was recorded") {
  return absl::StrCat(std::string(what), " was ", was, " ", std::string(when), ", and is ", is, " now");
}

// ---- The comparison -------------------------------------------------------------------------------------------------

const Slots kNoSlots;

// One of the two recordings.
struct Side : RecordedGraph {
  // Returns whether the graph can be read.
  bool read() {
    std::optional<Reading> read = read_all(graph, graph.empty() ? kNoSlots : content.slots);
    if (!read) return false;
    reading = *std::move(read);
    if (own.empty()) list_own_memory();
    if (!content.finds_values || values == nullptr) return true;
    for (const SlotNode& of : content.slots.nodes) {
      if (!node(of.index).readable) continue;
      unsigned char* const bytes = reading.content.bytes.data() + node(of.index).bytes;
      for (const Binding& binding : content.slots.bindings_of(of)) {
        binding.write(values, bytes + (binding.target - of.fields - first_byte(of.type)));
      }
    }
    return true;
  }

  void list_own_memory() {
    const auto add = [this](const void* memory, std::size_t size) {
      own.push_back({reinterpret_cast<std::uintptr_t>(memory), size});
    };
    for (const NodeContent& node : reading.content.nodes) {
      if (node.type != cudaGraphNodeTypeMemAlloc) continue;
      own.push_back(node.size != 0 ? reading.content.params<AddressRange>(node) : AddressRange());
    }
    for (const auto& needed : content.needs) add(needed.get(), sizeof(void*));
    for (const std::uint64_t handle : graph.handles) own.push_back({handle, 1});
    for (const KeptMemory& kept : content.kept_memory) add(kept.begin, std::max<std::size_t>(1, kept.bytes));
  }

  const NodeContent& node(std::uint32_t index) const { return reading.content.nodes[index]; }
  std::vector<Field> fields(std::uint32_t index) const { return fields_of(reading, slots, index); }

  // None where they were found, and inside nodes, which are listed without their graph.
  const Slots& slots = content.finds_values || graph.empty() ? kNoSlots : content.slots;
  Reading reading = {};
  // Memory and numbers that the recording got for itself, in an order by which two recordings of one graph pair them.
  // Inside a node, those of the whole graph.
  std::vector<AddressRange> own = {};
};

class Comparison {
 public:
  Comparison(RecordedGraph kept, RecordedGraph now, const std::vector<RecordedGraph>& further)
      : kept_{kept}, now_{now} {
    for (const RecordedGraph& one : further) further_.push_back({one});
  }

  std::optional<std::string> run() {
    if (!kept_.read() || !now_.read()) return std::nullopt;
    for (Side& side : further_) {
      if (!side.read()) return std::nullopt;
    }
    const std::string found = compare_nodes();
    return found.empty() ? compare_inner() : absl::StrCat(found, "; ", cure_);
  }

 private:
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
      if (kept[i].name != now[i].name) {
        return absl::StrCat(was_and_is(absl::StrCat("part ", i), kept[i].name, now[i].name), "; ", cure_);
      }
      const Template of_kept{{}, kept[i].nodes, {}, {}, {}}, of_now{{}, now[i].nodes, {}, {}, {}};
      Comparison inside({of_kept, kept_.content}, {of_now, now_.content}, {});
      inside.kept_.own = kept_.own;
      inside.now_.own = now_.own;
      std::optional<std::string> found = inside.run();
      if (!found) return std::nullopt;
      if (!found->empty()) return absl::StrCat(kept[i].name, ", ", *found);
    }
    if (kept.size() == now.size()) return "";
    return absl::StrCat(
        was_and_is("the number of parts of bodies", absl::StrCat(kept.size()), absl::StrCat(now.size())), "; ", cure_);
  }

  // Whether both are at the same place of a block of memory that each recording got for itself.
  bool is_own(std::uint64_t kept, std::uint64_t now) const {
    for (std::size_t i = 0; i < std::min(kept_.own.size(), now_.own.size()); ++i) {
      const AddressRange &a = kept_.own[i], &b = now_.own[i];
      if (kept - a.begin == now - b.begin && kept - a.begin < std::min(a.size, b.size)) return true;
    }
    return false;
  }
  // Records a difference in this node. The first one is kept.
  void find(std::string what) {
    if (found_.empty()) found_ = std::move(what);
  }
  void find(std::string_view what, const std::string& was, const std::string& is) {
    if (!kept_.content.finds_values) return find(was_and_is(what, was, is));
    find(was_and_is(what, was, is, "in the graph, which has the values of this run"));
    cure_ = "make what changes a value or a slot, also what fn computes from a value, or put it in the key";
  }

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

  void compare(std::uint32_t index) {
    const NodeContent& kept = kept_.node(index);
    const NodeContent& now = now_.node(index);
    if (kept.type != now.type) return find(absl::StrCat("is a ", kind_of(now), " now"));
    const CUDA_KERNEL_NODE_PARAMS &x = kept.kernel, &y = now.kernel;
    const auto is_known = [](const auto& kernel) { return kernel.func != nullptr || kernel.kern != nullptr; };
    const bool is_kernel = kept.type == cudaGraphNodeTypeKernel;
    if (is_kernel && is_known(x) && is_known(y) && (x.func != y.func || x.kern != y.kern)) {
      const std::string was = name_of(x), is = name_of(y);
      find("the kernel", was, was == is ? absl::StrCat(is, " of another module, or on another device") : is);
    } else if (!is_kernel || (is_known(x) && is_known(y))) {
      const std::vector<Field> a = kept_.fields(index), b = now_.fields(index);
      std::array<std::vector<Field>, 3> others;
      for (std::size_t i = 0; i < further_.size(); ++i) others[i] = fields_in(further_[i].reading, index, now);
      for (std::size_t i = 0; i < std::min(a.size(), b.size()) && found_.empty(); ++i) {
        const auto bytes_in = [i](const std::vector<Field>& fields) {
          return i < fields.size() ? bytes_of(fields[i]) : nullptr;
        };
        compare(a[i], b[i], {bytes_in(a), bytes_in(b), bytes_in(others[0]), bytes_in(others[1]), bytes_in(others[2])});
      }
    }
    const Reading::Part &a = kept_.reading.parts[index], &b = now_.reading.parts[index];
    if (is_kernel && seen(a) != seen(b)) find("its launch attributes (cooperative, cluster size) have changed");
    if (a.place != b.place) find("it depends on other nodes now");
  }

  // The launch attributes that a kernel can see. The others may follow from the stream of the capture.
  static std::string seen(const Reading::Part& part) {
    std::string seen;
    for (const auto& [known, value] : part.attributes) {
      if (known->id != kCooperative && known->id != kClusterDimension && !known->needs_cluster) continue;
      absl::StrAppend(&seen, known->name, known->text(value));
    }
    return seen;
  }

  // The bytes of a field in each recording, or null where there are none.
  struct Bytes {
    const unsigned char *kept, *now, *again, *last, *elsewhere;

    Bytes from(std::size_t at) const {
      const auto move = [at](const unsigned char* bytes) { return bytes == nullptr ? nullptr : bytes + at; };
      return {move(kept), move(now), move(again), move(last), move(elsewhere)};
    }
  };

  void compare(const Field& kept, const Field& now, const Bytes& bytes) {
    if (!is_constant(kept.name, kept.slot, now.slot)) return;
    if (kept.kind == Field::Kind::kBytes) return compare_bytes(kept.name, bytes, kept.value.size());
    const bool is_address = kept.kind == Field::Kind::kAddress;
    if (kept.value == now.value) {
      if (is_address) check_memory(kept.name, bytes.kept);
    } else if (kept.kind == Field::Kind::kOther) {
      find(absl::StrCat(kept.name, " have changed"));
    } else if (!is_address || !is_own(read_as<std::uint64_t>(bytes.kept), read_as<std::uint64_t>(bytes.now))) {
      find(kept.name, text_of(kept), text_of(now));
    }
  }

  // The fields of the same kernel in a further recording, or none.
  static std::vector<Field> fields_in(const Reading& reading, std::uint32_t index, const NodeContent& kernel) {
    if (index >= reading.content.nodes.size()) return {};
    const NodeContent& other = reading.content.nodes[index];
    const bool is_same = other.type == cudaGraphNodeTypeKernel && other.kernel.func == kernel.kernel.func &&
                         other.kernel.kern == kernel.kernel.kern;
    return is_same ? fields_of(reading, kNoSlots, index) : std::vector<Field>();
  }

  // Compares word by word, because a structure may contain addresses.
  void compare_bytes(const std::string& what, const Bytes& bytes, std::size_t size) {
    for (std::size_t at = 0; at < size && found_.empty(); at += kWord) {
      const std::size_t length = std::min(kWord, size - at);
      const Bytes word = bytes.from(at);
      const auto where = [&] {
        return size <= kWord ? what : absl::StrCat(what, ", bytes ", at, " to ", at + length - 1, " of ", size);
      };
      if (length == kWord && is_own(read_as<std::uint64_t>(word.kept), read_as<std::uint64_t>(word.now))) continue;
      if (is_another_each_time(word, length, /*is_member=*/size > kWord)) {
        find(absl::StrCat(where(), " was ", text_of(word.kept, length),
                          " when the key was recorded, and each call of fn has another one, such as ",
                          text_of(same(word.kept, word.last, length) ? word.again : word.last, length)));
      } else if (is_another_value(word, length, /*is_member=*/size > kWord)) {
        find(where(), text_of(word.kept, length), text_of(word.now, length));
      } else if (length == kWord && same(word.kept, word.now, length)) {
        check_memory(where(), word.kept);
      }
    }
  }

  static bool same(const unsigned char* a, const unsigned char* b, std::size_t length) {
    return std::memcmp(a, b, length) == 0;
  }

  // Whether bytes that are defined differ between the kept and the new recording. A member that is an address of
  // pageable memory in one recording is not compared: no kernel may read there, and padding often holds a part of one.
  static bool is_another_value(const Bytes& word, std::size_t length, bool is_member) {
    if (word.again == nullptr) return !same(word.kept, word.now, length);
    if (is_member && has_host_address(word, length)) return false;
    const auto is_defined = [&](std::size_t i) {
      const bool is_everywhere = word.elsewhere == nullptr || word.elsewhere[i] == word.now[i];
      return is_everywhere && word.again[i] == word.now[i];
    };
    bool differs = false;
    for (std::size_t i = 0; i < length; ++i) {
      const bool is_of_padding = i % 2 == 1 && !is_defined(i - 1);  // It ends at an even place.
      differs |= word.kept[i] != word.now[i] && is_defined(i) && !is_of_padding;
    }
    if (!differs || length < kWord || same(word.now, word.again, kWord)) return differs;
    return !(has_memory(word.now) && has_memory(word.again)) && !are_of_stack(word.kept, word.now, word.again);
  }

  // Whether the last two recordings, which undefined bytes and stack addresses have in common, differ. Addresses count
  // only if they return, because each recording may have got memory of its own; those of pageable memory never, because
  // no kernel may read it.
  static bool is_another_each_time(const Bytes& word, std::size_t length, bool is_member) {
    if (word.again == nullptr || word.last == nullptr || word.elsewhere == nullptr) return false;
    if (same(word.again, word.last, length) || same(word.last, word.elsewhere, length)) return false;
    const bool is_address = length == kWord && has_memory(word.again) && has_memory(word.last);
    if (has_host_address(word, length)) return false;
    const auto returns = [&](const unsigned char* value) {
      return same(value, word.kept, length) || same(value, word.now, length);
    };
    return (!is_member && !is_address) || (returns(word.last) && returns(word.elsewhere));
  }

  static bool has_memory(const unsigned char* at) { return allocation_at(read_as<std::uint64_t>(at)).id != 0; }

  // Whether this is, in one recording, an address of host memory that CUDA does not know, or what glibc leaves of one
  // in a freed block: it is combined there with the upper bits of an address nearby. In the other recordings, the
  // memory may be unmapped by now, or the padding may hold something else.
  static bool has_host_address(const Bytes& word, std::size_t length) {
    const auto is_host = [](const unsigned char* at) {
      if (at == nullptr) return false;
      const auto value = read_as<std::uint64_t>(at);
      return is_host_memory(value) || is_host_memory(value ^ value >> 12 ^ value >> 24 ^ value >> 36);
    };
    return length == kWord && (is_host(word.kept) || is_host(word.now) || is_host(word.again) || is_host(word.last) ||
                               is_host(word.elsewhere));
  }

  // The memory at an address that has not changed may be another.
  void check_memory(const std::string& what, const unsigned char* at) {
    const auto noted = kept_.content.allocations.find(read_as<std::uint64_t>(at));
    if (noted == kept_.content.allocations.end()) return;
    const std::uint64_t now = allocation_at(noted->first).id;
    if (now == noted->second) return;
    find(absl::StrCat(what, " was ", hex_of(noted->first), " when the key was recorded, and the memory there has been ",
                      now != 0 ? "freed, and given out again since" : "freed or unregistered since"));
    cure_ = "erase the key when memory that it uses is freed";
  }

  // Whether these are addresses of a variable on the stack, which is elsewhere in each recording. Their upper bytes may
  // be equal in both new ones.
  static bool are_of_stack(const unsigned char* kept, const unsigned char* now, const unsigned char* again) {
    return is_on_a_stack(read_as<const void*>(now)) && is_on_a_stack(read_as<const void*>(again)) &&
           PointerAttributes(read_as<const void*>(kept)).is_pageable();
  }

  static constexpr std::size_t kWord = sizeof(std::uint64_t);

  Side kept_, now_;
  std::vector<Side> further_;
  std::string found_;
  const char* cure_ = "make what changes a value or a slot, or put it in the key";
};

}  // namespace

std::optional<std::string> first_difference(RecordedGraph kept, RecordedGraph now,
                                            const std::vector<RecordedGraph>& further) {
  LastErrorGuard last_error;
  return Comparison(kept, now, further).run();
}

}  // namespace graphcache
