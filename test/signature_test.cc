// What two captured graphs must share, and what brings an executable from one to the other: lib/signature.h, on hostrt.
#include "signature.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compat.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "program.h"
#include "support.h"

namespace graphcache::test {
namespace {

using Counts = std::array<std::uint32_t, kChangeCount>;  // None, arguments, grid, launch, other.

// A captured graph, read.
struct Described {
  Template graph;
  Content content;
  std::optional<Signature> signature;

  // As if the nodes of these indices held slots.
  void hold_slots(const std::vector<std::uint32_t>& indices) {
    for (const std::uint32_t index : indices) {
      SlotNode node;
      node.index = index;
      node.type = content.nodes[index].type;
      content.slots.nodes.push_back(node);
    }
  }
};

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

  Described described(const std::function<void(cudaStream_t)>& enqueue) {
    Described result;
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamBeginCapture(*stream, cudaStreamCaptureModeThreadLocal));
    enqueue(*stream);
    CUDA_OK(cudaStreamEndCapture(*stream, &graph));
    result.graph.graph = Graph(graph);
    CUDA_OK(result.graph.list_nodes().error);
    result.content.node_count = result.graph.nodes.size();
    result.signature = describe(result.graph, &result.content);
    return result;
  }
  // `count` launches, of which some differ from each other: what is counted from the first one on.
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

  // Whether the two are siblings.
  bool alike(const std::function<void(cudaStream_t)>& a, const std::function<void(cudaStream_t)>& b) {
    const Described x = described(a), y = described(b);
    EXPECT_TRUE(x.signature.has_value());
    EXPECT_TRUE(y.signature.has_value());
    return x.signature == y.signature;
  }

  std::optional<Stream> stream;
  std::optional<DeviceBuffer<int>> memory;
};

void add_one(void* number) { ++*static_cast<int*>(number); }
void add_two(void* number) { *static_cast<int*>(number) += 2; }

// ---- What siblings share --------------------------------------------------------------------------------------------

TEST_F(SignatureTest, KernelsShapesAndValuesMayDiffer) {
  const auto with = [this](auto kernel, unsigned grid, unsigned block, std::size_t shared, int value) {
    return [=, this](cudaStream_t s) {
      int* p = at(0);
      int n = 64, a = value, b = 1;
      void* arguments[] = {&p, &n, &a, &b};
      CUDA_OK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(grid), dim3(block), arguments, shared, s));
    };
  };
  const auto base = with(blend, 2, 32, 0, 3);
  EXPECT_TRUE(alike(base, base));
  EXPECT_TRUE(alike(base, with(blend, 2, 32, 0, 4)));
  EXPECT_TRUE(alike(base, with(blend, 5, 32, 0, 3)));
  EXPECT_TRUE(alike(base, with(blend, 2, 64, 0, 3)));
  EXPECT_TRUE(alike(base, with(blend, 2, 32, 512, 3)));
  EXPECT_TRUE(alike(base, with(blend_otherwise, 2, 32, 0, 3)));
  EXPECT_TRUE(alike(base, [](cudaStream_t s) { CUDA_OK(launch(do_nothing, 1, 1, s)); }));
}

TEST_F(SignatureTest, SetsCopiesAndHostFunctionsMayDifferInWhatTheySetCopyAndCall) {
  int numbers[2];
  const auto set = [this](int index, int value, std::size_t bytes) {
    return [=, this](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(index), value, bytes, s)); };
  };
  EXPECT_TRUE(alike(set(0, 1, 64), set(8, 1, 64)));
  EXPECT_TRUE(alike(set(0, 1, 64), set(0, 2, 64)));
  EXPECT_TRUE(alike(set(0, 1, 64), set(0, 1, 128)));
  const auto copy = [this](int to, int from, std::size_t bytes) {
    return
        [=, this](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(to), at(from), bytes, cudaMemcpyDeviceToDevice, s)); };
  };
  EXPECT_TRUE(alike(copy(0, 100, 64), copy(8, 100, 64)));
  EXPECT_TRUE(alike(copy(0, 100, 64), copy(0, 200, 64)));
  EXPECT_TRUE(alike(copy(0, 100, 64), copy(0, 100, 128)));
  const auto call = [](cudaHostFn_t fn, void* data) {
    return [=](cudaStream_t s) { CUDA_OK(cudaLaunchHostFunc(s, fn, data)); };
  };
  EXPECT_TRUE(alike(call(add_one, &numbers[0]), call(add_one, &numbers[1])));
  EXPECT_TRUE(alike(call(add_one, &numbers[0]), call(add_two, &numbers[0])));
}

