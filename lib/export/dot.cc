#include "graphcache_export/dot.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "node_text.h"
#include "text.h"

namespace graphcache {
namespace {

constexpr const char* kHead = R"(digraph graph_info {
  graph [bgcolor=white, fontname="Helvetica,Arial,sans-serif", fontsize=12, labelloc=t, nodesep=0.3, ranksep=0.3];
  node [shape=box, style="rounded,filled", fillcolor="#eef2f7", color="#66758a",
        fontname="Helvetica,Arial,sans-serif", fontsize=10, margin="0.12,0.07"];
  edge [color="#66758a", arrowsize=0.6];
)";

// Indexed by NodeDifference.
struct Colour {
  const char* fill;
  const char* meaning;
};
constexpr Colour kColours[] = {{"#eef2f7", "nothing differs"},
                               {"#fdf1c7", "an update, a patch or a set changes it"},
                               {"#fbd7a8", "an update or a patch changes it"},
                               {"#dccbf2", "an update changes it"},
                               {"#f7c3c0", "no update changes it"}};

std::string fill_of(NodeDifference difference) {
  return std::string("fillcolor=\"") + kColours[static_cast<std::size_t>(difference)].fill + '"';
}

// The style of nodes and edges that only one of the two graphs has.
struct Alone {
  const char* where;
  const char* node;
  const char* edge;
};
constexpr Alone kHereAlone = {"only here", R"(style="rounded,filled,dashed", color="#b3261e")",
                              R"(style=dashed, color="#b3261e")"};
constexpr Alone kThereAlone = {"only there", R"(style="rounded,filled,dashed", color="#1a5fb4")",
                               R"(style=dashed, color="#1a5fb4")"};

// Graphviz refuses longer strings: 16384 bytes with what surrounds them.
constexpr std::size_t kMostBytes = 16000;

// Labels interpret backslashes and entities, and an SVG must not contain control characters. Cuts what is longer.
std::string escaped(const std::string& text, std::size_t most_bytes) {
  constexpr std::size_t kMostAtOnce = 16;  // The rest of a character, the next one, and the dots.
  std::string result;
  for (const char c : valid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (result.size() + kMostAtOnce > most_bytes && (byte & 0xC0) != 0x80) return result + "...";
    if (c == '"' || c == '\\') result += '\\';
    if (byte < 0x20 || byte == 0x7F) {
      result += ' ';
    } else if (c == '&') {
      result += "&amp;";
    } else {
      result += c;
    }
  }
  return result;
}

std::string quoted(const std::string& text) { return '"' + escaped(text, kMostBytes) + '"'; }

// Each line is left-aligned.
std::string quoted(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += escaped(line, kMostBytes / lines.size()) + "\\l";
  return '"' + text + '"';
}

std::string title_of(const GraphInfo& graph) {
  std::string title = graph.label.empty() ? "" : graph.label + ", ";
  title += "entry " + std::to_string(graph.entry);
  if (graph.family != 0) title += ", family " + std::to_string(graph.family);
  return title;
}

std::string begin(const std::vector<std::string>& title) {
  return std::string(kHead) + "  label=" + quoted(title) + ";\n";
}

std::string node(std::size_t index, const std::vector<std::string>& lines, const std::string& name,
                 const std::string& attributes) {
  return "  n" + std::to_string(index) + " [label=" + quoted(lines) + ", tooltip=" + quoted(name) + attributes + "];\n";
}

std::string edge(std::pair<std::size_t, std::size_t> ends, const std::string& attributes) {
  return "  n" + std::to_string(ends.first) + " -> n" + std::to_string(ends.second) + attributes + ";\n";
}

using Edges = std::set<std::pair<std::size_t, std::size_t>>;
Edges edges_of(const GraphInfo& graph) {
  Edges edges;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::uint32_t dependency : graph.nodes[i].dependencies) edges.emplace(dependency, i);
  }
  return edges;
}

std::string numbered(std::size_t index, const std::string& line) { return std::to_string(index) + "  " + line; }

std::vector<std::string> lines_of(std::size_t index, const GraphNode& node) {
  std::vector<std::string> lines;
  for (const std::string& line : graphcache::lines_of(node)) {
    if (!line.empty()) lines.push_back(lines.empty() ? numbered(index, line) : line);
  }
  return lines;
}

// The names of the arguments that differ.
std::string differing_arguments(const GraphNode& here, const GraphNode& there) {
  std::string names;
  for (std::size_t i = 0; i < std::max(here.arguments.size(), there.arguments.size()); ++i) {
    const bool in_both = i < here.arguments.size() && i < there.arguments.size();
    if (in_both && here.arguments[i].is_slot == there.arguments[i].is_slot &&
        (here.arguments[i].is_slot || here.arguments[i].value == there.arguments[i].value)) {
      continue;
    }
    names += (names.empty() ? "" : ", ") + (i < here.arguments.size() ? here : there).arguments[i].name;
  }
  return names;
}

// Lines that both nodes have are shown once; the others as they are here and there.
std::vector<std::string> lines_of_both(std::size_t index, const GraphNode& here, const GraphNode& there) {
  const auto a = graphcache::lines_of(here), b = graphcache::lines_of(there);
  const auto or_none = [](const std::string& line) { return line.empty() ? "-" : line; };
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) {
      lines.push_back("here: " + or_none(a[i]));
      lines.push_back("there: " + or_none(b[i]));
    } else if (!a[i].empty()) {
      lines.push_back(a[i]);
    }
  }
  if (lines.empty()) lines.emplace_back();
  lines.front() = numbered(index, lines.front());
  const std::string arguments = differing_arguments(here, there);
  if (!arguments.empty()) lines.push_back("differs: " + arguments);
  return lines;
}

