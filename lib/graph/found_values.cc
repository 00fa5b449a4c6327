#include "graph/found_values.h"

#include <absl/numeric/bits.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "graph/describe.h"
#include "graph/fields.h"
#include "graph/inspect.h"
#include "graph/outside.h"

namespace graphcache {
namespace {

constexpr ValueSet bit(std::size_t value) { return ValueSet{1} << value; }
std::size_t first_of(ValueSet set) { return static_cast<std::size_t>(absl::countr_zero(set)); }

bool is_plain_copy(const cudaMemcpy3DParms& copy) {
  const auto at_start = [](const cudaPos& at) { return at.x == 0 && at.y == 0 && at.z == 0; };
  return copy.srcArray == nullptr && copy.dstArray == nullptr && copy.extent.height <= 1 && copy.extent.depth <= 1 &&
         at_start(copy.srcPos) && at_start(copy.dstPos);
}

// Whether the word of a node can be set in an executable.
bool can_be_set(const Content& content, const NodeContent& node, std::size_t offset) {
  if (node.is_inner) return false;
  switch (node.type) {
    case cudaGraphNodeTypeKernel: {
      SlotNode found;
      find_kernel(node.kernel, &found);
      return found.function != nullptr && found.foreign == nullptr;
    }
    case cudaGraphNodeTypeMemcpy:
      return (offset == offsetof(cudaMemcpy3DParms, dstPtr.ptr) || offset == offsetof(cudaMemcpy3DParms, srcPtr.ptr)) &&
             is_plain_copy(content.params<cudaMemcpy3DParms>(node));
    case cudaGraphNodeTypeMemset:
      return offset == offsetof(cudaMemsetParams, dst) || offset == offsetof(cudaMemsetParams, value);
    default:
      return false;
  }
}

// The bits of a floating-point value as a float.
std::uint32_t float_bits(const detail::ValuePlace& place, const Content& content) {
  const unsigned char* const value = content.values.data() + place.offset;
  unsigned char room[detail::kMaxConvertedBytes];
  if (place.size != sizeof(float)) place.convert(value, room);
  return read_as<std::uint32_t>(place.size == sizeof(float) ? value : room);
}

// How much it has changed there, in units of the last bit. 0 if that does not show.
std::uint32_t change_as_float(const detail::ValuePlace& place, const Content& before, const Content& now) {
  const std::uint32_t was = float_bits(place, before), is = float_bits(place, now);
  return std::max(was, is) - std::min(was, is);
}

// Whether the upper half of the number in one floating-point type may be the number in another: 2, and what is just
// below it as a float or a half, with any sign.
bool is_of_any_size(const detail::ValuePlace& place, const Content& content) {
  if (place.is_pointer) return false;
  const std::uint32_t bits = float_bits(place, content) & ~(1u << 31);
  return bits == 0x40000000 || bits == 0x3fffffff || bits == 0x3fffe000;
}

const unsigned char* bytes_of(const Content& content, std::uint32_t node) {
  return content.bytes.data() + content.nodes[node].bytes;
}

// Whether the byte is in a word that has held an address of a heap, a stack or code, as undefined bytes of a structure
// may do, so that no kernel uses it. It may be as in another recording of equal values all the same. Addresses
// elsewhere differ from their lower bytes on, so a byte is one of an address only if a lower one differs there. An
// address of the run's own frames does not.
template <class Word>
bool is_in_noise(const Word& byte, const Content& before, const Content& now, const Content& again) {
  const std::size_t first = byte.offset / sizeof(std::uint64_t) * sizeof(std::uint64_t);
  if (first + sizeof(std::uint64_t) > now.nodes[byte.node].size) return false;
  const auto word_of = [&](const Content& content) {
    return read_as<std::uint64_t>(bytes_of(content, byte.node) + first);
  };
  const std::uint64_t was = word_of(before), is = word_of(now), other = word_of(again);
  constexpr int kByteBits = 8;
  const std::uint64_t lower = (std::uint64_t{1} << kByteBits * (byte.offset - first)) - 1;
  if (((is ^ other) & lower) != 0) return is_host_memory(was) || is_host_memory(is);
  const auto is_of_frame = [](std::uint64_t word) { return is_on_a_stack(reinterpret_cast<const void*>(word)); };
  return is == other && is_of_frame(was) && is_of_frame(is);
}

}  // namespace

bool are_comparable(const Content& before, const Content& now) {
  if (before.nodes.size() != now.nodes.size()) return false;
  for (std::uint32_t i = 0; i < now.nodes.size(); ++i) {
    const NodeContent &a = before.nodes[i], &b = now.nodes[i];
    if (a.type != b.type || a.size != b.size || !a.readable || !b.readable) return false;
    if (a.type == cudaGraphNodeTypeKernel && change(before, now, i) > Change::kArguments) return false;
  }
  return true;
}

bool FoundValues::cover(const Content& content, const unsigned char* values) const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const std::size_t offset = places_[i].offset;
    if ((found_ & bit(i)) == 0 && std::memcmp(content.values.data() + offset, values + offset, places_[i].size) != 0) {
      return false;
    }
  }
  return std::all_of(agreements_.begin(), agreements_.end(), [&](const auto& both) {
    unsigned char room[detail::kMaxConvertedBytes], other[detail::kMaxConvertedBytes];
    return std::memcmp(both.first.bytes(values, room), both.second.bytes(values, other), both.first.size) == 0;
  });
}

