// What two captured graphs must share, and what changes an executable from one to the other (lib/graph/describe.h).
// On hostrt.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "graph_support.h"
#include "signature_support.h"

namespace graphcache::test {
namespace {

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

TEST_F(SignatureTest, SetsCopiesAndHostFunctionsMayDifferInTheirParameters) {
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
  const Event one, two;
  const auto record = [](cudaEvent_t event, unsigned flags) {
    return [=](cudaStream_t s) { CUDA_OK(cudaEventRecordWithFlags(event, s, flags)); };
  };
  EXPECT_TRUE(alike(record(one, cudaEventRecordExternal), record(two, cudaEventRecordExternal)));
  EXPECT_FALSE(alike(record(one, cudaEventRecordExternal), [&](cudaStream_t s) {
    CUDA_OK(cudaStreamWaitEvent(s, one, cudaEventWaitExternal));
  }));
}

TEST_F(SignatureTest, TypesCountsAndOrderOfNodesMustAgree) {
  const auto kernel = [this](cudaStream_t s) { step(s); };
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
  const auto in_line = [&](cudaStream_t s) { step(s), step(s), step(s), step(s); };
  // With the side's node first, the edges are the same, with those of the last node in the other order.
  const auto forked = [&](bool side_first) {
    return [&, side_first](cudaStream_t s) {
      step(s);
      let_follow(side, s);
      step(side_first ? side : s);
      step(side_first ? s : side);
      let_follow(s, side);
      step(s);
    };
  };
  EXPECT_TRUE(alike(forked(false), forked(false)));
  EXPECT_FALSE(alike(in_line, forked(false)));
  EXPECT_FALSE(alike(forked(false), forked(true)));
}

// Built by hand: all nodes are empty, except one that may be a host function.
TEST_F(SignatureTest, EveryDependencyAndTypeCounts) {
  int number = 0;
  const auto built = [&](std::size_t count, std::size_t left_out, bool host) {
    const cudaGraph_t graph = new_graph();
    std::vector<cudaGraphNode_t> nodes(count);
    for (cudaGraphNode_t& node : nodes) CUDA_OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
    nodes.erase(nodes.begin() + static_cast<std::ptrdiff_t>(left_out));
    cudaGraphNode_t last = nullptr;
    cudaHostNodeParams params = {};
    params.fn = add_one;
    params.userData = &number;
    CUDA_OK(host ? cudaGraphAddHostNode(&last, graph, nodes.data(), nodes.size(), &params)
                 : cudaGraphAddEmptyNode(&last, graph, nodes.data(), nodes.size()));
    const std::optional<Signature> signature = description_of(graph).signature;
    EXPECT_TRUE(signature.has_value());
    return signature;
  };
  for (const std::size_t count : {2u, 8u, 9u, 10u, 16u, 17u, 18u, 20u, 40u}) {
    SCOPED_TRACE(count);
    const auto base = built(count, count - 1, false);
    EXPECT_EQ(base, built(count, count - 1, false));
    EXPECT_NE(base, built(count, count - 2, false));
    EXPECT_NE(base, built(count, count - 1, true));
  }
}

TEST_F(SignatureTest, KindsOfCopiesAndMemoryMustAgree) {
  const PinnedBuffer<char> pinned(64), other(64);
  char pageable[64];
  const auto copy = [](void* to, const void* from, cudaMemcpyKind kind) {
    return [=](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(to, from, 64, kind, s)); };
  };
  const auto inside = copy(at(0), at(100), cudaMemcpyDeviceToDevice);
  EXPECT_FALSE(alike(inside, copy(at(0), at(100), cudaMemcpyDefault)));
  EXPECT_FALSE(alike(inside, copy(at(0), pinned.get(), cudaMemcpyHostToDevice)));
  EXPECT_FALSE(
      alike(copy(at(0), pinned.get(), cudaMemcpyHostToDevice), copy(pinned.get(), at(0), cudaMemcpyDeviceToHost)));
  EXPECT_TRUE(
      alike(copy(at(0), pinned.get(), cudaMemcpyHostToDevice), copy(at(0), other.get(), cudaMemcpyHostToDevice)));
  EXPECT_FALSE(alike(copy(at(0), pinned.get(), cudaMemcpyHostToDevice), copy(at(0), pageable, cudaMemcpyHostToDevice)));
  EXPECT_FALSE(alike(copy(at(0), pinned.get(), cudaMemcpyDefault), copy(at(0), at(100), cudaMemcpyDefault)));
}

// A capture produces only one-dimensional sets, so these nodes are added to its graph by hand.
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

// Attributes are read one by one. For a node with clusters the preferred size is the eighth; those that an older driver
// may not know (13, 14) are the last. Only for these is the answer "unknown" accepted. No node reports the preferred
// size; the device determines whether there can be one.
TEST_F(SignatureTest, AnUnreadablePreferredClusterSizeMakesNoSiblingsWhereTheDeviceMinds) {
  const auto described_with_failing = [this](const char* call, int nth) {
    hostrt::fail_call(call, nth, cudaErrorInvalidValue);
    const Described result =
        described([this](cudaStream_t s) { CUDA_OK(launch_in_clusters(record_cluster_size, 8, 32, 2, s, at(0))); });
    hostrt::clear_failures();
    return result.signature.has_value();
  };
  EXPECT_TRUE(described_with_failing("cudaDeviceGetAttribute", 2));
  EXPECT_FALSE(described_with_failing("cudaDeviceGetAttribute", 1));
  EXPECT_FALSE(described_with_failing("cudaGraphKernelNodeGetAttribute", 7));
  EXPECT_TRUE(described_with_failing("cudaGraphKernelNodeGetAttribute", 8));
  EXPECT_TRUE(described_with_failing("cudaGraphKernelNodeGetAttribute", 9));
  EXPECT_TRUE(described_with_failing("cudaGraphKernelNodeGetAttribute", 10));
}

TEST_F(SignatureTest, PrioritiesMustAgree) {
  const StreamOf urgent(cudaStreamNonBlocking, Priorities().greatest);
  const Stream plain;
  const auto on = [&](cudaStream_t side) { return [&, side](cudaStream_t s) { step_on(side, s); }; };
  EXPECT_TRUE(alike(on(urgent), on(urgent)));
  EXPECT_FALSE(alike(on(urgent), on(plain)));
}

TEST_F(SignatureTest, DevicesMustAgree) {
  hostrt::set_device_count(2);
  OtherDevice<int> there(64);
  Stream side;
  const auto here = [&](cudaStream_t s) { step_on(side, s); };
  const auto elsewhere = [&](cudaStream_t s) { there.fork(s, [&](cudaStream_t on) { step(on); }); };
  EXPECT_TRUE(alike(here, here));
  EXPECT_TRUE(alike(elsewhere, elsewhere));
  EXPECT_FALSE(alike(here, elsewhere));
}

// ---- What cannot be read --------------------------------------------------------------------------------------------

// With a driver for CUDA 13.2, two more attributes of each kernel node are read.
constexpr int kAttributesOfTwo = CUDART_VERSION >= 13020 ? 20 : 16;

struct Getter {
  const char* name;
  int calls;         // number of calls for the graph below
  int calls_before;  // number of calls made by the capture
  // Whether there is no family without it. If false, the nodes in question are left to updates.
  bool required;
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
    const auto fn = [&, which](Recorder& rec, Slot<int> v) { enqueue(rec, which, v); };
    EXPECT_RUN(kEager, Cache({.max_executables = 0}).run(key("d"), *stream, params(value), fn));
    const std::vector<int> wanted = memory->read();
    memory->write(seed);
    const auto outcome = cache.run(key("k", which), *stream, params(value), fn);
    EXPECT_TRUE(memory->read() == wanted) << which;
    EXPECT_EQ(number, 2 * (1 + which));
    return outcome;
  }

