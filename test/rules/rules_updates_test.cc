// Updates: facts 19 to 24.
#include "graph/host_memory_support.h"
#include "rules.h"

namespace graphcache::test {
namespace {

using Fact19 = RuntimeRules;
using Fact20 = RuntimeRules;
using Fact21 = RuntimeRules;
using Fact22 = RuntimeRules;
using Fact23 = RuntimeRules;
using Fact24 = RuntimeRules;

TEST_F(RuntimeRules, AFillOfNothingKnownIsRefusedByTheInstantiation) {
  GIVES(cudaErrorInvalidValue, cudaMemsetAsync(nullptr, 0, 4, stream_));
  const cudaGraph_t graph = capture([&] { OK(cudaMemsetAsync(nullptr, 0, 4, stream_)); });
  GIVES(cudaErrorInvalidValue, instantiation_error(graph));
}

TEST_F(Fact19, AnUpdateToAnotherClusterSizeSaysYesAndKeepsTheOld) {
  const auto of_size = [this](unsigned size, float value) {
    return capture([&] {
      OK(launch_in_clusters(record_cluster_size, 8, 1, size, stream_, ints(1)));
      OK(put(value, stream_));
    });
  };
  for (const auto& [from, to] : {std::pair{2u, 4u}, {4u, 2u}, {1u, 4u}, {4u, 1u}, {0u, 4u}, {4u, 0u}}) {
    const cudaGraphExec_t executable = instantiate(of_size(from, 1));
    const int kept = from == 0 ? 1 : static_cast<int>(from);  // 0 is none
    EXPECT_EQ(1, run(executable));
    EXPECT_EQ(kept, read<int>(1));
    GIVES(cudaSuccess, update(executable, of_size(to, 2)));
    EXPECT_EQ(2, run(executable));  // the other changes are applied
    EXPECT_EQ(kept, read<int>(1));
  }
}

TEST_F(Fact20, RefusedUpdatesSayWhyAndChangeNothing) {
  const cudaGraph_t chain = capture([&] {
    for (float value : {1.0f, 2.0f, 4.0f, 8.0f}) OK(plus(value, stream_));
  });
  const cudaGraphExec_t executable = instantiate(chain);
  const cudaGraph_t longer = capture_adds(5, 100);
  const cudaGraph_t diamond = capture([&] {
    OK(plus(100, stream_));
    fork_and_join([&] { OK(plus(100, stream_)); }, [&] { OK(plus(100, other_)); });
    OK(plus(100, stream_));
  });
  const cudaGraph_t typed = capture([&] {
    for (int i = 0; i < 3; ++i) OK(plus(100, stream_));
    OK(cudaMemsetAsync(device_, 0, 4, stream_));
  });
  struct Case {
    cudaGraph_t graph;
    cudaGraphExecUpdateResult result;
    cudaGraphNode_t node;
  };
  for (const Case& c : {Case{longer, cudaGraphExecUpdateErrorTopologyChanged, nullptr},
                        Case{diamond, cudaGraphExecUpdateErrorTopologyChanged, nodes(diamond)[3]},
                        Case{typed, cudaGraphExecUpdateErrorNodeTypeChanged, nodes(typed)[3]}}) {
    EXPECT_TRUE(refuses(c.result, executable, c.graph));
    GIVES(cudaErrorGraphExecUpdateFailure, cudaGetLastError());
    EXPECT_EQ(c.node, info_.errorNode);
    EXPECT_EQ(15, run(executable));
  }
}

TEST_F(Fact20, UpdatesCompareExitsAndAttributes) {
  const cudaGraph_t chain = capture_adds(3), cooperative = capture_adds(3);
  const cudaGraph_t fork = capture([&] {
    OK(plus(1, stream_));
    fork_and_join([&] { OK(plus(1, stream_)); }, [&] { OK(plus(1, other_)); });
  });
  EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorTopologyChanged, instantiate(chain), fork));
  EXPECT_EQ(nodes(fork)[1], info_.errorNode);
  EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorTopologyChanged, instantiate(fork), chain));
  EXPECT_EQ(nullptr, info_.errorNode);

  cudaLaunchAttributeValue value = {};
  value.cooperative = 1;
  OK(cudaGraphKernelNodeSetAttribute(nodes(cooperative)[1], cudaLaunchAttributeCooperative, &value));
  EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorAttributesChanged, instantiate(chain), cooperative));
  EXPECT_EQ(nodes(cooperative)[1], info_.errorNode);
}