std::optional<Binding> FoundValues::binding(std::size_t value, const Word& word, const Content& content) const {
  const detail::ValuePlace& place = places_[value];
  const unsigned char* const held = bytes_of(content, word.node) + word.offset;
  Binding found{0, word.size, static_cast<std::uint32_t>(place.offset), nullptr};
  if (place.is_pointer && word.size == sizeof(std::uint64_t)) {
    const auto address = read_as<std::uint64_t>(content.values.data() + place.offset);
    const auto at = read_as<std::uint64_t>(held);
    if (at != address && !content.ranges[value].contains(at)) return std::nullopt;
    found.addend = at - address;
    return found;
  }
  if (place.size != word.size) {
    if (place.convert == nullptr || place.converted_size != word.size) return std::nullopt;
    found.convert = place.convert;
  }
  unsigned char room[detail::kMaxConvertedBytes];
  if (std::memcmp(held, found.bytes(content.values.data(), room), word.size) != 0) return std::nullopt;
  return found;
}

// The values among these that the word held before and holds now.
ValueSet FoundValues::explain(const Word& word, const Content& before, const Content& now, ValueSet among) const {
  ValueSet explained = 0;
  for (ValueSet left = among; left != 0; left &= left - 1) {
    const std::size_t value = first_of(left);
    const std::optional<Binding> was = binding(value, word, before), is = binding(value, word, now);
    if (was && is && was->addend == is->addend) explained |= bit(value);
  }
  return explained;
}