TEST_F(SignatureTest, TypesCountsAndOrderOfNodesMustAgree) {
  const auto kernel = [this](cudaStream_t s) { CUDA_OK(launch(blend, 1, 32, s, at(0), 32, 3, 4)); };
  const auto set = [this](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 1, 64, s)); };
  const auto nothing = [](cudaStream_t) {};
  EXPECT_TRUE(alike(nothing, nothing));
  EXPECT_FALSE(alike(nothing, kernel));
  EXPECT_FALSE(alike(kernel, set));
  EXPECT_FALSE(alike(kernel, [&](cudaStream_t s) { kernel(s), kernel(s); }));
  EXPECT_FALSE(alike([&](cudaStream_t s) { set(s), kernel(s); }, [&](cudaStream_t s) { kernel(s), set(s); }));
}

TEST_F(SignatureTest, DependenciesMustAgreeInTheirOrder) {
  Stream side;
  Event fork, join;
  const auto step = [this](cudaStream_t s) { CUDA_OK(launch(blend, 1, 32, s, at(0), 32, 3, 4)); };
  const auto follow = [](cudaStream_t first, cudaStream_t then, cudaEvent_t event) {
    CUDA_OK(cudaEventRecord(event, first));
    CUDA_OK(cudaStreamWaitEvent(then, event, 0));
  };
  const auto in_line = [&](cudaStream_t s) { step(s), step(s), step(s), step(s); };
  const auto forked = [&](cudaStream_t s) {
    step(s);
    follow(s, side, fork);
    step(s), step(side);
    follow(side, s, join);
    step(s);
  };
  const auto joined_otherwise = [&](cudaStream_t s) {  // The same edges, and the last node's in the other order.
    step(s);
    follow(s, side, fork);
    step(side), step(s);
    follow(side, s, join);
    step(s);
  };
  EXPECT_TRUE(alike(forked, forked));
  EXPECT_FALSE(alike(in_line, forked));
  EXPECT_FALSE(alike(forked, joined_otherwise));
}

TEST_F(SignatureTest, ManyDependenciesAreRead) {
  constexpr int kMost = 20;
  std::vector<Stream> sides(kMost);
  std::vector<Event> events(kMost);
  Event fork;
  const auto fan = [&](int count) {
    return [&, count](cudaStream_t s) {
      CUDA_OK(launch(blend, 1, 32, s, at(0), 32, 3, 4));
      CUDA_OK(cudaEventRecord(fork, s));
      for (int i = 0; i < kMost; ++i) {
        const auto n = static_cast<std::size_t>(i);
        CUDA_OK(cudaStreamWaitEvent(sides[n], fork, 0));
        CUDA_OK(launch(blend, 1, 32, sides[n], at(0), 32, 3, 4));
        CUDA_OK(cudaEventRecord(events[n], sides[n]));
        if (i == count) {
          CUDA_OK(launch(blend, 1, 32, s, at(0), 32, 3, 4));
        }
        CUDA_OK(cudaStreamWaitEvent(s, events[n], 0));
      }
      CUDA_OK(launch(blend, 1, 32, s, at(0), 32, 3, 4));
    };
  };
  for (const int count : {7, 8, 9, 16, 17}) {
    EXPECT_TRUE(alike(fan(count), fan(count)));
    EXPECT_FALSE(alike(fan(count), fan(count - 1)));
  }
}

// Built by hand: all nodes are empty, but for one that may be a host function.
TEST_F(SignatureTest, EveryDependencyAndTypeCounts) {
  int number = 0;
  const auto built = [&](std::size_t count, std::size_t left_out, bool host) {
    Described result;
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    result.graph.graph = Graph(graph);
    std::vector<cudaGraphNode_t> nodes(count);
    for (cudaGraphNode_t& node : nodes) CUDA_OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
    nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(left_out));
    cudaGraphNode_t last = nullptr;
    cudaHostNodeParams params = {};
    params.fn = add_one;
    params.userData = &number;
    CUDA_OK(host ? cudaGraphAddHostNode(&last, graph, nodes.data(), nodes.size(), &params)
                 : cudaGraphAddEmptyNode(&last, graph, nodes.data(), nodes.size()));
    CUDA_OK(result.graph.list_nodes().error);
    result.content.node_count = result.graph.nodes.size();
    result.signature = describe(result.graph, &result.content);
    EXPECT_TRUE(result.signature.has_value());
    return result;
  };
  for (const std::size_t count : {2u, 8u, 9u, 10u, 20u, 40u}) {
    const Described base = built(count, count - 1, false);
    EXPECT_EQ(base.signature, built(count, count - 1, false).signature);
    EXPECT_NE(base.signature, built(count, count - 2, false).signature) << count;
    EXPECT_NE(base.signature, built(count, count - 1, true).signature) << count;
  }
}

