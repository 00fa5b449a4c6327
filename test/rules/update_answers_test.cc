// The result of cudaGraphExecUpdate when a kernel node changes, and the effect on the executable: part of the table
// "What an update says and does" of docs/semantics.md. For GPUs only, because the driver answers. An update that is
// accepted and not applied is called a lie: a cache must not rely on it.
//
// Of the launch attributes of CUDA 13.0, cudaLaunchAttributeIgnore has no effect to test; all others are here.
#include "update_answers.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

namespace graphcache::test {
namespace {

class UpdateAnswersOfKernelsTest : public UpdateAnswersTest {
 protected:
  cudaGraph_t launched(const Change& change, int value = 1, void (*kernel)(LaunchReport*, int) = report_launch) {
    return captured([&] { launch(change, value, kernel); });
  }

  // A kernel node whose attributes are set after the capture.
  cudaGraph_t set_later(const Change& change) {
    cudaGraph_t graph = launched(nullptr);
    cudaGraphNode_t node = nullptr;
    std::size_t count = 1;
    CUDA_OK(cudaGraphGetNodes(graph, &node, &count));
    cudaLaunchConfig_t config = {};
    Attributes attributes;
    if (change) change(config, attributes);
    for (const cudaLaunchAttribute& attribute : attributes) {
      CUDA_OK(cudaGraphKernelNodeSetAttribute(node, attribute.id, &attribute.val)) << "attribute " << attribute.id;
    }
    return graph;
  }

  // A set, followed by a kernel launched with `change`.
  cudaGraph_t set_and_launched(int value, const Change& change) {
    return captured([&] {
      CUDA_OK(cudaMemsetAsync(memory.get(), value, 64, stream));
      launch(change);
    });
  }

  Answer of_launch(const Change& from, const Change& to, int LaunchReport::*seen = nullptr,
                   unsigned long long flags = 0) {
    return of_report(launched(from), launched(to), seen, flags);
  }
  Answer of_set_later(const Change& from, const Change& to, int LaunchReport::*seen = nullptr,
                      unsigned long long flags = 0) {
    return of_report(set_later(from), set_later(to), seen, flags);
  }

  // Compares kernel, grid, cluster size and value.
  Answer of_several(cudaGraph_t from, cudaGraph_t to) {
    return answer<std::vector<int>>(from, to, [this] {
      const LaunchReport seen = report.first();
      return std::vector{seen.kernel, seen.grid, seen.cluster, seen.value};
    });
  }

  struct Named {
    const char* name;
    Change change;
  };

  // Attributes without a visible effect.
  std::vector<Named> unseen_attributes() {
    void* const window = memory.get();
    return {
      {"access policy window",
       attribute(
           cudaLaunchAttributeAccessPolicyWindow,
           [=](auto& value) {
             value.accessPolicyWindow = {window, 4096, 0.5f, cudaAccessPropertyPersisting, cudaAccessPropertyStreaming};
           })},
          {"memory synchronization domain",
           attribute(cudaLaunchAttributeMemSyncDomain,
                     [](auto& value) { value.memSyncDomain = cudaLaunchMemSyncDomainRemote; })},
          {"its map", attribute(cudaLaunchAttributeMemSyncDomainMap,
                                [](auto& value) {
                                  value.memSyncDomainMap = {1, 1};
                                })},
          {"cluster scheduling policy",
           attribute(cudaLaunchAttributeClusterSchedulingPolicyPreference,
                     [](auto& value) { value.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread; })},
#if CUDART_VERSION >= 12050
          {"shared memory carveout", attribute(cudaLaunchAttributePreferredSharedMemoryCarveout,
                                               [](auto& value) { value.sharedMemCarveout = 100; })},
#endif
          {"priority", urgent},
    };
  }

