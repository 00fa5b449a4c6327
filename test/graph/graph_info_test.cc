// The result of Cache::graph() for a key's graph, and differences between two graphs. On either runtime.
#include "graphcache/graph_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cache_support.h"

namespace graphcache::test {
namespace {

class GraphInfoTest : public CacheTest {
 protected:
  // A graph of one kernel in clusters, for grids that are multiples of them.
  absl::StatusOr<Outcome> run_in_clusters(Cache& cache, const Key& key, unsigned cluster) {
    return cache.run(key, stream, [&](cudaStream_t on) {
      CUDA_OK(add_one(on));
      return launch_in_clusters(add, dim3(4), kBlock, dim3(cluster, cluster == 0 ? 0 : 1, cluster == 0 ? 0 : 1), on,
                                data.get(), kSize, 1.0f);
    });
  }
  // A graph of two kernels.
  auto add_twice() {
    return [this](cudaStream_t on) {
      CUDA_OK(add_one(on));
      return add_one(on);
    };
  }
  static GraphInfo graph(const Cache& cache, const Key& key) {
    absl::StatusOr<GraphInfo> info = cache.graph(key);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? *std::move(info) : GraphInfo();
  }
  template <class T>
  static T as(const GraphNode::Argument& argument) {
    T value{};
    EXPECT_EQ(argument.value.size(), sizeof value);
    if (argument.value.size() == sizeof value) std::memcpy(&value, argument.value.data(), sizeof value);
    return value;
  }
};

TEST_F(GraphInfoTest, ANodeHasItsKernelsNameItsShapeAndItsArguments) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("k", 7)).ok());
  const GraphInfo info = graph(cache, key("k", 7));
  EXPECT_EQ(info.label, "k");
  EXPECT_EQ(info.entry, cache.entries().front().id);
  ASSERT_EQ(info.nodes.size(), 1u);
  const GraphNode& node = info.nodes[0];
  EXPECT_EQ(node.type, cudaGraphNodeTypeKernel);
  EXPECT_NE(node.name.find("kernel "), std::string::npos) << node.name;
  EXPECT_NE(node.name.find("graphcache::test::add"), std::string::npos) << node.name;
  EXPECT_EQ(node.grid.x, kGrid.x);
  EXPECT_EQ(node.block.x, kBlock.x);
  EXPECT_EQ(node.shared_bytes, 0u);
  EXPECT_FALSE(node.grid_is_slot || node.block_is_slot || node.shared_is_slot);
  EXPECT_TRUE(node.dependencies.empty());
  ASSERT_EQ(node.arguments.size(), 3u);
  EXPECT_EQ(node.arguments[0].name, "argument 0");
  EXPECT_EQ(as<float*>(node.arguments[0]), data.get());
  EXPECT_EQ(as<int>(node.arguments[1]), kSize);
  EXPECT_EQ(as<float>(node.arguments[2]), 1.0f);
  for (const GraphNode::Argument& argument : node.arguments) EXPECT_FALSE(argument.is_slot);
}