TEST_F(SignatureTest, KindsOfCopiesAndMemoryMustAgree) {
  void *pinned = nullptr, *other = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, 64));
  CUDA_OK(cudaMallocHost(&other, 64));
  char pageable[64];
  const auto copy = [](void* to, const void* from, cudaMemcpyKind kind) {
    return [=](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(to, from, 64, kind, s)); };
  };
  const auto inside = copy(at(0), at(100), cudaMemcpyDeviceToDevice);
  EXPECT_FALSE(alike(inside, copy(at(0), at(100), cudaMemcpyDefault)));
  EXPECT_FALSE(alike(inside, copy(at(0), pinned, cudaMemcpyHostToDevice)));
  EXPECT_FALSE(alike(copy(at(0), pinned, cudaMemcpyHostToDevice), copy(pinned, at(0), cudaMemcpyDeviceToHost)));
  EXPECT_TRUE(alike(copy(at(0), pinned, cudaMemcpyHostToDevice), copy(at(0), other, cudaMemcpyHostToDevice)));
  EXPECT_FALSE(alike(copy(at(0), pinned, cudaMemcpyHostToDevice), copy(at(0), pageable, cudaMemcpyHostToDevice)));
  EXPECT_FALSE(alike(copy(at(0), pinned, cudaMemcpyDefault), copy(at(0), at(100), cudaMemcpyDefault)));
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFreeHost(other));
}

// A capture gives sets of one dimension alone: these nodes are put into its graph by hand.
TEST_F(SignatureTest, SetsOfRowsMustAgreeInTheirShape) {
  const auto rows = [this](unsigned value, std::size_t width, std::size_t height, std::size_t pitch) {
    return [=, this](cudaStream_t s) {
      CaptureInfo info;
      CUDA_OK(capture_info(s, &info));
      cudaMemsetParams params = {};
      params.dst = at(0);
      params.value = value;
      params.elementSize = 4;
      params.width = width;
      params.height = height;
      params.pitch = pitch;
      cudaGraphNode_t node = nullptr;
      CUDA_OK(cudaGraphAddMemsetNode(&node, info.graph, nullptr, 0, &params));
    };
  };
  EXPECT_TRUE(alike(rows(1, 8, 2, 64), rows(2, 8, 2, 64)));
  EXPECT_FALSE(alike(rows(1, 8, 2, 64), rows(1, 4, 2, 64)));
  EXPECT_FALSE(alike(rows(1, 8, 2, 64), rows(1, 8, 3, 64)));
  EXPECT_FALSE(alike(rows(1, 8, 2, 64), rows(1, 8, 2, 128)));
  EXPECT_FALSE(alike(rows(1, 8, 2, 64), rows(1, 8, 1, 64)));
  EXPECT_TRUE(alike(rows(1, 8, 1, 64), rows(1, 4, 1, 64)));
}

TEST_F(SignatureTest, ClusterSizesMustAgree) {
  const auto clusters = [this](unsigned size) {
    return [=, this](cudaStream_t s) { CUDA_OK(launch_in_clusters(record_cluster_size, 8, 32, size, s, at(0))); };
  };
  EXPECT_TRUE(alike(clusters(2), clusters(2)));
  EXPECT_FALSE(alike(clusters(2), clusters(4)));
  EXPECT_FALSE(alike(clusters(0), clusters(2)));
}

TEST_F(SignatureTest, PrioritiesMustAgree) {
  cudaStream_t urgent = nullptr;
  int least = 0, greatest = 0;
  CUDA_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CUDA_OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
  Event fork, join;
  const auto on = [&](cudaStream_t side) {
    return [&, side](cudaStream_t s) {
      CUDA_OK(cudaEventRecord(fork, s));
      CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
      CUDA_OK(launch(blend, 1, 32, side, at(0), 32, 3, 4));
      CUDA_OK(cudaEventRecord(join, side));
      CUDA_OK(cudaStreamWaitEvent(s, join, 0));
    };
  };
  {
    Stream plain;
    EXPECT_TRUE(alike(on(urgent), on(urgent)));
    EXPECT_FALSE(alike(on(urgent), on(plain)));
  }
  CUDA_OK(cudaStreamDestroy(urgent));
}

// ---- What differs ---------------------------------------------------------------------------------------------------