TEST_F(Fact21, UpdatesMayChangeValuesShapesAndFunctions) {
  const cudaGraphExec_t executable = instantiate(capture([&] {
    OK(launch(fill, 1, 1, stream_, device_, 1, 1.0f));
    OK(plus(1, stream_));
  }));
  OK(update(executable, capture([&] {
              OK(launch(fill, 2, 2, stream_, device_, 4, 3.0f));
              OK(launch(scale, 1, 4, stream_, device_, device_, 4, 5.0f));
            })));
  EXPECT_EQ(cudaGraphExecUpdateSuccess, info_.result);
  EXPECT_EQ(15, run(executable));
  EXPECT_EQ(15, read(3));
}

TEST_F(Fact21, PrioritiesAreFixedOnlyWhenTheyAreUsed) {
  const auto with_priority = [&](int priority) {
    const cudaGraph_t graph = capture([&] { OK(put(static_cast<float>(10 - priority), stream_)); });
    cudaLaunchAttributeValue value = {};
    value.priority = priority;
    GIVES(cudaSuccess, cudaGraphKernelNodeSetAttribute(nodes(graph)[0], cudaLaunchAttributePriority, &value));
    return graph;
  };
  const cudaGraph_t calm = with_priority(0), urgent = with_priority(-1);
  const cudaGraphExec_t indifferent = instantiate(calm);
  const cudaGraphExec_t strict = instantiate(calm, cudaGraphInstantiateFlagUseNodePriority);
  GIVES(cudaSuccess, update(indifferent, urgent));
  EXPECT_EQ(11, run(indifferent));
  EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorAttributesChanged, strict, urgent));
  EXPECT_EQ(10, run(strict));
}

TEST_F(Fact22, UpdatesPairBranchesCapturedInAnotherOrder) {
  const auto branches = [&](bool swapped, float a, float b) {
    return capture([&] {
      OK(put(0, stream_, 2));
      const Body first = [&] { OK(put(a, stream_)); };
      const Body second = [&] { OK(put(b, other_, 1)); };
      swapped ? fork_and_join(second, first) : fork_and_join(first, second);
      OK(plus(0, stream_));
    });
  };
  const cudaGraphExec_t executable = instantiate(branches(false, 1, 2));
  OK(update(executable, branches(true, 10, 20)));
  EXPECT_EQ(10, run(executable));
  EXPECT_EQ(20, read(1));
}

// Nothing follows the two nodes. In the second graph an edge between them was taken away.
TEST_F(Fact22, UpdatesPairSinksInTheOrderInWhichTheyBecameThat) {
  const auto sinks = [&](bool is_second, bool in_order) {
    const cudaGraph_t graph = make_graph();
    cudaGraphNode_t all[2] = {}, end = nullptr;
    for (int i = 0; i < 2; ++i) {
      const Params one(fill, 1, 1, device_ + 1 + i, 1, 1.0f);
      GIVES(cudaSuccess, cudaGraphAddKernelNode(&all[i], graph, nullptr, 0, one.get()));
    }
    if (is_second) {
      GIVES(cudaSuccess, add_edge(graph, all[0], all[1]));
      GIVES(cudaSuccess, remove_edge(graph, all[0], all[1]));
    }
    if (in_order) {
      GIVES(cudaSuccess, cudaGraphAddEmptyNode(&end, graph, all, 2));
      GIVES(cudaSuccess, cudaGraphDestroyNode(end));
    }
    return graph;
  };
  for (const bool in_order : {false, true}) {
    const cudaGraph_t base = sinks(false, in_order);
    const cudaGraphExec_t executable = instantiate(base);
    GIVES(cudaSuccess, update(executable, sinks(true, in_order)));
    GIVES(cudaSuccess, patch(executable, nodes(base)[0], 5));
    EXPECT_EQ(5, run(executable));
    EXPECT_EQ(in_order ? 0 : 1, read(1));
    EXPECT_EQ(in_order ? 1 : 0, read(2));
  }
}

