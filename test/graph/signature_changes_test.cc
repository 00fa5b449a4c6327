// The differences between two captured graphs of one signature, down to the arguments of kernels
// (lib/graph/describe.h, difference.h). On hostrt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "signature_support.h"

namespace graphcache::test {
namespace {

// ---- Differences ----------------------------------------------------------------------------------------------------

TEST_F(SignatureTest, ChangesAreCountedByTheDearest) {
  constexpr int kNodes = 50;
  const Described base = kernels(kNodes);
  const auto address = [](auto kernel) { return reinterpret_cast<const void*>(kernel); };
  struct {
    const char* name;
    Counts wanted;
    const void* kernel;
    dim3 grid, block;
    int to, a;
    std::size_t shared;
  } const cases[] = {
      {"a number", {48, 2, 0, 0, 0}, address(blend), 2, 32, 0, 4, 0},
      {"an address", {48, 2, 0, 0, 0}, address(blend), 2, 32, 1, 3, 0},
      {"grid.x", {48, 0, 2, 0, 0}, address(blend), 3, 32, 0, 3, 0},
      {"grid.y and a number", {48, 0, 2, 0, 0}, address(blend), dim3(2, 2), 32, 0, 9, 0},
      {"grid.z", {48, 0, 2, 0, 0}, address(blend), dim3(2, 1, 2), 32, 0, 3, 0},
      {"grid.x and block.x", {48, 0, 0, 2, 0}, address(blend), 3, 64, 0, 3, 0},
      {"block.y", {48, 0, 0, 2, 0}, address(blend), 2, dim3(32, 2), 0, 3, 0},
      {"block.z", {48, 0, 0, 2, 0}, address(blend), 2, dim3(32, 1, 2), 0, 3, 0},
      {"a kernel", {48, 0, 0, 2, 0}, address(blend_otherwise), 2, 32, 0, 3, 0},
      {"a kernel of fewer arguments", {48, 0, 0, 2, 0}, address(record_launch), 2, 32, 0, 3, 0},
      {"shared memory", {48, 0, 0, 2, 0}, address(blend), 2, 32, 0, 3, 512},
      {"nothing", {50, 0, 0, 0, 0}, address(blend), 2, 32, 0, 3, 0},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    const Described other = kernels(kNodes, 2, [&](cudaStream_t s, int i) {
      int *p = at(one.to), n = 64, a = one.a;
      void* arguments[] = {&p, &n, &a, &i};
      CUDA_OK(cudaLaunchKernel(one.kernel, one.grid, one.block, arguments, one.shared, s));
    });
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

// The smallest number of nodes for which an update is cheaper than patches.
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

// Graphs that are not siblings, as if the signature had missed their difference. The executable stays unchanged.
TEST_F(SignatureTest, RefusedUpdatesReportTheirReason) {
  using Enqueue = std::function<void(cudaStream_t)>;
  const Enqueue kernel = [this](cudaStream_t s) { CUDA_OK(launch(blend, 1, 1, s, at(0), 1, 0, 7)); };
  const Enqueue two = [&](cudaStream_t s) { kernel(s), kernel(s); };
  const Enqueue set = [this](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 1, 4, s)); };
  const auto copy = [this](cudaMemcpyKind kind) -> Enqueue {
    return [=, this](cudaStream_t s) { CUDA_OK(cudaMemcpyAsync(at(0), at(1), 4, kind, s)); };
  };
  const Enqueue cooperative = [&](cudaStream_t s) {
    kernel(s);
    set_attribute(s, cudaLaunchAttributeCooperative, 1);
  };
  const struct {
    Enqueue from, to;
    UpdateRefusal why;
    std::optional<std::size_t> node;
    cudaError_t injected = cudaSuccess;
  } cases[] = {{kernel, two, UpdateRefusal::kTopology, std::nullopt},
               {kernel, set, UpdateRefusal::kNodeType, 0},
               {copy(cudaMemcpyDeviceToDevice), copy(cudaMemcpyDefault), UpdateRefusal::kParameters, 0},
               {kernel, cooperative, UpdateRefusal::kAttributes, 0},
               {kernel, kernel, UpdateRefusal::kNotSupported, std::nullopt, cudaErrorGraphExecUpdateFailure},
               {kernel, kernel, UpdateRefusal::kOther, std::nullopt, cudaErrorNotSupported}};
  for (const auto& one : cases) {
    SCOPED_TRACE(to_string(one.why));
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
    EXPECT_NE(brought.result.error, cudaSuccess);
    EXPECT_EQ(brought.refusal, one.why);
    EXPECT_EQ(brought.refused_node, one.node);
    EXPECT_TRUE(brought.whole);
    EXPECT_EQ(brought.updates, 0);
    cudaGetLastError();

    memory->write({0, 5});
    CUDA_OK(executable->launch(LaunchStream(*stream)));
    EXPECT_EQ(memory->first(), one.why == UpdateRefusal::kParameters ? 5 : 7);
  }
}

// The values of slot nodes follow each run, so these nodes count as different.
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

  to.hold_slots({0, 5});  // set to the run's values, whatever they were
  Difference found = difference(from.content, to.content);
  EXPECT_FALSE(found.by_update);
  EXPECT_TRUE(found.nodes.empty());
  EXPECT_EQ(found.cost, costs::kTakeOver + 2 * kValue);

  from.hold_slots({0, 7});  // 7 gets its captured value back
  found = difference(from.content, to.content);
  ASSERT_EQ(found.nodes.size(), 1u);
  EXPECT_EQ(found.nodes[0].index, 7u);
  EXPECT_EQ(found.nodes[0].change, Change::kArguments);
  EXPECT_EQ(found.cost, costs::kTakeOver + 3 * kValue);

  elsewhere.hold_slots({0, 100});
  found = difference(from.content, elsewhere.content);  // a set that holds slots is set by its fields
  EXPECT_FALSE(found.by_update);
  EXPECT_EQ(found.counts[static_cast<std::size_t>(Change::kOther)], 0u);
  EXPECT_EQ(found.counts[static_cast<std::size_t>(Change::kGrid)], 1u);

  found = difference(elsewhere.content, from.content);  // a set that held slots is left to an update
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
  EXPECT_EQ(last.first_argument, first.first_argument);  // one layout for each kernel
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

// Padding between arguments is not compared. Padding inside an argument is, and costs at most a patch.
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

TEST_F(SignatureTest, KeysOfKernelsWithoutParametersTakeTurns) {
  for (const int nodes : {1, 20}) {
    SCOPED_TRACE(nodes);
    Cache cache({.max_executables = 1});
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

}  // namespace
}  // namespace graphcache::test