TEST_F(SignatureTest, ChangesAreCountedByTheDearest) {
  constexpr int kNodes = 50;
  const Described base = kernels(kNodes);
  struct {
    Counts wanted;
    std::function<void(cudaStream_t, int)> launch_other;
  } const cases[] = {
      {{48, 2, 0, 0, 0}, [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 2, 32, s, at(0), 64, 4, i)); }},
      {{48, 2, 0, 0, 0}, [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 2, 32, s, at(1), 64, 3, i)); }},
      {{48, 0, 2, 0, 0}, [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 3, 32, s, at(0), 64, 3, i)); }},
      {{48, 0, 2, 0, 0}, [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, dim3(2, 2), 32, s, at(0), 64, 9, i)); }},
      {{48, 0, 2, 0, 0},
       [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, dim3(2, 1, 2), 32, s, at(0), 64, 3, i)); }},
      {{48, 0, 0, 2, 0}, [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 3, 64, s, at(0), 64, 3, i)); }},
      {{48, 0, 0, 2, 0}, [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 2, dim3(32, 2), s, at(0), 64, 3, i)); }},
      {{48, 0, 0, 2, 0},
       [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 2, dim3(32, 1, 2), s, at(0), 64, 3, i)); }},
      {{48, 0, 0, 2, 0},
       [this](cudaStream_t s, int i) { CUDA_OK(launch(blend_otherwise, 2, 32, s, at(0), 64, 3, i)); }},
      {{48, 0, 0, 2, 0}, [this](cudaStream_t s, int) { CUDA_OK(launch(record_launch, 2, 32, s, at(0))); }},
      {{48, 0, 0, 2, 0},
       [this](cudaStream_t s, int i) {
         int *p = at(0), n = 64, a = 3;
         void* arguments[] = {&p, &n, &a, &i};
         CUDA_OK(cudaLaunchKernel(reinterpret_cast<const void*>(blend), 2, 32, arguments, 512, s));
       }},
      {{50, 0, 0, 0, 0}, [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 2, 32, s, at(0), 64, 3, i)); }},
  };
  int number = 0;
  for (const auto& one : cases) {
    SCOPED_TRACE(number++);
    const Described other = kernels(kNodes, 2, one.launch_other);
    ASSERT_EQ(base.signature, other.signature);
    for (const bool back : {false, true}) {
      const Difference found = back ? difference(other.content, base.content) : difference(base.content, other.content);
      EXPECT_EQ(found.counts, one.wanted);
      EXPECT_FALSE(found.by_update);
      ASSERT_EQ(found.nodes.size(), 50 - one.wanted[0]);
      for (std::size_t i = 0; i < found.nodes.size(); ++i) {
        EXPECT_EQ(found.nodes[i].index, i);
        EXPECT_EQ(one.wanted[static_cast<std::size_t>(found.nodes[i].change)], 2u);
      }
    }
  }
}

TEST_F(SignatureTest, OtherNodesThatDifferAreLeftToUpdates) {
  int numbers[2];
  const auto with = [&](int value, int index, int call) {
    return described([&, value, index, call](cudaStream_t s) {
      for (int i = 0; i < 100; ++i) CUDA_OK(launch(blend, 2, 32, s, at(0), 64, 3, i));
      CUDA_OK(cudaMemsetAsync(at(0), value, 64, s));
      CUDA_OK(cudaMemcpyAsync(at(index), at(100), 64, cudaMemcpyDeviceToDevice, s));
      CUDA_OK(cudaLaunchHostFunc(s, add_one, &numbers[call]));
    });
  };
  const Described base = with(1, 0, 0);
  const std::pair<Described, std::uint32_t> others[] = {
      {with(2, 0, 0), 1}, {with(1, 5, 0), 1}, {with(1, 0, 1), 1}, {with(3, 6, 1), 3}, {with(1, 0, 0), 0}};
  for (const auto& [other, count] : others) {
    ASSERT_EQ(base.signature, other.signature);
    const Difference found = difference(base.content, other.content);
    EXPECT_EQ(found.counts, (Counts{103 - count, 0, 0, 0, count}));
    EXPECT_EQ(found.by_update, count != 0);
    EXPECT_TRUE(found.nodes.empty());
    EXPECT_EQ(
        found.cost - costs::kTakeOver,
        count == 0 ? 0 : 103 * costs::kUpdateReads + count * costs::kUpdate[static_cast<std::size_t>(Change::kOther)]);
  }
}

// The smallest number of nodes of which an update is cheaper than patches.
TEST_F(SignatureTest, TheCheaperWayIsTaken) {
  const std::function<void(cudaStream_t, int)> others[] = {
      [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 2, 32, s, at(0), 64, 4, i)); },
      [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 3, 32, s, at(0), 64, 3, i)); },
      [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 2, 64, s, at(0), 64, 3, i)); }};
  for (const int nodes : {1, 2, 5, 40, 99}) {
    const Described base = kernels(nodes);
    for (std::size_t kind = 1; kind <= 3; ++kind) {
      int by_patches = 0, by_update = 0;
      for (int changed = 0; changed <= nodes; ++changed) {
        const Described other = kernels(nodes, changed, others[kind - 1]);
        const Difference found = difference(base.content, other.content);
        const auto n = static_cast<Cost>(nodes), d = static_cast<Cost>(changed);
        const Cost patches = d * costs::kPatch[kind];
        const Cost update = n * costs::kUpdateReads + d * costs::kUpdate[kind];
        EXPECT_EQ(found.counts[kind], d);
        EXPECT_EQ(found.by_update, update < patches) << changed << " of " << nodes;
        EXPECT_EQ(found.cost, costs::kTakeOver + std::min(update, patches)) << changed << " of " << nodes;
        EXPECT_EQ(found.nodes.size(), found.by_update ? 0 : d);
        ++(found.by_update ? by_update : by_patches);
      }
      EXPECT_GT(by_patches, 0);
      EXPECT_GT(by_update, 0);
    }
  }
}

