#include "graphcache_export/node_table.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "text.h"

namespace graphcache {
namespace {

// Escapes a text so that it stays one field of one line.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '\t':
        result += "\\t";
        break;
      case '\n':
        result += "\\n";
        break;
      case '\r':
        result += "\\r";
        break;
      case '\\':
        result += "\\\\";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string number_or_nothing(const std::optional<std::uint64_t>& number) {
  return number ? std::to_string(*number) : "";
}

}  // namespace

std::string node_table(const Cache& cache) {
  std::string table = "label\tentry\tgraph_id\texecutable_id\tnode\ttools_id\tname\n";
  for (const EntryInfo& entry : cache.entries()) {
    if (!entry.recorded) continue;
    const absl::StatusOr<GraphInfo> graph = cache.graph(entry.id);
    if (!graph.ok()) continue;
    const std::string of_graph = escaped(graph->label) + '\t' + std::to_string(graph->entry) + '\t' +
                                 number_or_nothing(graph->graph_id) + '\t' + number_or_nothing(graph->executable_id) +
                                 '\t';
    for (std::size_t i = 0; i < graph->nodes.size(); ++i) {
      const GraphNode& node = graph->nodes[i];
      table +=
          of_graph + std::to_string(i) + '\t' + number_or_nothing(node.tools_id) + '\t' + escaped(node.name) + '\n';
    }
  }
  return table;
}

}  // namespace graphcache
