// The findings of verify mode for each kind of node and each part of a node, on either runtime.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "verify_findings.h"

namespace graphcache::test {
namespace {

using VerifyNodesTest = FindingTest;

TEST_F(VerifyNodesTest, CopiesAndSetsOfOtherMemoryAndSizes) {
  const auto set = runs_of([&](cudaStream_t on, int which) {
    return cudaMemsetAsync(data.get(), 0, which == 0 ? sizeof(float) : data.bytes(), on);
  });
  const auto last = [&] { return data.read()[kSize - 1]; };
  expect_found(set, last, -1, 0, {"node 0 (set): the size was 4 when", "and is 400 now"});

  const auto copy = runs_of([&](cudaStream_t on, int which) {
    CUDA_OK(launch(fill, kGrid, kBlock, on, other.get(), kSize, 5.0f));
    const float* const from = which == 0 ? data.get() + 1 : other.get();
    return cudaMemcpyAsync(data.get(), from, sizeof(float), cudaMemcpyDeviceToDevice, on);
  });
  expect_found(copy, first_of(data), -1, 5,
               {"node 1 (copy): the source was " + hex(data.get() + 1), "and is " + hex(other.get())});
}

TEST_F(VerifyNodesTest, NodesOfOtherKinds) {
  Event event;
  const std::vector<std::pair<const char*, std::function<cudaError_t(cudaStream_t)>>> kinds = {
      {"kernel ", [&](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, data.get(), kSize, 1.0f); }},
      {"copy",
       [&](cudaStream_t on) { return cudaMemcpyAsync(data.get(), other.get(), 4, cudaMemcpyDeviceToDevice, on); }},
      {"set", [&](cudaStream_t on) { return cudaMemsetAsync(data.get(), 0, 4, on); }},
      {"host function",
       [&](cudaStream_t on) {
         return cudaLaunchHostFunc(
             on, [](void*) {}, nullptr);
       }},
      {"event", [&](cudaStream_t on) { return cudaEventRecordWithFlags(event, on, cudaEventRecordExternal); }},
      {"event wait", [&](cudaStream_t on) { return cudaStreamWaitEvent(on, event, cudaEventWaitExternal); }},
      {"allocation",
       [&](cudaStream_t on) {
         void* memory = nullptr;
         const cudaError_t error = cudaMallocAsync(&memory, 64, on);
         return error == cudaSuccess ? cudaFreeAsync(memory, on) : error;
       }},
  };
  CUDA_OK(cudaEventRecord(event, stream));
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (const std::size_t j : {(i + 1) % kinds.size(), (i + 3) % kinds.size()}) {
      SCOPED_TRACE(std::string(kinds[i].first) + ", then " + kinds[j].first);
      Cache cache(verifying(OnStale::kReturnError));
      std::size_t which = i;
      const auto run = [&] {
        return cache.run(key("k"), stream, [&](cudaStream_t on) { return kinds[which].second(on); });
      };
      EXPECT_RUN(kInstantiated, run());
      EXPECT_RUN(kReplayed, run());
      which = j;
      EXPECT_FAILURE(kFailedPrecondition, run());
      expect_one_finding(cache, {std::string("node 0 (") + kinds[i].first, std::string("is a ") + kinds[j].first});
    }
  }
}