// Graphs that are no siblings, as if their signatures had missed what tells them apart. The executable stays what it
// was.
TEST_F(SignatureTest, RefusedUpdatesTellTheirReason) {
  using Enqueue = std::function<void(cudaStream_t)>;
  const Enqueue kernel = [this](cudaStream_t s) { CUDA_OK(launch(blend, 1, 1, s, at(0), 1, 0, 7)); };
  const Enqueue two = [&](cudaStream_t s) { kernel(s), kernel(s); };
  const Enqueue set = [this](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 1, 4, s)); };
  const Enqueue copy = [this](cudaStream_t s) {
    CUDA_OK(cudaMemcpyAsync(at(0), at(1), 4, cudaMemcpyDeviceToDevice, s));
  };
  const Enqueue copy_of_any = [this](cudaStream_t s) {
    CUDA_OK(cudaMemcpyAsync(at(0), at(1), 4, cudaMemcpyDefault, s));
  };
  const Enqueue cooperative = [this](cudaStream_t s) {
    cudaLaunchAttribute attribute;
    std::memset(static_cast<void*>(&attribute), 0, sizeof attribute);
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    config.stream = s;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int* out = at(0);
    int n = 1, a = 0, b = 7;
    void* arguments[] = {&out, &n, &a, &b};
    CUDA_OK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(blend), arguments));
  };
  const struct {
    Enqueue from, to;
    UpdateRefusal why;
    cudaError_t injected = cudaSuccess;
  } cases[] = {{kernel, two, UpdateRefusal::kTopology},
               {kernel, set, UpdateRefusal::kNodeType},
               {copy, copy_of_any, UpdateRefusal::kParameters},
               {kernel, cooperative, UpdateRefusal::kAttributes},
               {kernel, kernel, UpdateRefusal::kNotSupported, cudaErrorGraphExecUpdateFailure},
               {kernel, kernel, UpdateRefusal::kOther, cudaErrorNotSupported}};
  for (const auto& one : cases) {
    Described from = described(one.from);
    const Described to = described(one.to);
    Scratch scratch(0);
    std::unique_ptr<Executable> executable;
    CUDA_OK(Executable::instantiate(from.graph, std::make_shared<Content>(from.content), 0, scratch, &executable));
    Difference by_update;
    by_update.by_update = true;
    if (one.injected != cudaSuccess) hostrt::fail_call("cudaGraphExecUpdate", 1, one.injected);
    const BroughtOver brought = executable->bring_over(
        executable->base(), to.graph, std::make_shared<Content>(to.content), by_update, detail::Call());
    EXPECT_NE(brought.result.error, cudaSuccess) << to_string(one.why);
    EXPECT_EQ(brought.refusal, one.why);
    EXPECT_TRUE(brought.whole) << to_string(one.why);
    EXPECT_EQ(brought.updates, 0) << to_string(one.why);
    cudaGetLastError();

    memory->write({0, 5});
    CUDA_OK(executable->launch(*stream));
    EXPECT_EQ(memory->first(), one.why == UpdateRefusal::kParameters ? 5 : 7) << to_string(one.why);
  }
}

// Their values follow each run, so that they differ at least in these.
TEST_F(SignatureTest, SlotNodesCountAsOtherValues) {
  const auto graph = [this](int value, int grid) {
    return described([&, value, grid](cudaStream_t s) {
      for (int i = 0; i < 100; ++i) {
        CUDA_OK(launch(blend, i == 0 ? grid : 2, 32, s, at(0), 64, i == 0 ? value : 3, i));
      }
      CUDA_OK(cudaMemsetAsync(at(0), value, 64, s));
    });
  };
  constexpr Cost kValue = costs::kPatch[static_cast<std::size_t>(Change::kArguments)];
  Described from = graph(1, 2), to = graph(1, 2), elsewhere = graph(2, 7);
  EXPECT_EQ(difference(from.content, to.content).cost, costs::kTakeOver);

  to.hold_slots({0, 5});  // Set to the run's values, whatever they were.
  Difference found = difference(from.content, to.content);
  EXPECT_FALSE(found.by_update);
  EXPECT_TRUE(found.nodes.empty());
  EXPECT_EQ(found.cost, costs::kTakeOver + 2 * kValue);

  from.hold_slots({0, 7});  // 7 gets back what was captured.
  found = difference(from.content, to.content);
  ASSERT_EQ(found.nodes.size(), 1u);
  EXPECT_EQ(found.nodes[0].index, 7u);
  EXPECT_EQ(found.nodes[0].change, Change::kArguments);
  EXPECT_EQ(found.cost, costs::kTakeOver + 3 * kValue);

  elsewhere.hold_slots({0, 100});
  found = difference(from.content, elsewhere.content);  // A set that holds slots is set by its fields.
  EXPECT_FALSE(found.by_update);
  EXPECT_EQ(found.counts[static_cast<std::size_t>(Change::kOther)], 0u);
  EXPECT_EQ(found.counts[static_cast<std::size_t>(Change::kGrid)], 1u);

  found = difference(elsewhere.content, from.content);  // And one that held them is left to an update.
  EXPECT_TRUE(found.by_update);
  EXPECT_EQ(found.counts[static_cast<std::size_t>(Change::kOther)], 1u);
}

