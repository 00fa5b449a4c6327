// The parameter sets of a device-updated executable: what each member of its family that it has served differs in from
// the graph that it was instantiated from (updater.h). They grow while launches are in flight, and never change.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/errors.h"
#include "exec/updater.h"
#include "graph/template.h"
#include "policy/costs.h"

namespace graphcache {

// Used as its executable is: by one thread at a time.
class ParameterTable {
 public:
  // What the device can write of a node, by its place among the base's; and the pieces of that, node by node.
  struct Node {
    std::uint32_t index;
    bool grid;
    std::uint32_t pieces;
  };

  // The base has been described (signature.h).
  ParameterTable(std::shared_ptr<const Content> base, std::vector<Node> nodes, std::vector<updater::Piece> pieces,
                 std::vector<updater::Update> updates, std::shared_ptr<DeviceMemory> memory);

  // Equal for contents of one signature that one table can hold: a number, and so perhaps equal for others, too. 0 if
  // there is nothing for its sets.
  static std::uint64_t class_of(const Content& content);

  // About so much device memory a set takes.
  static std::size_t estimated_set_bytes(const Content& content);

  // Whether a set can say how the content differs from the base: in arguments and grids of nodes that the device writes
  // alone, and in what slots write.
  bool can_hold(const Content& to) const;

  // The set of all pieces.
  std::vector<unsigned char> base_set() const { return set_of(*base_, /*whole=*/true).bytes; }

  // Whether the content has a set, or is the base's.
  bool has(const Content& content) const { return places_.contains(content.id); }

  // Sets are put into blocks of memory of so many bytes, or larger ones. A table counts for the first from the
  // beginning (UpdaterNode::estimated_device_bytes).
  static constexpr std::size_t kBlock = 64 << 10;

  // How much more device memory the table would count for if the content had a set.
  std::size_t growth_for(const Content& to);
  // Gives the content a set, by a copy on the stream that launches of it must follow.
  CallResult add(const Content& to, cudaStream_t stream);

  struct Place {
    updater::ParameterSet set = nullptr;
    std::size_t differing = 0;  // Nodes that are not as in the base.
  };
  // Of a content that has one, as the base's has from the beginning.
  const Place& find(const Content& of) const { return places_.at(of.id); }

 private:
  struct Built {
    std::vector<unsigned char> bytes;
    std::size_t differing = 0;
  };

  // Makes the content's set ready in `next_`.
  void prepare(const Content& to);
  // How much memory has to be taken for it.
  std::size_t block_for_next() const;
  Built set_of(const Content& of, bool whole) const;
  bool fill(const updater::Piece& piece, const Content& of, std::uint32_t index, unsigned char* out) const;

  const std::shared_ptr<const Content> base_;
  const std::vector<Node> nodes_;
  const std::vector<updater::Piece> pieces_;
  const std::vector<updater::Update> updates_;
  std::vector<Change> writes_;  // What of each of the base's nodes: nothing, arguments, or the grid, too.

  std::unordered_map<std::uint64_t, Place> places_;  // By the content's id.
  Built next_;                                       // The set that was prepared last.
  std::uint64_t next_of_ = 0;                        // The id of the content that `next_` belongs to.
  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<DeviceMemory::Block> blocks_;
  unsigned char* free_ = nullptr;  // The free part of the last block.
  std::size_t left_ = 0;           // The size of `free_` in bytes.
};

}  // namespace graphcache