std::string legend() {
  std::string text =
      "  subgraph cluster_legend {\n    label=\"Differences\"; color=\"#c3cad4\";\n    node [height=0.25];\n";
  std::string order;
  const auto add = [&](const char* name, const std::string& label, const std::string& attributes) {
    text += std::string("    ") + name + " [label=" + quoted(label) + ", " + attributes + "];\n";
    order += (order.empty() ? "    " : " -> ") + std::string(name);  // Stacked vertically.
  };
  for (std::size_t i = 0; i < std::size(kColours); ++i) {
    const auto difference = static_cast<NodeDifference>(i);
    add(to_string(difference), to_string(difference) + std::string(": ") + kColours[i].meaning, fill_of(difference));
  }
  add("here", kHereAlone.where, std::string(kHereAlone.node) + ", fillcolor=white");
  add("there", kThereAlone.where, std::string(kThereAlone.node) + ", fillcolor=white");
  return text + order + " [style=invis];\n  }\n";
}

}  // namespace

std::string to_dot(const GraphInfo& graph) {
  std::string text = begin({title_of(graph) + ": " + std::to_string(graph.nodes.size()) + " nodes"});
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    text += node(i, lines_of(i, graph.nodes[i]), graph.nodes[i].name, "");
  }
  for (const auto& ends : edges_of(graph)) text += edge(ends, "");
  return text + "}\n";
}

std::string to_dot(const GraphInfo& here, const GraphInfo& there) {
  const GraphDifference found = difference(here, there);
  std::string text = begin({"here: " + title_of(here), "there: " + title_of(there)});
  for (std::size_t i = 0; i < found.nodes.size(); ++i) {
    const std::string fill = ", " + fill_of(found.nodes[i]);
    if (i < here.nodes.size() && i < there.nodes.size()) {
      text += node(i, lines_of_both(i, here.nodes[i], there.nodes[i]), here.nodes[i].name, fill);
      continue;
    }
    const GraphNode& only = (i < here.nodes.size() ? here : there).nodes[i];
    const Alone& alone = i < here.nodes.size() ? kHereAlone : kThereAlone;
    std::vector<std::string> lines = lines_of(i, only);
    lines.emplace_back(alone.where);
    text += node(i, lines, only.name, fill + ", " + alone.node);
  }
  const Edges here_edges = edges_of(here), there_edges = edges_of(there);
  for (const auto& ends : here_edges) {
    text += edge(ends, there_edges.contains(ends) ? "" : std::string(" [") + kHereAlone.edge + "]");
  }
  for (const auto& ends : there_edges) {
    if (!here_edges.contains(ends)) text += edge(ends, std::string(" [") + kThereAlone.edge + "]");
  }
  return text + legend() + "}\n";
}

}  // namespace graphcache