TEST_F(SignatureTest, DifferencesOfAContentAreFoundOnce) {
  Described a = kernels(3),
            b = kernels(3, 1, [this](cudaStream_t s, int i) { CUDA_OK(launch(blend, 2, 32, s, at(0), 64, 4, i)); });
  a.content.id = 1;
  b.content.id = 2;
  Differences differences;
  const Difference& found = differences.between(b.content, a.content);
  EXPECT_EQ(found.counts[1], 1u);
  EXPECT_EQ(&differences.between(b.content, a.content), &found);
  EXPECT_EQ(differences.between(a.content, a.content).counts[1], 0u);
  for (std::uint64_t id = 3; id < 1000; ++id) {
    b.content.id = id;
    EXPECT_EQ(differences.between(b.content, a.content).counts[1], 1u);
  }
}

// ---- Arguments ------------------------------------------------------------------------------------------------------

TEST_F(SignatureTest, ArgumentsAreKeptEachAtItsPlace) {
  const Described two = described([this](cudaStream_t s) {
    CUDA_OK(launch(many, 1, 1, s, reinterpret_cast<double*>(at(0)), 'a', 2.5, 3, 4.5f, 5, 6, 7, 8.5f, 9, 10.5));
    CUDA_OK(launch(blend, 1, 1, s, at(0), 64, 3, 4));
    CUDA_OK(launch(many, 1, 1, s, reinterpret_cast<double*>(at(0)), 'b', -2.5, -3, -4.5f, -5, 60, -7, -8.5f, 90, 1.5));
  });
  const NodeContent& first = two.content.nodes[0];
  const NodeContent& last = two.content.nodes[2];
  ASSERT_TRUE(first.readable);
  ASSERT_EQ(first.argument_count, 11u);
  EXPECT_EQ(last.first_argument, first.first_argument);  // One layout for each kernel.
  EXPECT_NE(last.bytes, first.bytes);
  const auto argument = [&](const NodeContent& node, std::uint32_t number, auto value) {
    const std::uint32_t offset = two.content.arguments[node.first_argument + number];
    EXPECT_LE(offset + sizeof value, node.size);
    std::memcpy(&value, two.content.bytes.data() + node.bytes + offset, sizeof value);
    return value;
  };
  EXPECT_EQ(argument(first, 0, static_cast<double*>(nullptr)), reinterpret_cast<double*>(at(0)));
  EXPECT_EQ(argument(first, 1, char{}), 'a');
  EXPECT_EQ(argument(first, 2, double{}), 2.5);
  EXPECT_EQ(argument(first, 3, short{}), 3);
  EXPECT_EQ(argument(first, 10, double{}), 10.5);
  EXPECT_EQ(argument(last, 1, char{}), 'b');
  EXPECT_EQ(argument(last, 5, 0LL), -5);
  EXPECT_EQ(argument(last, 9, static_cast<unsigned short>(0)), 90);
  EXPECT_EQ(argument(last, 10, double{}), 1.5);
  EXPECT_EQ(two.content.nodes[1].argument_count, 4u);
}

// What lies between arguments is not compared; what lies inside of one is, and costs a patch at most.
TEST_F(SignatureTest, PaddingBetweenArgumentsIsNoDifference) {
  const auto with = [this](unsigned char rubbish, short c) {
    return described([&, rubbish, c](cudaStream_t s) {
      struct {
        alignas(16) unsigned char bytes[16];
      } slots[11];
      std::memset(slots, rubbish, sizeof slots);
      double* out = reinterpret_cast<double*>(at(0));
      std::memcpy(&slots[0], &out, sizeof out);
      slots[1].bytes[0] = 'a';
      for (int i = 2; i < 11; ++i) std::memset(&slots[i], 0, 8);
      std::memcpy(&slots[3], &c, sizeof c);
      void* arguments[11];
      for (int i = 0; i < 11; ++i) arguments[i] = &slots[i];
      CUDA_OK(cudaLaunchKernel(reinterpret_cast<const void*>(many), 1, 1, arguments, 0, s));
    });
  };
  const Described a = with(0x00, 3), b = with(0xff, 3), c = with(0x00, 4);
  EXPECT_EQ(difference(a.content, b.content).counts, (Counts{1, 0, 0, 0, 0}));
  EXPECT_EQ(difference(a.content, c.content).counts, (Counts{0, 1, 0, 0, 0}));
}

