// A trace: the keys that ran, their order and streams, and the properties of their graphs. It contains no policy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <string>
#include <vector>

namespace graphcache::sim {

using KeyId = std::uint32_t;
inline constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// How the graphs of one signature differ, in rising order of cost.
enum class Difference : std::uint8_t { kArguments, kGrids, kKernels };

// The graph of one key.
struct Graph {
  std::uint32_t nodes = 0;
  std::uint32_t slot_nodes = 0;   // nodes that take a value of the run
  std::uint32_t signature = 0;    // graphs of one signature can share an executable
  std::uint32_t table_class = 0;  // graphs of one signature and class can share a parameter table; 0 if none can
  std::uint32_t differing = 0;    // nodes that differ from those of its siblings
  Difference difference = Difference::kArguments;
  std::uint32_t node_ns = 1020;  // device time of a node; the default is that of a kernel without work
};

struct Run {
  KeyId key = 0;
  std::uint32_t stream = 0;
  bool values_changed = false;  // whether its slots hold other values than in the key's last run
  std::uint32_t thread = 0;     // uses the run's executable until its next run begins
};

struct Trace {
  std::string name;
  std::vector<Graph> graphs;  // by key
  std::vector<Run> runs;
  std::size_t max_device_bytes = kUnlimited;

  std::size_t streams() const;  // number of different streams of its runs
};

// The text form: a line `trace NAME [MAX_DEVICE_BYTES]`, a line `graph ...` for each key with the fields of Graph in
// their order, and a line `KEY STREAM CHANGED [THREAD]` for each run.
void write(const Trace& trace, std::ostream& out);
// Throws std::runtime_error, which names the line, if the text is not a trace.
Trace read(std::istream& in);

}  // namespace graphcache::sim