TEST_F(GraphInfoTest, FieldsThatFollowSlotsAreMarked) {
  Cache cache;
  DeviceBuffer<float> other(kSize);
  const auto run = [&](unsigned blocks, float value, std::size_t bytes) {
    return cache.run(key("k"), stream, params(dim3(blocks), value, bytes, 0),
                     [&](Recorder& rec, Slot<dim3> grid, Slot<float> v, Slot<std::size_t> size, Slot<int> byte) {
                       rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 2.0f);
                       rec.launch(add, {grid, kBlock}, data.get(), kSize, v);
                       rec.memcpy(other.get(), data.get(), size);
                       rec.memset(other.get(), byte, other.bytes());
                     });
  };
  EXPECT_RUN(kInstantiated, run(2, 1, kSize * sizeof(float)));
  const GraphInfo info = graph(cache, key("k"));
  ASSERT_EQ(info.nodes.size(), 4u);
  const auto slots_of = [](const GraphNode& node) {
    std::string slots;
    for (const GraphNode::Argument& argument : node.arguments) slots += argument.is_slot ? argument.name + ";" : "";
    return slots;
  };
  EXPECT_FALSE(info.nodes[0].grid_is_slot);
  EXPECT_EQ(slots_of(info.nodes[0]), "");
  EXPECT_TRUE(info.nodes[1].grid_is_slot);
  EXPECT_FALSE(info.nodes[1].block_is_slot || info.nodes[1].shared_is_slot);
  ASSERT_EQ(info.nodes[1].arguments.size(), 3u);
  EXPECT_EQ(slots_of(info.nodes[1]), "argument 2;");
  EXPECT_EQ(info.nodes[2].name, "copy");
  EXPECT_EQ(slots_of(info.nodes[2]), "bytes;");
  EXPECT_EQ(info.nodes[3].name, "set");
  EXPECT_EQ(slots_of(info.nodes[3]), "value;");
  for (std::uint32_t i = 1; i < 4; ++i) EXPECT_EQ(info.nodes[i].dependencies, std::vector<std::uint32_t>{i - 1});
  // The graph is as captured, whatever the executable holds now.
  EXPECT_RUN(kPatched, run(1, 5, sizeof(float)));
  EXPECT_EQ(as<float>(graph(cache, key("k")).nodes[1].arguments[2]), 1.0f);
}

TEST_F(GraphInfoTest, EdgesOfSideBranches) {
  Cache cache;
  Stream side;
  EXPECT_SUCCESS(cache.run(key("k"), stream, [&](cudaStream_t on) {
    CUDA_OK(add_one(on));
    let_follow(side, on);
    CUDA_OK(launch(do_nothing, kGrid, kBlock, side));
    CUDA_OK(launch(do_nothing, kGrid, kBlock, on));
    let_follow(on, side);
    return add_one(on);
  }));
  const GraphInfo info = graph(cache, key("k"));
  ASSERT_EQ(info.nodes.size(), 4u);
  using Nodes = std::vector<std::uint32_t>;
  EXPECT_EQ(info.nodes[0].dependencies, Nodes{});
  EXPECT_EQ(info.nodes[1].dependencies, Nodes{0});
  EXPECT_EQ(info.nodes[2].dependencies, Nodes{0});
  EXPECT_THAT(info.nodes[3].dependencies, testing::UnorderedElementsAre(1u, 2u));
}

TEST_F(GraphInfoTest, ATemplateAloneIsRead) {
  Cache cache(unshared(1));
  EXPECT_TRUE(run_add(cache, key("first")).ok());
  EXPECT_TRUE(run_add(cache, key("second")).ok());
  EXPECT_EQ(graph(cache, key("first")).nodes.size(), 1u);
  EXPECT_RUN(kRestored, run_add(cache, key("first")));
  expect_sum(3);
}

TEST_F(GraphInfoTest, AnEntryIsReadByItsNumber) {
  Cache cache;
  EXPECT_SUCCESS(run_add(cache, key("k")));
  const std::uint64_t id = cache.entries().front().id;
  const absl::StatusOr<GraphInfo> found = cache.graph(id);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->label, "k");
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_SUCCESS(run_add(cache, key("later")));  // in the same memory
  EXPECT_TRUE(absl::IsNotFound(cache.graph(id).status()));
  EXPECT_NE(cache.entries().front().id, id);
  EXPECT_TRUE(absl::IsNotFound(cache.graph(std::uint64_t{1} << 40 | 999).status()));
}

TEST_F(GraphInfoTest, KeysWithoutAGraphAreNotFound) {
  Cache cache({.capture_after = 1});
  EXPECT_TRUE(absl::IsNotFound(cache.graph(key("k")).status()));
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_TRUE(absl::IsNotFound(cache.graph(key("k")).status()));
}

TEST_F(GraphInfoTest, OfSeveralEntriesOfAKeyTheOneUsedLastIsRead) {
  Cache cache;
  EXPECT_SUCCESS(run_add(cache, key("k")));
  EXPECT_SUCCESS(cache.run(key("k"), stream, add_twice()));
  EXPECT_EQ(graph(cache, key("k")).nodes.size(), 2u);
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  EXPECT_EQ(graph(cache, key("k")).nodes.size(), 1u);
}