TEST_F(SignatureTest, BytesInsideAnArgumentAreCompared) {
  DeviceBuffer<Mixed> out(1);
  const auto with = [&](int rubbish, char letter) {
    return described([&, rubbish, letter](cudaStream_t s) {
      Mixed value;
      std::memset(&value, rubbish, sizeof value);
      value.letter = letter;
      value.real = 1;
      value.small = 2;
      for (int& number : value.numbers) number = 3;
      value.last = 4;
      Mixed* p = out.get();
      void* arguments[] = {&p, &value};
      CUDA_OK(cudaLaunchKernel(reinterpret_cast<const void*>(copy_struct), 1, 1, arguments, 0, s));
    });
  };
  const Described a = with(0, 'a'), again = with(0, 'a'), rubbish = with(0xff, 'a'), other = with(0, 'b');
  EXPECT_EQ(difference(a.content, again.content).counts, (Counts{1, 0, 0, 0, 0}));
  EXPECT_EQ(difference(a.content, rubbish.content).counts, (Counts{0, 1, 0, 0, 0}));
  EXPECT_EQ(difference(a.content, other.content).counts, (Counts{0, 1, 0, 0, 0}));
}

TEST_F(SignatureTest, KernelsWithoutParametersAndEmptyGraphs) {
  const auto behind = [this](int grid) {
    return described([&, grid](cudaStream_t s) {
      for (int i = 0; i < 30; ++i) CUDA_OK(launch(blend, 2, 32, s, at(0), 64, 3, i));
      for (int i = 0; i < 3; ++i) CUDA_OK(launch(do_nothing, grid, 1, s));
    });
  };
  const Described a = behind(1), b = behind(2);
  ASSERT_TRUE(a.signature.has_value());
  EXPECT_EQ(a.signature, b.signature);
  EXPECT_TRUE(a.content.nodes[30].readable);
  EXPECT_EQ(a.content.nodes[30].size, 0u);
  EXPECT_EQ(a.content.nodes[30].argument_count, 0u);
  EXPECT_EQ(difference(a.content, a.content).counts, (Counts{33, 0, 0, 0, 0}));
  EXPECT_EQ(difference(a.content, b.content).counts, (Counts{30, 0, 3, 0, 0}));

  const Described empty = kernels(0);
  ASSERT_TRUE(empty.signature.has_value());
  const Difference found = difference(empty.content, empty.content);
  EXPECT_EQ(found.cost, costs::kTakeOver);
  EXPECT_FALSE(found.by_update);
}

TEST_F(SignatureTest, KeysOfEmptyGraphsAndKernelsWithoutParametersTakeTurns) {
  for (const int nodes : {0, 1, 20}) {
    Options options;
    options.max_executables = 1;
    Cache cache(options);
    const auto run = [&](int which) {
      return cache.run(key("k", which), *stream, [&, which](Recorder& rec) {
        for (int i = 0; i < nodes; ++i) rec.launch(do_nothing, {i == 0 ? 1u + static_cast<unsigned>(which) : 1u, 1});
      });
    };
    EXPECT_RUN(kInstantiated, run(0));
    EXPECT_RUN(kUpdated, run(1));
    EXPECT_RUN(kSwitched, run(0));
    EXPECT_RUN(kReplayed, run(0));
  }
}

// ---- What cannot be read --------------------------------------------------------------------------------------------

struct Getter {
  const char* name;
  int calls;         // For the graph below,
  int calls_before;  // and by the capture.
  bool required;     // Whether there is no family without it; else nodes that it was to tell of are left to updates.
};

class GetterTest : public SignatureTest, public testing::WithParamInterface<Getter> {
 protected:
  void enqueue(Recorder& rec, int which, Slot<int> v) {
    rec.launch(blend, {2, 32}, at(0), 64, v, which);
    CUDA_OK(cudaMemsetAsync(at(100), which, 64, rec.stream()));
    CUDA_OK(cudaMemcpyAsync(at(200), at(0), 64, cudaMemcpyDeviceToDevice, rec.stream()));
    CUDA_OK(cudaLaunchHostFunc(rec.stream(), which == 0 ? add_one : add_two, &number));
    rec.launch(blend, {2, static_cast<unsigned>(32 + which)}, at(10), 64, 5, which);
  }
  absl::StatusOr<Outcome> run(Cache& cache, int which, int value) {
    const std::vector<int> seed(1024, 7);
    memory->write(seed);
    number = 0;
    Options direct;
    direct.max_executables = 0;
    const auto fn = [&, which](Recorder& rec, Slot<int> v) { enqueue(rec, which, v); };
    EXPECT_RUN(kEager, Cache(direct).run(key("d"), *stream, params(value), fn));
    const std::vector<int> wanted = memory->read();
    memory->write(seed);
    const auto outcome = cache.run(key("k", which), *stream, params(value), fn);
    EXPECT_TRUE(memory->read() == wanted) << which;
    EXPECT_EQ(number, 2 * (1 + which));
    return outcome;
  }

