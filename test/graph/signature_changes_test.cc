// The differences between two captured graphs of one signature, down to the arguments of kernels
// (lib/graph/describe.h). On hostrt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "signature_support.h"

namespace graphcache::test {
namespace {

// The number of nodes for each kind of change.
Counts changes(const Content& from, const Content& to) {
  Counts counts{};
  for (std::uint32_t i = 0; i < to.node_count; ++i) ++counts[static_cast<std::size_t>(change(from, to, i))];
  return counts;
}

// ---- Differences ----------------------------------------------------------------------------------------------------

TEST_F(SignatureTest, AChangeIsTheLargestOfANode) {
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
      {"a number", {48, 2, 0, 0}, address(blend), 2, 32, 0, 4, 0},
      {"an address", {48, 2, 0, 0}, address(blend), 2, 32, 1, 3, 0},
      {"grid.x", {48, 0, 2, 0}, address(blend), 3, 32, 0, 3, 0},
      {"grid.y and a number", {48, 0, 2, 0}, address(blend), dim3(2, 2), 32, 0, 9, 0},
      {"grid.z", {48, 0, 2, 0}, address(blend), dim3(2, 1, 2), 32, 0, 3, 0},
      {"grid.x and block.x", {48, 0, 0, 2}, address(blend), 3, 64, 0, 3, 0},
      {"block.y", {48, 0, 0, 2}, address(blend), 2, dim3(32, 2), 0, 3, 0},
      {"block.z", {48, 0, 0, 2}, address(blend), 2, dim3(32, 1, 2), 0, 3, 0},
      {"a kernel", {48, 0, 0, 2}, address(blend_otherwise), 2, 32, 0, 3, 0},
      {"a kernel of fewer arguments", {48, 0, 0, 2}, address(record_launch), 2, 32, 0, 3, 0},
      {"shared memory", {48, 0, 0, 2}, address(blend), 2, 32, 0, 3, 512},
      {"nothing", {50, 0, 0, 0}, address(blend), 2, 32, 0, 3, 0},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    const Described other = kernels(kNodes, 2, [&](cudaStream_t s, int i) {
      int *p = at(one.to), n = 64, a = one.a;
      void* arguments[] = {&p, &n, &a, &i};
      CUDA_OK(cudaLaunchKernel(one.kernel, one.grid, one.block, arguments, one.shared, s));
    });
    ASSERT_EQ(base.signature, other.signature);
    EXPECT_EQ(changes(base.content, other.content), one.wanted);
    EXPECT_EQ(changes(other.content, base.content), one.wanted);
    for (std::uint32_t i = 2; i < kNodes; ++i) EXPECT_EQ(change(base.content, other.content, i), Change::kNone) << i;
  }
}

TEST_F(SignatureTest, OtherNodesThatDifferAreNoKernelsArguments) {
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
    EXPECT_EQ(changes(base.content, other.content), (Counts{103 - count, 0, 0, count}));
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
    const char* why;
    int written = 7;  // What a launch of the unchanged executable writes.
    cudaError_t injected = cudaSuccess;
  } cases[] = {{kernel, two, "nodes or edges differ"},
               {kernel, set, "node 0, set: the type of the node differs"},
               {copy(cudaMemcpyDeviceToDevice), copy(cudaMemcpyDefault),
                "node 0, copy: a parameter differs that an update cannot change", 5},
               {kernel, cooperative,
                "node 0, kernel graphcache::test::blend: a launch attribute differs that an update cannot change"},
               {kernel, kernel, "the runtime does not support this update", 7, cudaErrorGraphExecUpdateFailure},
               {kernel, kernel, "the runtime gave no reason", 7, cudaErrorNotSupported},
               {kernel, kernel, "", 7, cudaErrorMemoryAllocation}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.why);
    Described from = described(one.from);
    const Described to = described(one.to);
    DeviceMemory of_cache(0);
    std::unique_ptr<Executable> executable;
    const auto content = std::make_shared<Content>(from.content);
    CUDA_OK(Executable::instantiate(from.graph, content, 0, of_cache, &executable).error);
    if (one.injected != cudaSuccess) hostrt::fail_call("cudaGraphExecUpdate", 1, one.injected);
    const BroughtOver brought = executable->bring_over(to.graph, std::make_shared<Content>(to.content), detail::Call());
    EXPECT_NE(brought.result.error, cudaSuccess);
    EXPECT_EQ(brought.refusal, one.why);
    EXPECT_FALSE(brought.updated);
    cudaGetLastError();

    memory->write({0, 5});
    CUDA_OK(executable->launch(LaunchStream(*stream)).error);
    EXPECT_EQ(memory->first(), one.written);
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

// Padding between arguments is not compared. Padding inside an argument is.
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
  EXPECT_EQ(changes(a.content, b.content), (Counts{1, 0, 0, 0}));
  EXPECT_EQ(changes(a.content, c.content), (Counts{0, 1, 0, 0}));
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
  EXPECT_EQ(changes(a.content, again.content), (Counts{1, 0, 0, 0}));
  EXPECT_EQ(changes(a.content, rubbish.content), (Counts{0, 1, 0, 0}));
  EXPECT_EQ(changes(a.content, other.content), (Counts{0, 1, 0, 0}));
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
  EXPECT_EQ(changes(a.content, a.content), (Counts{33, 0, 0, 0}));
  EXPECT_EQ(changes(a.content, b.content), (Counts{30, 0, 3, 0}));

  const Described empty = kernels(0);
  ASSERT_TRUE(empty.signature.has_value());
  EXPECT_EQ(changes(empty.content, empty.content), (Counts{0, 0, 0, 0}));
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