// In each case the first recording has one value and the next one another. The kernels access no memory.
TEST_F(VerifyNodesTest, EachPartOfANodeIsNamed) {
  const PinnedBuffer<float> of_host(16);
  float* const pinned = of_host.get();
  float* managed = nullptr;
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), 64, cudaMemAttachGlobal));
  const auto at = [](float* to) { return [to](Recorder& rec) { rec.launch(fill, {1, 1}, to, 0, 1.0f); }; };
  const auto nothing = [](unsigned block, std::size_t shared) {
    return [=](Recorder& rec) { rec.launch(do_nothing, {1, block, shared}); };
  };
  const auto set = [&](int value, std::size_t bytes) {
    return [=, to = data.get()](Recorder& rec) { rec.memset(to, value, bytes); };
  };
  const auto allocation = [](std::size_t bytes) {
    return [=](Recorder& rec) {
      void* memory = nullptr;
      CUDA_OK(cudaMallocAsync(&memory, bytes, rec.stream()));
      CUDA_OK(cudaFreeAsync(memory, rec.stream()));
    };
  };
  DeviceBuffer<double> out(10);
  const auto numbers = [&](char a, short c, long long e) {
    return [=, to = out.get()](Recorder& rec) {
      CUDA_OK(launch(many, 1, 1, rec.stream(), to, a, 2.0, c, 4.0f, e, 6, 7, 8.0f, 9, 10.0));
    };
  };
  const auto shape = [](dim3 grid, dim3 block) {
    return [=](Recorder& rec) { rec.launch(do_nothing, {grid, block}); };
  };
  const auto cluster = [to = data.get()](unsigned size) {
    return [=](Recorder& rec) {
      CUDA_OK(launch_in_clusters(fill, dim3(4), dim3(1), dim3(size, 1, 1), rec.stream(), to, 0, 1.0f));
    };
  };
  const Event one, two;
  const auto record = [](cudaEvent_t event) {
    return [=](Recorder& rec) { CUDA_OK(cudaEventRecordWithFlags(event, rec.stream(), cudaEventRecordExternal)); };
  };
  struct Part {
    std::function<void(Recorder&)> first, then;
    std::vector<std::string> words;
  };
  const std::vector<Part> parts = {
      {at(data.get()), at(pinned), {"argument 0 was", "(memory of device 0)", "(pinned host memory)"}},
      {at(pinned), at(managed), {"argument 0 was", "(pinned host memory)", "(managed memory)"}},
      {at(managed), at(nullptr), {"argument 0 was", "(managed memory)", "and is 0"}},
      {at(nullptr), at(data.get()), {"argument 0 was 0", "(memory of device 0)"}},
      {nothing(32, 0), nothing(64, 0), {"the block was (32, 1, 1)", "and is (64, 1, 1)"}},
      {nothing(32, 16), nothing(32, 32), {"dynamic shared memory was 16", "and is 32"}},
      {shape({1, 1}, {1, 1}), shape({1, 2}, {1, 1}), {"the grid was (1, 1, 1)", "and is (1, 2, 1)"}},
      {shape({1, 1, 3}, {1, 1}), shape({1, 1, 2}, {1, 1}), {"the grid was (1, 1, 3)", "and is (1, 1, 2)"}},
      {shape({1, 1}, {1, 4}), shape({1, 1}, {1, 2}), {"the block was (1, 4, 1)", "and is (1, 2, 1)"}},
      {shape({1, 1}, {1, 1, 1}), shape({1, 1}, {1, 1, 2}), {"the block was (1, 1, 1)", "and is (1, 1, 2)"}},
      {numbers('a', 1, 0), numbers('b', 1, 0), {"argument 1 was 97", "and is 98"}},
      {numbers('a', 1, 0), numbers('a', -2, 0), {"argument 3 was 0x1 (1)", "and is 0xfffe (-2)"}},
      {numbers('a', 1, 1 << 20),
       numbers('a', 1, 1LL << 50),
       {"argument 5 was 0x100000 (1048576, as a double", "and is 0x4000000000000 (1125899906842624, as a double"}},
      {cluster(2), cluster(4), {"its launch attributes (cooperative, cluster size) have changed"}},
      {set(1, 4), set(2, 4), {"node 0 (set): the value was 1", "and is 2"}},
      {set(1, 4), set(1, 8), {"node 0 (set): the ", "was 4"}},
      {allocation(64), allocation(4096), {"node 0 (allocation): the size was 64", "and is 4096"}},
      {record(one), record(two), {"(event): the event was 0x", "and is 0x"}},
  };
  for (const Part& part : parts) {
    Cache cache(verifying(OnStale::kReturnError));
    bool is_first = true;
    const auto run = [&] {
      return cache.run(key("k"), stream, [&](Recorder& rec) { (is_first ? part.first : part.then)(rec); });
    };
    EXPECT_RUN(kInstantiated, run());
    EXPECT_RUN(kReplayed, run());
    is_first = false;
    EXPECT_FAILURE(kFailedPrecondition, run());
    expect_one_finding(cache, part.words);
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaFree(managed));
}

