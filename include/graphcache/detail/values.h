// value_offset(): the layout of values in Params. Not for users.
#pragma once

#include <cstddef>

namespace graphcache::detail {

struct SlotAccess;

constexpr std::size_t align_up(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// The offset of value `index`. The values follow one another, each at its own alignment. An `index` equal to the number
// of values gives their end.
template <class... Ts>
constexpr std::size_t value_offset(std::size_t index) {
  constexpr std::size_t sizes[] = {sizeof(Ts)..., 0};
  constexpr std::size_t alignments[] = {alignof(Ts)..., 1};
  std::size_t end = 0;
  for (std::size_t i = 0; i < index; ++i) end = align_up(end, alignments[i]) + sizes[i];
  return align_up(end, alignments[index]);
}

}  // namespace graphcache::detail