void FoundValues::learn(const Content& before, const Content& now, RecordAgain record_again) {
  if (has_given_up()) {
    if (++alike_ < kManyAlike) return;
    restart();
    restarts_ = 0;
  }
  ValueSet changed = 0, fresh = 0;  // Fresh values have not changed before.
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const std::size_t at = places_[i].offset;
    if (std::memcmp(before.values.data() + at, now.values.data() + at, places_[i].size) == 0) continue;
    changed |= bit(i);
    if (changes_[i] == 0) fresh |= bit(i);
    // Words of several sizes seem to hold the value, so it will be learned by other changes.
    if (changes_[i] == 0 && is_of_any_size(places_[i], before) && is_of_any_size(places_[i], now)) {
      restart();
      --restarts_;
      return;
    }
  }
  const auto bytes_differ = [](const Word& word, const Content& one, const Content& other) {
    return std::memcmp(bytes_of(one, word.node) + word.offset, bytes_of(other, word.node) + word.offset, word.size) !=
           0;
  };
  const auto sort_words = [this] {
    std::ranges::sort(words_, {}, [](const Word& word) { return std::pair(word.node, word.offset); });
  };
  const ValueSet alone = (changed & (changed - 1)) == 0 ? changed : 0;
  bool is_clean = true;  // Whether no derived word has changed.
  std::vector<Word> odd;
  std::vector<std::size_t> broken;  // Indices of words that have ceased to follow a value.
  for (Word& word : words_) {
    const bool is_same = !bytes_differ(word, before, now);
    if (word.follows != 0) {
      const ValueSet left = explain(word, before, now, word.follows);
      if (left == 0) {
        word.suspects = word.follows | changed;
        word.certain = alone;
        broken.push_back(static_cast<std::size_t>(&word - words_.data()));
      }
      word.follows = left;
    } else if (!is_same && word.suspects != 0) {
      is_clean = false;
      word.certain |= alone;
      if ((word.suspects & changed) == 0) word.suspects |= changed;
    } else if (const ValueSet idle = word.suspects & alone & ~word.certain; idle != 0) {
      if (const ValueSet left = word.suspects & ~(idle & word.idle); left != 0) word.suspects = left;
      word.idle |= idle;
    }
  }
  add_words(before, now, fresh, &odd);
  // What takes the place of words that followed a value is single bytes, where these have changed.
  for (const std::size_t i : broken) {
    Word word = words_[i];
    words_[i].size = 0;
    const std::uint32_t end = word.offset + word.size;
    if (bytes_differ(word, before, now)) word.size = 1;
    for (; word.offset < end; word.offset += word.size) {
      if (word.size != 1 || bytes_differ(word, before, now)) odd.push_back(word);
    }
  }
  const Content* const again = odd.empty() ? nullptr : record_again(now);
  for (Word& word : words_) {
    if (again != nullptr && word.follows != 0 && bytes_differ(word, now, *again)) word.follows = 0;
  }
  // Where a pointer is to memory that CUDA does not know, kernels may read such memory.
  const auto is_unknown = [&](std::size_t value) {
    return places_[value].is_pointer && (before.ranges[value].size == 0 || now.ranges[value].size == 0);
  };
  bool knows_memory = true;
  for (std::size_t i = 0; i < places_.size(); ++i) knows_memory &= (changed & bit(i)) == 0 || !is_unknown(i);
  const auto noise = std::partition(odd.begin(), odd.end(), [&](const Word& word) {
    return again == nullptr ||
           !(bytes_differ(word, now, *again) || (knows_memory && is_in_noise(word, before, now, *again)));
  });
  const Content* const earlier = again == nullptr || noise == odd.begin() ? nullptr : record_again(before);
  // What depends on the values alone is in each recording of the earlier ones as it was before.
  const auto is_other_noise = [&](const Word& word) {
    return earlier != nullptr && (!bytes_differ(word, *again, *earlier) || bytes_differ(word, before, *earlier));
  };
  for (auto word = odd.begin(); word != odd.end(); ++word) {
    if (word >= noise || is_other_noise(*word)) {
      word->suspects = 0;
    } else {
      is_clean = false;
      // A value that has changed before, and the word did not, is no suspect if there is another.
      if (word->suspects == 0) word->suspects = fresh != 0 ? fresh : changed;
      word->certain |= alone;
    }
    words_.push_back(*word);
  }
  std::erase_if(words_, [](const Word& word) { return word.size == 0; });
  sort_words();
  if (again != nullptr) {  // Other bytes that differ between equal values may change later.
    add_words(now, *again, /*fresh=*/0, &words_);
    sort_words();
  }

  for (std::size_t i = 0; i < places_.size(); ++i) {
    if ((changed & bit(i)) == 0) continue;
    // Twice the last bit of a bfloat16 shows however the value is rounded.
    constexpr std::uint32_t kShows = 1, kShowsRounded = 2 << 16;
    const bool is_exact = places_[i].is_pointer || places_[i].size < sizeof(float);
    const std::uint32_t change = is_exact ? kShowsRounded : change_as_float(places_[i], before, now);
    if (changes_[i] == 0 || is_clean) changes_[i] += change >= kShows ? 1 : 0;
    if (coarse_changes_[i] == 0 || is_clean) coarse_changes_[i] += change >= kShowsRounded ? 1 : 0;
  }
  find(now);
}