  const Change cooperative = attribute(cudaLaunchAttributeCooperative, [](auto& value) { value.cooperative = 1; });
  const Change urgent = attribute(cudaLaunchAttributePriority, [](auto& value) { value.priority = -3; });
};

TEST_F(UpdateAnswersOfKernelsTest, LaunchShapeFunctionAndValueAreApplied) {
  const Change block = [](auto& config, auto&) { config.blockDim = dim3(64); };
  const Change shared_bytes = [](auto& config, auto&) { config.dynamicSmemBytes = 4096; };
  EXPECT_EQ(of_launch(nullptr, grid(3), &LaunchReport::grid), Answer::kApplied);
  EXPECT_EQ(of_launch(nullptr, block, &LaunchReport::block), Answer::kApplied);
  EXPECT_EQ(of_launch(nullptr, shared_bytes, &LaunchReport::shared_bytes), Answer::kApplied);
  EXPECT_EQ(of_report(launched(nullptr), launched(nullptr, 1, report_launch_otherwise), &LaunchReport::kernel),
            Answer::kApplied);
  EXPECT_EQ(of_report(launched(nullptr), launched(nullptr, 2), &LaunchReport::value), Answer::kApplied);
}

TEST_F(UpdateAnswersOfKernelsTest, FunctionWithOtherArgumentsIsApplied) {
  const auto launched_as = [this](int kernel) {
    return captured([&] {
      LaunchReport* const out = report.get();
      Large large;
      std::iota(large.numbers, large.numbers + 1000, 0);
      switch (kernel) {
        case 1:
          return launch();
        case 3:
          CUDA_OK(test::launch(report_narrow, dim3(8), dim3(32), stream, out));
          return;
        case 4:
          CUDA_OK(
              test::launch(report_wide, dim3(8), dim3(32), stream, 'a', out, 2.0, Mixed{'b', 3.0, 4, {5, 6, 7}, 8}, 9));
          return;
        case 5:
          CUDA_OK(test::launch(report_large, dim3(8), dim3(32), stream, large, out));
          return;
      }
    });
  };
  for (const int from : {1, 3, 4, 5}) {
    for (const int to : {1, 3, 4, 5}) {
      if (from == to) continue;
      EXPECT_EQ(of_several(launched_as(from), launched_as(to)), Answer::kApplied) << from << " to " << to;
    }
  }
}

TEST_F(UpdateAnswersOfKernelsTest, FunctionOfAnotherLibraryIsApplied) {
#if CUDART_VERSION >= 12080
  // Fills kernel, the first number of the report, and value, the seventh.
  const char* const code = R"(
      .version 7.0
      .target sm_75
      .address_size 64
      .visible .entry report_loaded(.param .u64 report, .param .u32 value) {
        .reg .b64 %rd<3>;
        .reg .b32 %r<3>;
        ld.param.u64 %rd1, [report];
        ld.param.u32 %r1, [value];
        cvta.to.global.u64 %rd2, %rd1;
        mov.u32 %r2, 6;
        st.global.u32 [%rd2], %r2;
        st.global.u32 [%rd2+24], %r1;
        ret;
      })";
  static_assert(offsetof(LaunchReport, value) == 24);
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  CUDA_OK(cudaLibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUDA_OK(cudaLibraryGetKernel(&kernel, library, "report_loaded"));
  const auto loaded = [&] { return launched(nullptr, 2, reinterpret_cast<void (*)(LaunchReport*, int)>(kernel)); };
  EXPECT_EQ(of_several(launched(nullptr), loaded()), Answer::kApplied);
  EXPECT_EQ(of_several(loaded(), launched(nullptr)), Answer::kApplied);
  CUDA_OK(cudaLibraryUnload(library));
#else
  GTEST_SKIP() << "the runtime loads libraries from CUDA 12.8 on";
#endif
}

TEST_F(UpdateAnswersOfKernelsTest, ClusterSizeIsALie) {
  if (!has_clusters()) GTEST_SKIP() << "clusters need compute capability 9.0";
  EXPECT_EQ(of_launch(nullptr, cluster(2), &LaunchReport::cluster), Answer::kLie);
  EXPECT_EQ(of_launch(cluster(2), cluster(4), &LaunchReport::cluster), Answer::kLie);
  EXPECT_EQ(of_launch(cluster(4), nullptr, &LaunchReport::cluster), Answer::kLie);
}

// With another kernel, the cluster size changes as well.
TEST_F(UpdateAnswersOfKernelsTest, ChangesTogetherWithTheClusterSizeAreApplied) {
  if (!has_clusters()) GTEST_SKIP() << "clusters need compute capability 9.0";
  EXPECT_EQ(of_several(launched(nullptr), launched(cluster(2), 2)), Answer::kMixed);
  EXPECT_EQ(report.first().cluster, 1);
  EXPECT_EQ(report.first().value, 2);
  EXPECT_EQ(of_several(launched(cluster(4)), launched(both(cluster(2), grid(16)))), Answer::kMixed);
  EXPECT_EQ(report.first().cluster, 4);
  EXPECT_EQ(report.first().grid, 16);
  EXPECT_EQ(of_several(launched(nullptr), launched(cluster(2), 1, report_launch_otherwise)), Answer::kApplied);
}

// A GPU that never groups blocks in this way cannot show it, and what cannot be seen must count as a lie.
TEST_F(UpdateAnswersOfKernelsTest, PreferredClusterSizeIsALie) {
#if CUDART_VERSION >= 12080
  if (!has_clusters()) GTEST_SKIP() << "clusters need compute capability 9.0";
  const Change plain = both(grid(4096), cluster(2));
  const auto preferring = [&](unsigned size) {
    return both(plain, attribute(cudaLaunchAttributePreferredClusterDimension, [size](auto& value) {
                  value.preferredClusterDim = {size, 1, 1};
                }));
  };
  const auto largest = [this](const Change& change) { return launched(change, 0, report_largest_cluster); };
  launch(preferring(8), 0, report_largest_cluster);
  CUDA_OK(cudaStreamSynchronize(stream));
  const bool shown = report.first().cluster > 2;
  const auto seen = shown ? &LaunchReport::cluster : nullptr;
  const Answer wanted = shown ? Answer::kLie : Answer::kAccepted;
  EXPECT_EQ(of_report(largest(plain), largest(preferring(8)), seen), wanted);
  EXPECT_EQ(of_report(largest(preferring(4)), largest(preferring(8)), seen), wanted);
  EXPECT_EQ(of_report(largest(preferring(8)), largest(plain), seen), wanted);
#else
  GTEST_SKIP() << "preferred cluster sizes came with CUDA 12.8";
#endif
}

TEST_F(UpdateAnswersOfKernelsTest, CooperativeIsRefused) {
  EXPECT_EQ(of_launch(nullptr, cooperative, &LaunchReport::cooperative), Answer::kRefusedAttributes);
  EXPECT_EQ(of_launch(cooperative, nullptr, &LaunchReport::cooperative), Answer::kRefusedAttributes);
}

TEST_F(UpdateAnswersOfKernelsTest, PriorityIsRefusedWhereItCounts) {
  EXPECT_EQ(of_launch(nullptr, urgent), Answer::kAccepted);
  EXPECT_EQ(of_launch(nullptr, urgent, nullptr, cudaGraphInstantiateFlagUseNodePriority), Answer::kRefusedAttributes);
}

// A cache must treat these as lies, because the effect cannot be seen.
TEST_F(UpdateAnswersOfKernelsTest, AttributesWithoutVisibleEffectAreAccepted) {
  for (const auto& [name, change] : unseen_attributes()) {
    EXPECT_EQ(of_launch(nullptr, change), Answer::kAccepted) << name;
    EXPECT_EQ(of_launch(change, nullptr), Answer::kAccepted) << name << ", away";
  }
}

TEST_F(UpdateAnswersOfKernelsTest, NvlinkSchedulingIsRefused) {
#if CUDART_VERSION >= 13000
  const Change centric = attribute(cudaLaunchAttributeNvlinkUtilCentricScheduling,
                                   [](auto& value) { value.nvlinkUtilCentricScheduling = 1; });
  EXPECT_EQ(of_launch(nullptr, centric), Answer::kRefusedAttributes);
  EXPECT_EQ(of_launch(centric, nullptr), Answer::kRefusedAttributes);
  EXPECT_EQ(of_set_later(nullptr, centric), Answer::kRefusedAttributes);
#else
  GTEST_SKIP() << "the attribute came with CUDA 13.0";
#endif
}

// This attribute applies only to streams.
TEST_F(UpdateAnswersOfKernelsTest, SynchronizationPolicyOfTheStreamDoesNotMatter) {
  const auto captured_under = [this](cudaSynchronizationPolicy policy) {
    cudaLaunchAttributeValue value;
    std::memset(&value, 0, sizeof value);
    value.syncPolicy = policy;
    CUDA_OK(cudaStreamSetAttribute(stream, cudaLaunchAttributeSynchronizationPolicy, &value));
    return launched(nullptr);
  };
  cudaGraph_t from = captured_under(cudaSyncPolicySpin), to = captured_under(cudaSyncPolicyBlockingSync);
  EXPECT_EQ(of_report(from, to, nullptr), Answer::kAccepted);
}

TEST_F(UpdateAnswersOfKernelsTest, AttributesSetAfterTheCaptureAnswerAlike) {
  if (!has_clusters()) GTEST_SKIP() << "clusters need compute capability 9.0";
  EXPECT_EQ(of_set_later(nullptr, cluster(2), &LaunchReport::cluster), Answer::kLie);
  EXPECT_EQ(of_set_later(cluster(2), cluster(4), &LaunchReport::cluster), Answer::kLie);
  EXPECT_EQ(of_report(launched(cluster(2)), set_later(cluster(4)), &LaunchReport::cluster), Answer::kLie);
  EXPECT_EQ(of_set_later(nullptr, cooperative, &LaunchReport::cooperative), Answer::kRefusedAttributes);
  EXPECT_EQ(of_set_later(nullptr, urgent, nullptr, cudaGraphInstantiateFlagUseNodePriority),
            Answer::kRefusedAttributes);
  for (const auto& [name, change] : unseen_attributes()) {
    EXPECT_EQ(of_set_later(nullptr, change), Answer::kAccepted) << name;
  }
}

TEST_F(UpdateAnswersOfKernelsTest, DeviceUpdatableNodesAreNotSupported) {
  const Change updatable = attribute(cudaLaunchAttributeDeviceUpdatableKernelNode,
                                     [](auto& value) { value.deviceUpdatableKernelNode.deviceUpdatable = 1; });
  EXPECT_EQ(of_set_later(nullptr, updatable), Answer::kNotSupported);
  EXPECT_EQ(of_set_later(updatable, nullptr), Answer::kNotSupported);
  EXPECT_EQ(of_set_later(updatable, updatable), Answer::kNotSupported);
  EXPECT_EQ(of_launch(nullptr, updatable), Answer::kNotSupported);
}

TEST_F(UpdateAnswersOfKernelsTest, ProgrammaticEdgeIsRefused) {
  const Change programmatic = attribute(cudaLaunchAttributeProgrammaticStreamSerialization,
                                        [](auto& value) { value.programmaticStreamSerializationAllowed = 1; });
  const auto two = [&](const Change& second) {
    return captured([&] {
      launch();
      launch(second);
    });
  };
  EXPECT_EQ(of_report(two(nullptr), two(programmatic), nullptr), Answer::kRefusedTopology);
  EXPECT_EQ(of_report(two(programmatic), two(nullptr), nullptr), Answer::kRefusedTopology);
}

TEST_F(UpdateAnswersOfKernelsTest, EventsOfALaunchAreEdgesOrNothing) {
  const Event fork, join;
  const Stream other;
  const auto programmatic = [&](int at_block_start) {
    return attribute(cudaLaunchAttributeProgrammaticEvent, [&fork, at_block_start](auto& value) {
      value.programmaticEvent.event = fork;
      value.programmaticEvent.triggerAtBlockStart = at_block_start;
    });
  };
  const Change completion = attribute(cudaLaunchAttributeLaunchCompletionEvent,
                                      [&fork](auto& value) { value.launchCompletionEvent.event = fork; });
  // A kernel, and one on another stream that waits for `fork`, which is recorded by the first one's `change` or after
  // it.
  const auto forked = [&](const Change& change) {
    return captured([&] {
      launch(change);
      if (!change) {
        CUDA_OK(cudaEventRecord(fork, stream));
      }
      CUDA_OK(cudaStreamWaitEvent(other, fork, 0));
      launch([&other](auto& config, auto&) { config.stream = other; });
      CUDA_OK(cudaEventRecord(join, other));
      CUDA_OK(cudaStreamWaitEvent(stream, join, 0));
    });
  };
  EXPECT_EQ(of_report(forked(nullptr), forked(programmatic(0)), nullptr), Answer::kRefusedTopology);
  EXPECT_EQ(of_report(forked(nullptr), forked(completion), nullptr), Answer::kRefusedTopology);
  EXPECT_EQ(of_report(forked(programmatic(0)), forked(completion), nullptr), Answer::kRefusedTopology);
  EXPECT_EQ(of_report(forked(programmatic(0)), forked(programmatic(1)), nullptr), Answer::kRefusedTopology);
  EXPECT_EQ(of_launch(nullptr, programmatic(0)), Answer::kAccepted) << "nothing waits";
  EXPECT_EQ(of_launch(nullptr, completion), Answer::kAccepted) << "nothing waits";
}

// answer() itself expects that nothing was applied.
TEST_F(UpdateAnswersOfKernelsTest, OneRefusedNodeRefusesTheOthersToo) {
  EXPECT_EQ(of_memory(set_and_launched(1, nullptr), set_and_launched(5, cooperative)), Answer::kRefusedAttributes);
  const auto two_sets = [this](int value, std::size_t width, bool shape_first) {
    return captured([=, this] {
      const auto shape = [=, this] { CUDA_OK(cudaMemset2DAsync(memory.get() + 4096, 128, 1, width, 4, stream)); };
      if (shape_first) shape();
      CUDA_OK(cudaMemsetAsync(memory.get(), value, 64, stream));
      if (!shape_first) shape();
    });
  };
  EXPECT_EQ(of_memory(two_sets(1, 64, false), two_sets(5, 100, false)), Answer::kRefusedParameters);
  EXPECT_EQ(of_memory(two_sets(1, 64, true), two_sets(5, 100, true)), Answer::kRefusedParameters);
}

TEST_F(UpdateAnswersOfKernelsTest, ALieInOneNodeLeavesTheOthersApplied) {
  if (!has_clusters()) GTEST_SKIP() << "clusters need compute capability 9.0";
  EXPECT_EQ(of_memory(set_and_launched(1, nullptr), set_and_launched(5, cluster(2))), Answer::kApplied);
  EXPECT_EQ(report.first().cluster, 1);
}

}  // namespace
}  // namespace graphcache::test
