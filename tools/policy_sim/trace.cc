#include "trace.h"

#include <istream>
#include <ostream>
#include <set>
#include <sstream>
#include <stdexcept>

namespace graphcache::sim {
namespace {

// Leaves the field as it is if the line ends before it.
template <class T>
void read_optional(std::istream& words, T* field) {
  if (words && !words.eof() && !(words >> std::ws).eof()) words >> *field;
}

bool read_graph(std::istream& words, Graph* graph) {
  unsigned difference = 0;
  words >> graph->nodes >> graph->slot_nodes >> graph->signature >> graph->table_class >> graph->differing >>
      difference >> graph->node_ns;
  graph->difference = static_cast<Difference>(difference);
  return words && difference <= static_cast<unsigned>(Difference::kKernels) && graph->slot_nodes <= graph->nodes &&
         graph->differing <= graph->nodes;
}

bool read_run(const std::string& line, std::size_t keys, Run* run) {
  std::istringstream words(line);
  words >> run->key >> run->stream >> run->values_changed;
  read_optional(words, &run->thread);
  return words && run->key < keys;
}

}  // namespace

std::size_t Trace::streams() const {
  std::set<std::uint32_t> streams;
  for (const Run& run : runs) streams.insert(run.stream);
  return streams.size();
}

void write(const Trace& trace, std::ostream& out) {
  out << "trace " << trace.name;
  if (trace.max_device_bytes != kUnlimited) out << ' ' << trace.max_device_bytes;
  out << '\n';
  for (const Graph& graph : trace.graphs) {
    out << "graph " << graph.nodes << ' ' << graph.slot_nodes << ' ' << graph.signature << ' ' << graph.table_class
        << ' ' << graph.differing << ' ' << static_cast<unsigned>(graph.difference) << ' ' << graph.node_ns << '\n';
  }
  for (const Run& run : trace.runs) {
    out << run.key << ' ' << run.stream << ' ' << run.values_changed;
    if (run.thread != 0) out << ' ' << run.thread;
    out << '\n';
  }
}

Trace read(std::istream& in) {
  Trace trace;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line);
    std::string first;
    if (!(words >> first)) continue;
    bool ok = true;
    if (first == "trace") {
      words >> trace.name;
      read_optional(words, &trace.max_device_bytes);
      ok = !words.fail();
    } else if (first == "graph") {
      ok = read_graph(words, &trace.graphs.emplace_back());
    } else {
      ok = read_run(line, trace.graphs.size(), &trace.runs.emplace_back());
    }
    if (!ok) throw std::runtime_error("line " + std::to_string(number) + " is not part of a trace: " + line);
  }
  return trace;
}

}  // namespace graphcache::sim
