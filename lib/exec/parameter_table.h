// The parameter sets of a device-updated executable. A set is what one member of the family has different from the
// graph that the executable was instantiated from (updater.h). Sets are added while launches are in flight, and never
// change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "exec/updater.h"
#include "graph/describe.h"
#include "graph/template.h"

namespace graphcache {

// Whether a binding is of its node's grid.
bool is_grid(const SlotNode& node, const Binding& binding);
// The index of the argument that a binding is of or inside of, or the number of arguments.
std::uint32_t argument_of(const Slots& slots, const SlotNode& node, const Binding& binding);
// Whether the device can write the node's values: all of them go to a kernel's arguments and grid.
bool device_can_write(const Slots& slots, const SlotNode& node);

// What an updater node writes: nodes, their pieces, and the slots that go into each.
struct WrittenNodes {
  // Its index in the base, whether its grid can be written, and its number of pieces.
  struct Node {
    std::uint32_t index;
    bool grid;
    std::uint32_t pieces;
  };

  std::vector<Node> nodes;
  std::vector<updater::Piece> pieces;
  std::vector<updater::Update> updates;
};

// Like its executable, it is used by one thread at a time.
class ParameterTable {
 public:
  // REQUIRES: the base has been described (describe.h).
  ParameterTable(std::shared_ptr<const Content> base, WrittenNodes written)
      : base_(std::move(base)), written_(std::move(written)) {}

  // Equal for contents of one signature that one table can hold. It is a hash, so it may be equal for others as well. 0
  // if a table would have nothing to hold.
  static std::uint64_t class_of(const Content& content);

  // The approximate device memory of one set.
  static std::size_t estimated_set_bytes(const Content& content);

  // Whether a set can express how the content differs from the base. It can if only arguments and grids of nodes that
  // the device writes differ, and what slots write.
  bool can_hold(const Content& to) const;

  // A set in host memory.
  using Set = std::vector<unsigned char>;
  // What the content has different from the base, or, if it is to be whole, all pieces.
  Set make_set(const Content& of, bool whole = false) const;

  // Whether the content is the base or has a set.
  bool has(const Content& content) const { return places_.contains(content.id); }

  // Sets are stored in chunks of device memory of this size, or of their own if that is larger, because an allocation
  // costs about 40 us beside launches of other threads.
  static constexpr std::size_t kChunk = 64 << 10;
  // Adds the content's set, by a copy that its launches must follow. `ready` marks its end.
  CallResult add(const Content& of, const Set& set, DeviceMemory& memory, Event* ready);

  // Null for the base's. REQUIRES: has(of).
  updater::ParameterSet find(const Content& of) const { return places_.at(of.id); }

 private:
  bool fill(const updater::Piece& piece, const Content& of, std::uint32_t index, unsigned char* out) const;

  const std::shared_ptr<const Content> base_;
  const WrittenNodes written_;

  std::unordered_map<std::uint64_t, updater::ParameterSet> places_{{base_->id, nullptr}};  // Keyed by the content's id.
  std::vector<DeviceMemory::Block> chunks_;
  std::span<unsigned char> free_;  // The free part of the last chunk.
};

}  // namespace graphcache