TEST_F(GraphInfoTest, InsideItsOwnFnItIsUnavailable) {
  Cache cache({.verify_every = 1});
  absl::Status inside;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      inside = cache.graph(key("k")).status();  // it has no graph in the first run
      return add_one(on);
    });
  };
  EXPECT_SUCCESS(run());
  EXPECT_RUN(kReplayed, run());
  EXPECT_TRUE(absl::IsUnavailable(inside)) << inside;
}

TEST_F(GraphInfoTest, RunsOfOtherThreadsGoOn) {
  constexpr int kRuns = 2000;
  Cache cache(renting(2));
  std::thread reader([&] {
    for (int i = 0; i < 300; ++i) {
      for (const EntryInfo& entry : cache.entries()) {
        const absl::StatusOr<GraphInfo> info = cache.graph(entry.id);
        EXPECT_TRUE(!info.ok() || info->nodes.size() == 1u);
      }
      (void)explain(cache, key("k", i % 5));
      (void)advise(cache);
    }
  });
  for (int i = 0; i < kRuns; ++i) EXPECT_TRUE(run_add(cache, key("k", i % 5)).ok());
  reader.join();
  expect_sum(kRuns);
}

TEST_F(GraphInfoTest, DifferencesGrowFromValuesToWhatNoUpdateChanges) {
  Cache cache;
  const auto run = [&](const char* name, float value, unsigned blocks, auto kernel, int nodes) {
    EXPECT_SUCCESS(cache.run(key(name), stream, [&](cudaStream_t on) {
      for (int i = 0; i < nodes; ++i) CUDA_OK(launch(kernel, dim3(blocks), kBlock, on, data.get(), kSize, value));
    }));
    return graph(cache, key(name));
  };
  const GraphInfo base = run("base", 1, 2, add, 1);
  using Kinds = std::vector<NodeDifference>;
  const auto expect = [&](const GraphInfo& other, const Kinds& wanted, const std::string& text) {
    const GraphDifference found = difference(base, other);
    EXPECT_EQ(found.nodes, wanted) << other.label;
    EXPECT_TRUE(says(found.text, text)) << other.label;
    return found.text;
  };
  EXPECT_EQ(expect(run("equal", 1, 2, add, 1), {NodeDifference::kNone}, ""), "");
  expect(run("value", 2, 2, add, 1), {NodeDifference::kArguments}, "argument 2 differs");
  expect(run("grid", 2, 3, add, 1), {NodeDifference::kShape}, "the grid is 2, 1, 1 here and 3, 1, 1 there");
  expect(run("kernel", 2, 3, fill, 1), {NodeDifference::kKernel}, "node 0, kernel ");
  const Kinds longer = {NodeDifference::kNone, NodeDifference::kFixed};
  EXPECT_TRUE(says(expect(run("two", 1, 2, add, 2), longer, "it is only there"), "node 1, kernel "));
  EXPECT_STREQ(to_string(NodeDifference::kFixed), "fixed");
}