// The cache pairs the nodes of siblings, and of a graph and its clone, by their positions in this list.
TEST_F(Fact22, NodesAreListedInTheOrderOfTheCapturingCallsAlsoThoseOfAClone) {
  for (int round = 0; round < 20; ++round) {
    std::vector<float> order;
    float next = 1;
    const auto mark = [&](cudaStream_t stream) {
      order.push_back(next);
      OK(put(next++, stream));
    };
    const cudaGraph_t graph = capture([&] {
      for (int fork = 0; fork < 10; ++fork) {
        mark(stream_);
        fork_and_join([&] { mark((round + fork) % 2 == 0 ? stream_ : other_); },
                      [&] {
                        mark((round + fork) % 3 == 0 ? stream_ : other_);
                        mark(other_);
                      });
      }
    });
    for (const cudaGraph_t listed : {graph, clone_of(graph)}) {
      std::vector<float> found;
      for (const cudaGraphNode_t node : nodes(listed)) {
        cudaKernelNodeParams params = {};
        OK(cudaGraphKernelNodeGetParams(node, &params));
        found.push_back(*static_cast<const float*>(params.kernelParams[2]));
      }
      EXPECT_EQ(found, order);
    }
  }
}

TEST_F(Fact23, FillsOfTwoDimensionsKeepTheirSize) {
  const auto fill_rows = [&](unsigned value, std::size_t height) {
    const cudaGraph_t graph = make_graph();
    cudaGraphNode_t node = nullptr;
    const cudaMemsetParams rows = {device_, 512, value, 4, 2, height};
    GIVES(cudaSuccess, cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &rows));
    return graph;
  };
  const cudaGraph_t graph = fill_rows(0x3f800000, 3);  // 1.0f
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(1, run(executable));
  EXPECT_EQ(1, read(2 * 128 + 1));
  EXPECT_EQ(0, read(2 * 128 + 2));
  EXPECT_EQ(0, read(3 * 128));
  for (std::size_t height : {1, 2, 4}) {
    EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorParametersChanged, executable, fill_rows(0, height)));
  }
  OK(update(executable, fill_rows(0x42280000, 3)));
  EXPECT_EQ(42, run(executable));
}

TEST_F(Fact23, UpdatesMayResizeCopiesButNotChangeTheirKind) {
  float host = 50;
  const auto copy = [&](const float* from, std::size_t count, cudaMemcpyKind kind) {
    return capture([=, this] { OK(cudaMemcpyAsync(device_ + 8, from, count * sizeof(float), kind, stream_)); });
  };
  const cudaGraphExec_t executable = instantiate(copy(device_, 2, cudaMemcpyDeviceToDevice));
  OK(update(executable, copy(device_, 4, cudaMemcpyDeviceToDevice)));
  const cudaGraph_t upload = copy(&host, 1, cudaMemcpyHostToDevice);
  EXPECT_TRUE(refuses(cudaGraphExecUpdateErrorParametersChanged, executable, upload));
  EXPECT_EQ(nodes(upload)[0], info_.errorNode);
  OK(launch(fill, 1, 4, stream_, device_, 4, 6.0f));
  OK(cudaGraphLaunch(executable, stream_));
  EXPECT_EQ(6, read(11));
}

// Memory of one kind on two devices. What is pinned is of the device that was current then.
struct OfDevices {
  char kind;  // 'd'evice, 'm'anaged or 'p'inned
  int device;
  void* memory = nullptr;
};

// The device whose copy it is, twice, or the two that it is between.
std::pair<int, int> devices_of_copy(const OfDevices& to, const OfDevices& from) {
  if (to.kind == 'd') return {to.device, from.kind == 'd' ? from.device : to.device};
  const bool is_of_target = to.kind == 'm' && from.kind == 'p';
  const int device = is_of_target ? to.device : from.device;
  return {device, device};
}

