// Shared by the suites of the signature: captured graphs and their descriptions.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "cuda/compat.h"
#include "exec/executable.h"
#include "graph/describe.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

using Counts = std::array<std::uint32_t, 4>;  // none, arguments, grid, other

// A captured graph and its description.
struct Described {
  Template graph;
  Content content;
  std::optional<Signature> signature;
};

// The most recently captured node of the stream.
inline cudaGraphNode_t last_node(cudaStream_t stream) {
  CaptureInfo info;
  CUDA_OK(capture_info(stream, &info));
  EXPECT_EQ(info.dependency_count, 1u);
  return info.dependencies[0];
}

// Sets an attribute of that node, a kernel.
inline void set_attribute(cudaStream_t stream, int id, int number) {
  cudaLaunchAttributeValue value = {};
  std::memcpy(&value, &number, sizeof number);
  CUDA_OK(cudaGraphKernelNodeSetAttribute(last_node(stream), static_cast<cudaLaunchAttributeID>(id), &value));
}

class SignatureTest : public testing::Test {
 protected:
  void SetUp() override {
    hostrt::reset();
    stream.emplace();
    memory.emplace(1024);
  }
  void TearDown() override {
    memory.reset();
    stream.reset();
    CUDA_OK(cudaPeekAtLastError());
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    EXPECT_EQ(hostrt::ledger().graphs, 0u);
    EXPECT_EQ(hostrt::ledger().executables, 0u);
    hostrt::reset();
  }

  int* at(int index) const { return memory->get() + index; }

  // A kernel.
  void step(cudaStream_t s) { CUDA_OK(launch(blend, 1, 32, s, at(0), 32, 3, 4)); }
  // A kernel on `side`, which is forked from `s` and joined again.
  void step_on(cudaStream_t side, cudaStream_t s) {
    let_follow(side, s);
    step(side);
    let_follow(s, side);
  }

  Described described(const std::function<void(cudaStream_t)>& enqueue) {
    return description_of(capture_graph(*stream, enqueue));
  }
  // Takes the graph.
  static Described description_of(cudaGraph_t graph) {
    Described result;
    result.graph.graph = OwnedGraph(graph);
    CUDA_OK(result.graph.list_nodes().error);
    result.content.node_count = result.graph.nodes.size();
    result.signature = describe(result.graph, &result.content);
    if (result.content.is_alone) result.signature.reset();
    return result;
  }
  // `count` launches, some of which differ, counted from the first one on.
  Described kernels(int count, int other, const std::function<void(cudaStream_t, int)>& launch_other) {
    return described([&](cudaStream_t s) {
      for (int i = 0; i < count; ++i) {
        if (i < other) {
          launch_other(s, i);
        } else {
          CUDA_OK(launch(blend, 2, 32, s, at(0), 64, 3, i));
        }
      }
    });
  }
  Described kernels(int count) {
    return kernels(count, 0, [](cudaStream_t, int) {});
  }

  // Whether the two graphs are siblings.
  bool alike(const std::function<void(cudaStream_t)>& a, const std::function<void(cudaStream_t)>& b) {
    const Described x = described(a), y = described(b);
    EXPECT_TRUE(x.signature.has_value());
    EXPECT_TRUE(y.signature.has_value());
    return x.signature == y.signature;
  }

  std::optional<Stream> stream;
  std::optional<DeviceBuffer<int>> memory;
};

inline void add_one(void* number) { ++*static_cast<int*>(number); }
inline void add_two(void* number) { *static_cast<int*>(number) += 2; }

}  // namespace graphcache::test
