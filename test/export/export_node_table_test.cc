// The table from a profiler's graph node ids to labels and kernels.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "cache_support.h"
#include "graphcache_export/node_table.h"

namespace graphcache::test {
namespace {

using Row = std::vector<std::string>;

class ExportNodeTableTest : public CacheTest {
 protected:
  static std::vector<Row> rows(const std::string& table) {
    std::vector<Row> rows;
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      Row& row = rows.emplace_back(1);
      for (const char c : line) {
        if (c == '\t') {
          row.emplace_back();
        } else {
          row.back() += c;
        }
      }
    }
    return rows;
  }
};

const Row kNames = {"label", "entry", "graph_id", "executable_id", "node", "tools_id", "name"};

TEST_F(ExportNodeTableTest, EachNodeOfEachGraphHasALine) {
  Cache cache(unshared(1));
  EXPECT_TRUE(run_add(cache, key("without executable")).ok());
  EXPECT_SUCCESS(cache.run(key("two nodes"), stream, [&](cudaStream_t on) {
    CUDA_OK(cudaMemsetAsync(data.get(), 0, data.bytes(), on));
    return add_one(on);
  }));
  std::vector<Row> wanted = {kNames};
  const auto text = [](const std::optional<std::uint64_t>& number) { return number ? std::to_string(*number) : ""; };
  for (const EntryInfo& entry : cache.entries()) {
    const absl::StatusOr<GraphInfo> graph = cache.graph(entry.id);
    ASSERT_TRUE(graph.ok());
    for (std::size_t i = 0; i < graph->nodes.size(); ++i) {
      wanted.push_back({entry.label, std::to_string(entry.id), text(graph->graph_id), text(graph->executable_id),
                        std::to_string(i), text(graph->nodes[i].tools_id), graph->nodes[i].name});
    }
  }
  const std::vector<Row> found = rows(node_table(cache));
  EXPECT_EQ(found, wanted);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[2][0], "two nodes");
  EXPECT_NE(found[2][6].find("add"), std::string::npos);
  EXPECT_NE(found[2][3], "");  // hostrt has ids for profilers
  EXPECT_EQ(found[3][3], "");  // what was evicted has none
}

TEST_F(ExportNodeTableTest, KeysWithoutAGraphHaveNoLine) {
  Cache cache({.capture_after = 1});
  EXPECT_EQ(rows(node_table(cache)), std::vector<Row>{kNames});
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_EQ(rows(node_table(cache)), std::vector<Row>{kNames});
}

TEST_F(ExportNodeTableTest, ALabelStaysOneField) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("tab\tline\nreturn\rback\\slash\xff")).ok());
  const std::vector<Row> found = rows(node_table(cache));
  ASSERT_EQ(found.size(), 2u);
  ASSERT_EQ(found[1].size(), kNames.size());
  EXPECT_EQ(found[1][0], "tab\\tline\\nreturn\\rback\\\\slash\xef\xbf\xbd");
}

TEST_F(ExportNodeTableTest, AGraphInUseIsLeftOut) {
  Cache cache({.verify_every = 1});  // a hit calls fn as well
  EXPECT_TRUE(run_add(cache, key("other")).ok());
  std::vector<Row> found;
  const auto run = [&] {
    return cache.run(key("in use"), stream, [&](cudaStream_t on) {
      found = rows(node_table(cache));
      return add_one(on);
    });
  };
  EXPECT_TRUE(run().ok());
  EXPECT_RUN(kReplayed, run());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1][0], "other");
  EXPECT_EQ(rows(node_table(cache)).size(), 3u);
}

}  // namespace
}  // namespace graphcache::test