TEST_F(Fact23, CopiesStayOfTheirDevicesAndSetsOfTheirs) {
  int devices = 0;
  OK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  constexpr std::size_t kBytes = 64;
  std::vector<OfDevices> all;
  for (const int device : {0, 1}) {
    OK(cudaSetDevice(device));
    for (const char kind : {'d', 'm', 'p'}) {
      OfDevices& made = all.emplace_back(OfDevices{kind, device});
      OK(kind == 'd'   ? cudaMalloc(&made.memory, kBytes)
         : kind == 'm' ? cudaMallocManaged(&made.memory, kBytes)
                       : cudaMallocHost(&made.memory, kBytes));
    }
  }
  OK(cudaSetDevice(0));
  const auto copy = [&](const OfDevices& to, const OfDevices& from) {
    return capture([&] { OK(cudaMemcpyAsync(to.memory, from.memory, kBytes / 2, cudaMemcpyDefault, stream_)); });
  };
  for (const OfDevices& to : all) {
    for (const OfDevices& from : all) {
      const cudaGraph_t graph = copy(to, from);
      const cudaGraphExec_t executable = instantiate(graph), updated = instantiate(graph);
      for (const OfDevices& other_to : all) {
        for (const OfDevices& other_from : all) {
          SCOPED_TRACE(testing::Message()
                       << to.kind << to.device << " from " << from.kind << from.device << ", then " << other_to.kind
                       << other_to.device << " from " << other_from.kind << other_from.device);
          const bool is_same = devices_of_copy(to, from) == devices_of_copy(other_to, other_from);
          GIVES(is_same ? cudaSuccess : cudaErrorInvalidValue,
                cudaGraphExecMemcpyNodeSetParams1D(executable, nodes(graph)[0], other_to.memory, other_from.memory,
                                                   kBytes / 2, cudaMemcpyDefault));
          cudaGraphExecUpdateResultInfo info = {};
          GIVES(is_same ? cudaSuccess : cudaErrorGraphExecUpdateFailure,
                cudaGraphExecUpdate(updated, copy(other_to, other_from), &info));
        }
      }
    }
  }
  const cudaGraph_t set = capture([&] { OK(cudaMemsetAsync(device_, 0, kBytes, stream_)); });
  const cudaGraphExec_t executable = instantiate(set);
  for (const OfDevices& to : all) {
    cudaMemsetParams params = {};
    params.dst = to.memory;
    params.elementSize = params.width = params.height = 1;
    GIVES(to.device == 0 ? cudaSuccess : cudaErrorInvalidValue,
          cudaGraphExecMemsetNodeSetParams(executable, nodes(set)[0], &params));
  }
  for (const OfDevices& one : all) OK(one.kind == 'p' ? cudaFreeHost(one.memory) : cudaFree(one.memory));
}

// Not launched here, because the context would be lost (hostrt_driver).
TEST_F(Fact23, AnotherDeviceIsNotNoticedWhereNothingChanges) {
  int devices = 0;
  OK(cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  constexpr std::size_t kBytes = 64;
  const PinnedBuffer<char> to(2 * kBytes);
  ReusedMemory memory(ReusedMemory::Kind::kPinned);
  const void* const from = memory.get();
  const auto copy = [&] {
    return capture([&] { OK(cudaMemcpyAsync(to.get(), from, kBytes, cudaMemcpyDefault, stream_)); });
  };
  const cudaGraph_t graph = copy();
  const cudaGraphExec_t executable = instantiate(graph);
  if (!memory.give_out_again(ReusedMemory::Kind::kOtherDevice)) GTEST_SKIP() << "the allocator has other memory";
  const auto patch = [&](std::size_t bytes, void* target) {
    return cudaGraphExecMemcpyNodeSetParams1D(executable, nodes(graph)[0], target, from, bytes, cudaMemcpyDefault);
  };
  cudaGraphExecUpdateResultInfo info = {};
  GIVES(cudaSuccess, patch(kBytes, to.get()));
  GIVES(cudaErrorInvalidValue, patch(kBytes / 2, to.get()));
  GIVES(cudaErrorInvalidValue, patch(kBytes / 2, to.get() + 8));
  GIVES(cudaSuccess, cudaGraphExecUpdate(executable, copy(), &info));
}

TEST_F(Fact24, DisabledNodesStayDisabledAcrossAnUpdate) {
  std::atomic<int> counter = 0;
  const auto of_values = [&](float first, float second) {
    return capture([&] {
      OK(put(first, stream_));
      OK(plus(second, stream_));
      OK(cudaLaunchHostFunc(stream_, count_up, &counter));
    });
  };
  const cudaGraph_t graph = of_values(1, 10);
  const cudaGraph_t clone = clone_of(of_values(2, 20));
  const cudaGraphExec_t executable = instantiate(graph);
  const Nodes all = nodes(graph);
  OK(cudaGraphNodeSetEnabled(executable, all[1], 0));
  EXPECT_EQ(1, run(executable));
  OK(update(executable, graph));
  unsigned enabled = 1;
  OK(cudaGraphNodeGetEnabled(executable, all[1], &enabled));
  EXPECT_EQ(0u, enabled);
  EXPECT_EQ(1, run(executable));
  OK(update(executable, clone));
  EXPECT_EQ(2, run(executable));
  // Not a node of the base (facts 12).
  GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, nodes(clone)[1], 1));
  OK(cudaGraphNodeSetEnabled(executable, all[1], 1));
  EXPECT_EQ(22, run(executable));
  GIVES(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, all[2], 0));  // a host node
}

