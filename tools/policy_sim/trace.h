// A trace: which keys ran, in which order and on which streams, and what their graphs are like. No policy is known
// here.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace graphcache::sim {

using KeyId = std::uint32_t;

// How the graphs of one signature differ from each other, the dearer below.
enum class Difference : std::uint8_t { kArguments, kGrids, kKernels };

// The graph of one key.
struct Graph {
  std::uint32_t nodes = 0;
  std::uint32_t slot_nodes = 0;   // Nodes that take a value of the run.
  std::uint32_t signature = 0;    // Graphs of one signature can share an executable.
  std::uint32_t table_class = 0;  // Graphs of one signature and class can share a parameter table. 0: none can.
  std::uint32_t differing = 0;    // Nodes in which it differs from its siblings.
  Difference difference = Difference::kArguments;
  std::uint32_t node_ns = 1020;  // What the device takes for a node. The default is that of a kernel with no work.
};

struct Run {
  KeyId key = 0;
  std::uint32_t stream = 0;
  bool values_changed = false;  // Its slots hold other values than at the key's last run.
};

struct Trace {
  std::string name;
  std::vector<Graph> graphs;  // By key.
  std::vector<Run> runs;

  std::size_t streams() const;  // How many different ones its runs are on.
};

// The text form: a line `trace NAME`, a line `graph ...` for each key with Graph's fields in their order, and a line
// `KEY STREAM CHANGED` for each run.
void write(const Trace& trace, std::ostream& out);
// Throws std::runtime_error, which names the line, if the text is no trace.
Trace read(std::istream& in);

}  // namespace graphcache::sim