// A word that changes for the first time follows only a value that does so too, because it did not follow the others
// before. What nothing explains is kept as single bytes, because a byte beside one that a value decides may be noise.
void FoundValues::add_words(const Content& before, const Content& now, ValueSet fresh, std::vector<Word>* odd) {
  const auto known = static_cast<std::ptrdiff_t>(words_.size());
  // Memory that each recording's graph allocates for itself. An address of it changes with no value.
  std::vector<std::pair<AddressRange, AddressRange>> own;
  for (std::size_t i = 0; i < now.nodes.size(); ++i) {
    const NodeContent &was = before.nodes[i], &is = now.nodes[i];
    if (is.type == cudaGraphNodeTypeMemAlloc && is.size != 0) {
      own.emplace_back(before.params<AddressRange>(was), now.params<AddressRange>(is));
    }
  }
  const auto is_own = [&](std::uint64_t was, std::uint64_t is) {
    return std::ranges::any_of(own, [&](const auto& block) {
      return block.first.contains(was) && was - block.first.begin == is - block.second.begin;
    });
  };
  for (std::uint32_t node = 0; node < now.nodes.size(); ++node) {
    const unsigned char *const a = bytes_of(before, node), *const b = bytes_of(now, node);
    const std::size_t size = now.nodes[node].size;
    if (size == 0 || std::memcmp(a, b, size) == 0) continue;
    std::vector<bool> covered(size);
    const auto cover = [&](const Word& word) { std::fill_n(covered.begin() + word.offset, word.size, true); };
    const auto end = words_.begin() + known;
    auto of_node = std::ranges::lower_bound(words_.begin(), end, node, {}, &Word::node);
    for (; of_node != end && of_node->node == node; ++of_node) cover(*of_node);
    constexpr std::uint32_t kWord = sizeof(std::uint64_t);
    for (std::uint32_t at = 0; !own.empty() && at + kWord <= size; at += kWord) {
      if (is_own(read_as<std::uint64_t>(a + at), read_as<std::uint64_t>(b + at))) cover({node, at, kWord});
    }
    for (std::uint32_t at = 0; at < size && fresh != 0; ++at) {
      if (covered[at] || a[at] == b[at]) continue;
      for (const std::uint32_t length : {8u, 4u, 2u}) {
        Word word{node, at / length * length, length};
        const auto first = covered.begin() + word.offset;
        if (word.offset + length > size || std::find(first, first + length, true) != first + length) continue;
        if (can_be_set(now, now.nodes[node], word.offset)) word.follows = explain(word, before, now, fresh);
        if (word.follows == 0) continue;
        cover(word);
        words_.push_back(word);
        break;
      }
    }
    for (std::uint32_t at = 0; at < size; ++at) {
      if (!covered[at] && a[at] != b[at]) odd->push_back({node, at, 1});
    }
  }
}

void FoundValues::restart() {
  const int restarts = restarts_ + 1;
  *this = FoundValues(places_);
  restarts_ = restarts;
}

ValueSet FoundValues::derived() const {
  ValueSet derived = has_given_up() ? ~ValueSet{0} : 0;
  for (const Word& word : words_) derived |= word.suspects;
  return derived;
}