  static inline int number = 0;  // A graph may use static data.
};

INSTANTIATE_TEST_SUITE_P(
    Functions, GetterTest,
    testing::Values(Getter{"cudaGraphNodeGetType", 3, 6, true}, Getter{"cudaGraphNodeGetDependencies", 5, 0, true},
                    Getter{"cudaGraphKernelNodeGetAttribute", kAttributesOfTwo, 0, true},
                    Getter{"cudaPointerGetAttributes", 3, 2, true}, Getter{"cudaGraphMemcpyNodeGetParams", 1, 1, true},
                    Getter{"cudaGraphMemsetNodeGetParams", 1, 0, true},
                    Getter{"cudaGraphHostNodeGetParams", 1, 1, true},
                    Getter{"cudaGraphKernelNodeGetParams", 5, 1, false}, Getter{"cudaFuncGetParamInfo", 5, 0, false}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(GetterTest, FailureMakesNoSiblingsAndRightRuns) {
  const Getter& getter = GetParam();
  // The second key's run reads the first one's graph, then its own.
  for (int nth = 1; nth <= 2 * getter.calls; ++nth) {
    SCOPED_TRACE(nth);
    const std::uint64_t of = nth <= getter.calls ? 1 : 0;
    Cache cache({.max_executables = 1});
    EXPECT_RUN(kInstantiated, run(cache, 0, 3));
    hostrt::fail_call(getter.name, getter.calls_before + nth, cudaErrorUnknown);
    const auto outcome = run(cache, 1, 4);
    EXPECT_EQ(hostrt::failures_injected(), static_cast<unsigned>(nth));
    hostrt::clear_failures();
    EXPECT_TRUE(did(getter.required ? Outcome::kInstantiated : Outcome::kUpdated, outcome));
    for (const EntryInfo& entry : cache.entries()) {
      EXPECT_EQ(entry.family == 0, entry.last_use_order == of && getter.required);
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
  Cache cache({.max_executables = 1});
  hostrt::fail_call(getter.name, 1, cudaErrorUnknown, -1);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(run(cache, 0, 3 + i).ok());
    EXPECT_TRUE(run(cache, 1, 3 + i).ok());
  }
  hostrt::clear_failures();
  const Stats stats = cache.stats();
  // Without it no graph is kept, because it may use memory that is gone, or because its slots could not be set.
  if (getter.calls_before > 0) {
    EXPECT_EQ(stats.captures, 0u);
    EXPECT_EQ(stats.outcome(Outcome::kEager), 8u);
    return;
  }
  EXPECT_EQ(stats.captures, 2u);
  EXPECT_EQ(stats.outcome(Outcome::kEager), 0u);
  EXPECT_EQ(stats.families, getter.required ? 0u : 1u);
  EXPECT_EQ(stats.updates, getter.required ? 0u : 7u);
}

// Kernels whose arguments cannot be read do not count as equal.
TEST_F(SignatureTest, UnreadableKernelsAreLeftToUpdates) {
  for (const char* const getter : {"cudaGraphKernelNodeGetParams", "cudaFuncGetParamInfo"}) {
    SCOPED_TRACE(getter);
    hostrt::fail_call(getter, 1, cudaErrorUnknown, -1);
    Cache cache({.max_executables = 1});
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