// A finding needs two equal recordings.
TEST_F(VerifyNodesTest, ARecordingThatBreaksTheSecondTimeDecidesNothing) {
  for (const bool fails : {false, true}) {
    Cache cache(verifying(OnStale::kReturnError));
    int calls = 0;
    const auto run = [&] {
      return cache.run(key("k"), stream, [&](cudaStream_t on) {
        const cudaError_t error = launch(fill, kGrid, kBlock, on, data.get(), kSize, static_cast<float>(++calls));
        if (calls == 3 && fails) return cudaErrorInvalidValue;
        if (calls == 3) cudaStreamSynchronize(on);
        return error;
      });
    };
    EXPECT_RUN(kInstantiated, run());
    EXPECT_RUN(kReplayed, run());
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(cache.stats().stale + cache.stats().verified, 0u);
  }
}

TEST_F(VerifyNodesTest, MemberOfAStructure) {
  DeviceBuffer<Mixed> to(1);
  Mixed value;
  std::memset(&value, 0, sizeof value);
  const auto run = runs_of([&](cudaStream_t on, int which) {
    value.real = which == 0 ? 1.0 : 2.0;
    return launch(copy_struct, dim3(1), dim3(1), on, to.get(), value);
  });
  expect_found(run, [&] { return static_cast<float>(to.read()[0].real); }, 1, 2,
               {"node 0 (kernel graphcache::test::copy_struct", "argument 1, bytes 8 to 15 of", "as a double 1)",
                "as a double 2)"});
}

TEST_F(VerifyNodesTest, OtherDependencies) {
  Stream side;
  Event fork;
  const auto run = runs_of([&](cudaStream_t on, int which) {
    CUDA_OK(launch(do_nothing, dim3(1), dim3(1), on));
    CUDA_OK(cudaEventRecord(fork, on));
    CUDA_OK(launch(do_nothing, dim3(1), dim3(1), on));
    if (which == 0) {
      CUDA_OK(cudaEventRecord(fork, on));
    }
    CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
    CUDA_OK(launch(do_nothing, dim3(1), dim3(1), side));
    let_follow(on, side);
  });
  expect_reported(run, first_of(data), -1, {"node 2 (kernel graphcache::test::do_nothing", "depends on other nodes"});
}

TEST_F(VerifyNodesTest, SlotsThatChangePlaces) {
  bool swap = false;
  const auto run = [&](Cache& cache, int which) {
    swap = which == 1;
    return cache.run(key("k"), stream, params(2.0f, 3.0f), [&](Recorder& rec, Slot<float> a, Slot<float> b) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, swap ? b : a);
    });
  };
  expect_found(run, first_of(data), 2, 3, {"argument 2 was a slot when", "and is another slot now"});
  const auto constant = [&](Cache& cache, int which) {
    swap = which == 1;
    return cache.run(key("k"), stream, params(2.0f), [&](Recorder& rec, Slot<float> a) {
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, swap ? Arg<float>(3.0f) : Arg<float>(a));
    });
  };
  expect_found(constant, first_of(data), 2, 3, {"argument 2 was a slot when", "and is a constant now"});
  const auto slot = [&](Cache& cache, int which) { return constant(cache, 1 - which); };
  expect_found(slot, first_of(data), 3, 2, {"argument 2 was a constant when", "and is a slot now"});
}

}  // namespace
}  // namespace graphcache::test