  int number = 0;
};

INSTANTIATE_TEST_SUITE_P(
    Functions, GetterTest,
    testing::Values(Getter{"cudaGraphNodeGetType", 5, 1, true}, Getter{"cudaGraphNodeGetDependencies", 5, 0, true},
                    Getter{"cudaGraphKernelNodeGetAttribute", 18, 0, true},
                    Getter{"cudaPointerGetAttributes", 3, 0, true}, Getter{"cudaGraphMemcpyNodeGetParams", 1, 0, true},
                    Getter{"cudaGraphMemsetNodeGetParams", 1, 0, true},
                    Getter{"cudaGraphHostNodeGetParams", 1, 0, true},
                    Getter{"cudaGraphKernelNodeGetParams", 2, 0, false}, Getter{"cudaFuncGetParamInfo", 5, 0, false}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(GetterTest, FailureMakesNoSiblingsAndRightRuns) {
  const Getter& getter = GetParam();
  for (int nth = 1; nth <= getter.calls; ++nth) {
    SCOPED_TRACE(nth);
    Options options;
    options.max_executables = 1;
    Cache cache(options);
    EXPECT_RUN(kInstantiated, run(cache, 0, 3));
    hostrt::fail_call(getter.name, getter.calls_before + nth, cudaErrorUnknown);
    const auto outcome = run(cache, 1, 4);
    EXPECT_EQ(hostrt::failures_injected(), static_cast<unsigned>(nth));
    hostrt::clear_failures();
    EXPECT_TRUE(did(getter.required ? Outcome::kInstantiated : Outcome::kUpdated, outcome));
    for (const EntryInfo& entry : cache.entries()) {
      EXPECT_EQ(entry.family == 0, entry.last_use_order == 0 && getter.required);
    }
    CUDA_OK(cudaPeekAtLastError());
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(did(getter.required ? Outcome::kRestored : Outcome::kSwitched, run(cache, 0, 5 + i)));
      EXPECT_TRUE(did(getter.required ? Outcome::kRestored : Outcome::kSwitched, run(cache, 1, 6 + i)));
    }
    EXPECT_EQ(cache.stats().captures, 2u);
  }
}

TEST_P(GetterTest, FailureForEverMakesRightRuns) {
  const Getter& getter = GetParam();
  Options options;
  options.max_executables = 1;
  Cache cache(options);
  hostrt::fail_call(getter.name, 1, cudaErrorUnknown, -1);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(run(cache, 0, 3 + i).ok());
    EXPECT_TRUE(run(cache, 1, 3 + i).ok());
  }
  hostrt::clear_failures();
  if (getter.calls_before != 0) return;  // Nothing is captured without it.
  const Stats stats = cache.stats();
  EXPECT_EQ(stats.captures, 2u);
  EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);
  EXPECT_EQ(stats.families, getter.required ? 0u : 1u);
  EXPECT_EQ(stats.updates, getter.required ? 0u : 7u);
}

// Kernels whose arguments cannot be read are not taken for equal.
TEST_F(SignatureTest, UnreadableKernelsAreLeftToUpdates) {
  for (const char* const getter : {"cudaGraphKernelNodeGetParams", "cudaFuncGetParamInfo"}) {
    SCOPED_TRACE(getter);
    hostrt::fail_call(getter, 1, cudaErrorUnknown, -1);
    Options options;
    options.max_executables = 1;
    Cache cache(options);
    const auto run = [&](int which) {
      memory->write(std::vector<int>(1024, 0));
      const auto outcome = cache.run(key("k", which), *stream, [&, which](Recorder& rec) {
        for (int i = 0; i < 40; ++i) rec.launch(blend, {2, 32}, at(0), 64, 1, i == 20 ? which : 0);
      });
      const std::vector<int> all = memory->read();
      for (int i = 0; i < 64; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], 40 * i + which);
      return outcome;
    };
    EXPECT_RUN(kInstantiated, run(1));
    EXPECT_RUN(kUpdated, run(2));
    EXPECT_RUN(kSwitched, run(1));
    EXPECT_RUN(kSwitched, run(2));
    EXPECT_EQ(cache.stats().updates, 3u);
    EXPECT_EQ(cache.stats().patched_nodes, 0u);
    hostrt::clear_failures();
  }
}

}  // namespace
}  // namespace graphcache::test
