// Pictures of graphs: their contents, and that Graphviz takes every text as text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/graph_info.h"
#include "graphcache_export/dot.h"

namespace graphcache::test {
namespace {

using testing::HasSubstr;
using testing::Not;

GraphNode kernel(const std::string& name, unsigned blocks, std::vector<std::uint32_t> dependencies = {}) {
  GraphNode node;
  node.type = cudaGraphNodeTypeKernel;
  node.name = "kernel " + name;
  node.grid = dim3(blocks);
  node.block = dim3(32, 2);
  node.dependencies = std::move(dependencies);
  return node;
}

GraphInfo graph(std::vector<GraphNode> nodes, const std::string& label = "decode") {
  GraphInfo info;
  info.entry = 3;
  info.label = label;
  info.nodes = std::move(nodes);
  return info;
}

// Graphviz's rendering of a picture; nothing if Graphviz is not installed. Fails the test if Graphviz reports an error.
std::optional<std::string> svg(const std::string& dot) {
  if (std::system("dot -V 2>/dev/null") != 0) return std::nullopt;
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "graphcache_dot.XXXXXX";
  std::string name = folder.string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  std::ofstream(name + "/graph.dot") << dot;
  const std::string command = "dot -Tsvg " + name + "/graph.dot >" + name + "/graph.svg 2>" + name + "/errors";
  EXPECT_EQ(std::system(command.c_str()), 0) << dot;
  const auto content = [&](const char* file) {
    std::ifstream stream(name + file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  EXPECT_EQ(content("/errors"), "") << dot;
  std::string result = content("/graph.svg");
  std::filesystem::remove_all(name);
  return result;
}

TEST(ExportDotTest, ANodeShowsItsKernelItsShapeAndItsSlots) {
  GraphNode node = kernel("gemm(float*, int)", 7);
  node.shared_bytes = 1024;
  node.attributes = {{"cluster dimension", "2, 1, 1"}};
  node.arguments = {{"argument 0", {0xAB, 0xCD}, false}, {"argument 1", {0xEF}, true}};
  node.grid_is_slot = true;
  const std::string dot = to_dot(graph({node, kernel("tail()", 1, {0})}));
  EXPECT_THAT(dot, HasSubstr("decode, entry 3: 2 nodes"));
  EXPECT_THAT(dot, HasSubstr("n0 [label=\"0  kernel gemm(float*, int)\\lgrid 7, block 32 x 2, shared 1024 bytes\\l"
                             "cluster dimension: 2, 1, 1\\lslot: argument 1, grid\\l\""));
  EXPECT_THAT(dot, HasSubstr("n1 [label=\"1  kernel tail()\\lgrid 1, block 32 x 2\\l\""));
  EXPECT_THAT(dot, HasSubstr("n0 -> n1;"));
}

TEST(ExportDotTest, AttributesThatEveryKernelHasAndShapesOfOtherNodesAreLeftOut) {
  GraphNode usual = kernel("gemm()", 1), other = usual, copy;
  usual.attributes = {{"cluster scheduling policy", "1"}, {"memory synchronization domain map", "0, 1"}};
  other.attributes = {{"cluster scheduling policy", "2"}, {"memory synchronization domain map", "1, 1"}};
  copy.type = cudaGraphNodeTypeMemcpy;
  copy.name = "copy";
  copy.arguments = {{"bytes", {1, 0, 0, 0, 0, 0, 0, 0}, true}};
  EXPECT_THAT(to_dot(graph({usual})), HasSubstr("block 32 x 2\\l\""));
  EXPECT_THAT(to_dot(graph({other})),
              HasSubstr("cluster scheduling policy: 2; memory synchronization domain map: 1, 1\\l"));
  EXPECT_THAT(to_dot(graph({copy})), HasSubstr("[label=\"0  copy\\lslot: bytes\\l\""));
}

TEST(ExportDotTest, OfALongNameTheFunctionStaysUnlessItIsUnusual) {
  const std::string parameters(80, 'p'), arguments = "<float, std::pair<int, " + std::string(80, 't') + "> >";
  const auto label = [](const std::string& name) { return to_dot(graph({kernel(name, 1)})); };
  const std::string whole = "void of<float>(int)";
  EXPECT_THAT(label(whole), HasSubstr("0  kernel " + whole + "\\l"));
  EXPECT_THAT(label("void of<float>(" + parameters + ") const"), HasSubstr("0  kernel void of<float>(...)\\l"));
  EXPECT_THAT(label("void a::of" + arguments + "(" + parameters + ")"), HasSubstr("0  kernel void a::of<...>(...)\\l"));
  EXPECT_THAT(label("a" + arguments + "::operator<(f(int), " + parameters + ")"),
              HasSubstr("0  kernel a<...>::operator<(...)\\l"));
  EXPECT_THAT(label(std::string(200, 'n') + "::end(" + parameters + ")"), HasSubstr("nnn::end(...)\\l"));
  // The tooltip has the whole name.
  EXPECT_THAT(label("void of(" + parameters + ")"), HasSubstr("tooltip=\"kernel void of(" + parameters + ")\""));
  for (const std::string& name : {std::string(300, '<'), std::string(300, ')'), std::string(300, '('),
                                  std::string(300, '\xBF'), "operator" + std::string(300, '<')}) {
    EXPECT_NE(to_dot(graph({kernel(name, 1)})), "");
  }
}

// The number of bytes of the longest string.
std::size_t longest_string(const std::string& dot) {
  std::size_t longest = 0, begin = 0;
  bool is_inside = false;
  for (std::size_t i = 0; i < dot.size(); ++i) {
    if (is_inside && dot[i] == '\\') {
      ++i;
    } else if (dot[i] == '"') {
      if (std::exchange(is_inside, !is_inside)) longest = std::max(longest, i - begin);
      begin = i;
    }
  }
  return longest;
}

TEST(ExportDotTest, WhatIsTooLongForGraphvizIsCut) {
  for (const char* character : {"n", "&", "\"", "\\", "\xC3\xA9", "\xF0\x9F\x98\x80"}) {
    SCOPED_TRACE(character);
    std::string text;
    while (text.size() < 40'000) text += character;
    GraphNode node = kernel(text + "()", 1);
    node.attributes = {{"name", text}};
    node.arguments = {{text, {1}, true}};
    const GraphInfo info = graph({node}, text);
    GraphInfo other = info;
    other.nodes[0].attributes[0].value = "else " + text;
    other.nodes[0].arguments[0].name = "else " + text;
    for (const std::string& dot : {to_dot(info), to_dot(info, other)}) {
      EXPECT_LE(longest_string(dot), 16'384u);
      EXPECT_GE(longest_string(dot), 15'000u);
      EXPECT_NE(svg(dot), "");
    }
  }
}

TEST(ExportDotTest, ADifferencePairsNodesByTheirIndex) {
  GraphNode here = kernel("same()", 4), there = kernel("same()", 4);
  here.arguments = {{"argument 0", {1}, false}, {"argument 1", {1}, false}};
  there.arguments = {{"argument 0", {1}, false}, {"argument 1", {2}, false}};
  GraphNode cluster = kernel("last()", 4, {3});
  cluster.attributes = {{"cluster dimension", "2, 1, 1"}};
  const std::string dot = to_dot(
      graph({kernel("a()", 1), here, kernel("shape()", 4, {1}), kernel("one()", 4, {2}), cluster}),
      graph({kernel("a()", 1), there, kernel("shape()", 8, {1}), kernel("other()", 4, {2}), kernel("last()", 4, {3})}));
  const auto fills = [&](const std::string& node, const std::string& fill) {
    const std::size_t at = dot.find(node);
    ASSERT_NE(at, std::string::npos) << node << dot;
    EXPECT_THAT(dot.substr(at, dot.find('\n', at) - at), HasSubstr("fillcolor=\"" + fill + "\"")) << dot;
  };
  fills("n0 [label=\"0  kernel a()\\lgrid 1, block 32 x 2\\l\"", "#eef2f7");
  fills("n1 [label=\"1  kernel same()\\lgrid 4, block 32 x 2\\ldiffers: argument 1\\l\"", "#fdf1c7");
  fills("n2 [label=\"2  kernel shape()\\lhere: grid 4, block 32 x 2\\lthere: grid 8, block 32 x 2\\l\"", "#fbd7a8");
  fills("n3 [label=\"3  here: kernel one()\\lthere: kernel other()\\lgrid 4, block 32 x 2\\l\"", "#dccbf2");
  fills("n4 [label=\"4  kernel last()\\lgrid 4, block 32 x 2\\lhere: cluster dimension: 2, 1, 1\\lthere: -\\l\"",
        "#f7c3c0");
  for (const char* name : {"none: ", "arguments: ", "shape: ", "kernel: ", "fixed: ", "only here", "only there"}) {
    EXPECT_THAT(dot, HasSubstr(std::string(" [label=\"") + name));  // the legend
  }
  EXPECT_NE(svg(dot), "");
}

TEST(ExportDotTest, NodesOfOnlyOneGraphAreMarked) {
  const GraphInfo longer = graph({kernel("a()", 1), kernel("b()", 1, {0}), kernel("c()", 1, {0})}, "longer");
  const GraphInfo shorter = graph({kernel("a()", 1), kernel("b()", 1)}, "shorter");
  const std::string here = to_dot(longer, shorter), there = to_dot(shorter, longer);
  EXPECT_THAT(here, HasSubstr("here: longer, entry 3\\lthere: shorter, entry 3\\l"));
  EXPECT_THAT(here, HasSubstr("n2 [label=\"2  kernel c()\\lgrid 1, block 32 x 2\\lonly here\\l\""));
  EXPECT_THAT(there, HasSubstr("n2 [label=\"2  kernel c()\\lgrid 1, block 32 x 2\\lonly there\\l\""));
  EXPECT_THAT(here, HasSubstr("n0 -> n1 [style=dashed, color=\"#b3261e\"];"));
  EXPECT_THAT(there, HasSubstr("n0 -> n1 [style=dashed, color=\"#1a5fb4\"];"));
}

TEST(ExportDotTest, NoTextIsMoreThanText) {
  const std::string hostile =
      "\"]; x [label=\"<b>&lt;\\N\\l\n\t& <script>alert(1)</script> \xFF\xC0\xAF \x01\x7F end\\";
  const GraphInfo info = graph({kernel("\"]; injected [label=\"", 1), kernel("a\\", 1, {0})}, hostile);
  GraphInfo other = info;
  other.nodes[0].name = "kernel <<b>>&amp;";
  for (const std::string& dot : {to_dot(info), to_dot(info, other)}) {
    const std::optional<std::string> picture = svg(dot);
    if (!picture) GTEST_SKIP() << "dot is not installed";
    EXPECT_THAT(*picture, HasSubstr("&quot;]; x [label=&quot;&lt;b&gt;&amp;lt;\\N\\l"));
    EXPECT_THAT(*picture, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
    EXPECT_THAT(*picture, HasSubstr("end\\"));
    EXPECT_THAT(*picture, HasSubstr("kernel &quot;]; injected [label=&quot;"));
    EXPECT_THAT(*picture, HasSubstr("kernel a\\"));
    EXPECT_THAT(*picture, Not(HasSubstr("<script")));
    // XML does not allow these characters, or drops them.
    EXPECT_EQ(picture->find_first_of("\x01\t\x7F"), std::string::npos);
    EXPECT_THAT(*picture, Not(HasSubstr("<title>injected</title>")));  // a node's name in an SVG
    EXPECT_THAT(*picture, Not(HasSubstr("<title>x</title>")));
  }
  EXPECT_THAT(*svg(to_dot(info, other)), HasSubstr("kernel &lt;&lt;b&gt;&gt;&amp;amp;"));
}

TEST(ExportDotTest, NoValueOfAnArgumentIsShown) {
  const auto with = [](unsigned char value) {
    GraphNode node = kernel("f()", 1);
    node.arguments = {{"argument 0", {value, value, value, value}, false}};
    return graph({node});
  };
  EXPECT_EQ(to_dot(with(1)), to_dot(with(2)));
  EXPECT_EQ(to_dot(with(1), with(2)), to_dot(with(3), with(4)));
}

TEST(ExportDotTest, AnEmptyGraphIsAPicture) {
  EXPECT_NE(svg(to_dot(GraphInfo())), "");
  EXPECT_NE(svg(to_dot(GraphInfo(), GraphInfo())), "");
}

}  // namespace
}  // namespace graphcache::test