void FoundValues::find(const Content& now) {
  ValueSet derived = this->derived(), somewhere = 0;
  agreements_.clear();
  for (const Word& word : words_) {
    somewhere |= word.follows;
    const ValueSet rest = word.follows & (word.follows - 1);
    if (rest == 0) continue;
    const Binding first = *binding(first_of(word.follows), word, now);
    for (ValueSet left = rest; left != 0; left &= left - 1) {
      const std::pair both(first, *binding(first_of(left), word, now));
      if (std::ranges::find(agreements_, both) == agreements_.end()) agreements_.push_back(both);
    }
  }
  found_ = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    // A value that is nowhere may be rounded on its way into a word that has not changed yet.
    const std::vector<int>& changes = (somewhere & bit(i)) != 0 ? changes_ : coarse_changes_;
    if (changes[i] >= 2 && (derived & bit(i)) == 0) found_ |= bit(i);
  }
  if (found_ != 0) restarts_ = 0;
}

void FoundValues::bind(Content* content) const {
  Slots& slots = content->slots;
  if (has_given_up()) return;
  content->is_settled = found_ != 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    content->is_settled &= (found_ & bit(i)) != 0 || changes_[i] == 0;
  }
  for (const Word& word : words_) {
    if (word.follows == 0) continue;
    if (slots.nodes.empty() || slots.nodes.back().index != word.node) add_slot_node(*content, word.node, &slots);
    SlotNode& node = slots.nodes.back();
    const std::size_t value = first_of(word.follows);
    Binding found = *binding(value, word, *content);
    found.target = static_cast<std::uint32_t>(node.fields + first_byte(node.type) + word.offset);
    slots.bindings.push_back(found);
    ++node.binding_count;
  }
}

std::vector<ValueInfo> FoundValues::infos(const Content& content) const {
  const ValueSet derived = this->derived();
  std::vector<ValueInfo> infos(places_.size());
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const Word* first = nullptr;
    std::size_t words = 0, nodes = 0;
    bool is_ambiguous = false;
    std::uint32_t last = 0;
    for (const Word& word : words_) {
      const ValueSet of = (derived & bit(i)) != 0 ? word.suspects : word.follows;
      if ((of & bit(i)) == 0) continue;
      is_ambiguous |= word.follows != bit(i);
      if (first == nullptr) first = &word;
      nodes += words++ == 0 || last != word.node ? 1 : 0;
      last = word.node;
    }
    infos[i].state = (derived & bit(i)) != 0  ? ValueState::kDerived
                     : changes_[i] == 0       ? ValueState::kUnseen
                     : is_ambiguous           ? ValueState::kAmbiguous
                     : (found_ & bit(i)) != 0 ? ValueState::kFound
                                              : ValueState::kSeen;
    infos[i].places = has_given_up() ? "the graphs of its recordings cannot be compared"
                      : words == 0   ? "nowhere"
                      : words == 1 || infos[i].state == ValueState::kDerived
                          ? text_of(*first, content)
                          : absl::StrCat(words, " places in ", nodes, nodes == 1 ? " node" : " nodes");
  }
  return infos;
}

// "argument 1 of node 7 (kernel add)".
std::string FoundValues::text_of(const Word& word, const Content& content) {
  const NodeContent& node = content.nodes[word.node];
  std::string what = "a parameter";
  if (node.type == cudaGraphNodeTypeKernel) {
    std::uint32_t argument = node.argument_count - 1;
    while (argument > 0 && content.arguments[node.first_argument + argument] > word.offset) --argument;
    what = absl::StrCat("argument ", argument);
  }
  const bool has_rows = node.type == cudaGraphNodeTypeMemcpy && !is_plain_copy(content.params<cudaMemcpy3DParms>(node));
  return absl::StrCat(what, " of node ", word.node, " (", kind_of(node),
                      has_rows ? " of rows, which CUDA does not patch)" : ")");
}

}  // namespace graphcache