TEST_F(GraphInfoTest, EachPartOfANodeThatDiffersIsNamed) {
  GraphNode kernel;
  kernel.type = cudaGraphNodeTypeKernel;
  kernel.name = "kernel k";
  kernel.attributes = {{"priority", "-1"}};
  kernel.arguments = {{"argument 0", {1}, false}, {"argument 1", {2}, true}};
  const auto expect = [&](NodeDifference wanted, const std::string& text, auto&& change) {
    GraphNode other = kernel;
    change(other);
    GraphInfo here, there;
    here.nodes = {kernel};
    there.nodes = {std::move(other)};
    const GraphDifference found = difference(here, there);
    EXPECT_EQ(found.nodes, std::vector<NodeDifference>{wanted}) << to_string(found.nodes[0]);
    EXPECT_EQ(found.text, text.empty() ? "" : "node 0, kernel k: " + text);
  };
  using Node = GraphNode;
  expect(NodeDifference::kNone, "", [](Node&) {});
  expect(NodeDifference::kNone, "", [](Node& node) { node.arguments[1].value = {3}; });  // each run replaces it
  expect(NodeDifference::kArguments, "argument 0 differs", [](Node& node) { node.arguments[0].value = {3}; });
  expect(NodeDifference::kArguments, "argument 0 differs", [](Node& node) { node.arguments[0].is_slot = true; });
  expect(NodeDifference::kArguments, "argument 1 differs", [](Node& node) { node.arguments[1].name = "bytes"; });
  expect(NodeDifference::kArguments, "argument 1 differs", [](Node& node) { node.arguments.pop_back(); });
  expect(NodeDifference::kArguments, "argument 2 differs", [](Node& node) {
    node.arguments.push_back({"argument 2", {}, false});
  });
  expect(NodeDifference::kArguments, "the grid is a slot in only one of them",
         [](Node& node) { node.grid_is_slot = true; });
  expect(NodeDifference::kArguments, "the dynamic shared memory is a slot in only one of them",
         [](Node& node) { node.shared_is_slot = true; });
  expect(NodeDifference::kShape, "the dynamic shared memory is 0 here and 8 there",
         [](Node& node) { node.shared_bytes = 8; });
  expect(NodeDifference::kKernel, "it is kernel k here and kernel j there", [](Node& node) { node.name = "kernel j"; });
  expect(NodeDifference::kFixed, "it depends on other nodes", [](Node& node) { node.dependencies = {7}; });
  expect(NodeDifference::kFixed, "the priority is -1 here and 0 there",
         [](Node& node) { node.attributes[0].value = "0"; });
  expect(NodeDifference::kFixed, "the cooperative is not set here and 1 there", [](Node& node) {
    node.attributes.push_back({"cooperative", "1"});
  });
  expect(NodeDifference::kFixed, "the type is kernel k here and set there", [](Node& node) {
    node.type = cudaGraphNodeTypeMemset;
    node.name = "set";
  });
  GraphInfo one;
  one.nodes = {kernel};
  EXPECT_EQ(difference(one, GraphInfo()).text, "node 0, kernel k: it is only here");
  EXPECT_EQ(difference(GraphInfo(), one).text, "node 0, kernel k: it is only there");
  EXPECT_STREQ(to_string(static_cast<NodeDifference>(99)), "unknown");
}

TEST_F(GraphInfoTest, AnAttributeThatNoUpdateChangesIsNamed) {
  Cache cache;
  ASSERT_SUCCESS(run_in_clusters(cache, key("k", 2), 2));
  ASSERT_SUCCESS(run_in_clusters(cache, key("k", 0), 0));
  const GraphInfo with = graph(cache, key("k", 2)), without = graph(cache, key("k", 0));
  ASSERT_EQ(with.nodes.size(), 2u);
  const GraphDifference found = difference(with, without);
  EXPECT_EQ(found.nodes, (std::vector<NodeDifference>{NodeDifference::kNone, NodeDifference::kFixed}));
  EXPECT_TRUE(says(found.text, "node 1, kernel "));
  EXPECT_TRUE(says(found.text, "the cluster dimension is 2, 1, 1 here and not set there"));
  // explain() says so of such keys.
  const std::string text = explain(cache, key("k", 2));
  EXPECT_TRUE(says(text, "The nearest: node 1, kernel "));
  EXPECT_TRUE(says(text, "the cluster dimension is 2, 1, 1 here and not set there."));
  // Other keys that differ as much do not change that.
  for (const unsigned cluster : {1u, 4u}) EXPECT_SUCCESS(run_in_clusters(cache, key("k", cluster), cluster));
  EXPECT_TRUE(says(explain(cache, key("k", 2)), "The nearest: node 1, kernel "));
  EXPECT_SUCCESS(run_in_clusters(cache, key("other", 4), 4));  // of another label, so not compared
  EXPECT_EQ(explain(cache, key("other", 4)).find("The nearest"), std::string::npos);
}

TEST_F(GraphInfoTest, SiblingsHaveNoNearestDifference) {
  Cache cache(renting());
  EXPECT_TRUE(run_add(cache, key("k", 1)).ok());
  EXPECT_TRUE(run_add(cache, key("k", 2)).ok());
  EXPECT_TRUE(run_in_clusters(cache, key("k", 3), 2).ok());
  EXPECT_EQ(explain(cache, key("k", 1)).find("The nearest"), std::string::npos);
}

}  // namespace
}  // namespace graphcache::test