TEST_F(Fact23, PatchesOfTwoDimensionalFillsChangeAddressAndValueAlone) {
  cudaMemsetParams rows = {device_, 512, 0x3f800000, 4, 2, 3};  // 1.0f
  const cudaGraph_t graph = make_graph();
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &rows));
  const cudaGraphExec_t executable = instantiate(graph);
  const auto patched = [&](auto change) {
    cudaMemsetParams params = rows;
    change(params);
    return cudaGraphExecMemsetNodeSetParams(executable, node, &params);
  };
  using P = cudaMemsetParams;
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.pitch = 1024; }));
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.width = 1; }));
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.width = 3; }));
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.height = 2; }));
  GIVES(cudaErrorInvalidValue, patched([](P& p) { p.elementSize = 1, p.width = 8, p.value = 1; }));
  EXPECT_EQ(1, run(executable));
  GIVES(cudaSuccess, patched([&](P& p) { p.dst = device_ + 1, p.value = 0x42280000; }));  // 42.0f
  EXPECT_EQ(0, run(executable));
  EXPECT_EQ(42, read(2 * 128 + 2));

  rows.width = 3;  // the template's own node may change in everything
  OK(cudaGraphMemsetNodeSetParams(node, &rows));
  GIVES(cudaErrorGraphExecUpdateFailure, update(executable, graph));
  run(instantiate(graph));
  EXPECT_EQ(1, read(2 * 128 + 2));
}

TEST_F(Fact23, FillsMustFitTheirPitchAndElements) {
  const cudaGraph_t graph = make_graph();
  const auto added = [&](cudaMemsetParams params) {
    cudaGraphNode_t node = nullptr;
    return cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params);
  };
  GIVES(cudaErrorInvalidValue, added({device_, 512, 0, 4, 0, 2}));
  GIVES(cudaErrorInvalidValue, added({device_, 512, 0, 4, 2, 0}));
  GIVES(cudaErrorInvalidValue, added({device_, 512, 0, 3, 2, 2}));
  GIVES(cudaErrorInvalidValue, added({device_, 4, 0, 4, 2, 2}));
  GIVES(cudaErrorInvalidValue, added({device_, 0, 0, 4, 2, 2}));
  GIVES(cudaErrorInvalidValue, added({device_, 510, 0, 4, 2, 2}));
  GIVES(cudaErrorInvalidValue, added({reinterpret_cast<char*>(device_) + 2, 512, 0, 4, 2, 2}));
  GIVES(cudaErrorInvalidValue, added({reinterpret_cast<char*>(device_) + 2, 0, 0, 4, 2, 1}));
  EXPECT_TRUE(nodes(graph).empty());
  GIVES(cudaSuccess, added({device_, 0, 0, 4, 2, 1}));
  GIVES(cudaSuccess, added({device_, 512, 0x100, 1, 2, 2}));  // only the low bits count
}

}  // namespace
}  // namespace graphcache::test
