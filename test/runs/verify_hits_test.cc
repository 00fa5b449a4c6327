// Verify mode names each mistake that makes a hit wrong, on either runtime: values, pointers, branches and functions
// that are not in the key. The suite verify_nodes has the parts of a graph; verify_quiet shows that nothing else is
// named.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verify_findings.h"

namespace graphcache::test {
namespace {

using VerifyHitsTest = FindingTest;

const std::vector<std::string> kOneNodeLess = {"the number of nodes was 2 when", "and is 1 now",
                                               "node 1 (kernel graphcache::test::add", ") is missing now"};

TEST_F(VerifyHitsTest, ValueCapturedByReference) {
  const auto run = runs_of([&](cudaStream_t on, int which) { return fill_data(on, which == 0 ? 2 : 3); });
  expect_found(run, first_of(data), 2, 3,
               {"node 0 (kernel graphcache::test::fill", "argument 2 was 0x40000000 (", "as a float 2)",
                "and is 0x40400000 (", "as a float 3)"});
}

TEST_F(VerifyHitsTest, PointerThatMoved) {
  const auto run = runs_of([&](cudaStream_t on, int which) {
    return launch(fill, kGrid, kBlock, on, which == 0 ? other.get() : data.get(), kSize, 7.0f);
  });
  expect_found(run, first_of(data), -1, 7,
               {"node 0 (kernel graphcache::test::fill", "argument 0 was " + hex(other.get()) + " (memory of device 0)",
                "and is " + hex(data.get()) + " (memory of device 0)"});
}

// Together with its neighbour, it looks like an address.
TEST_F(VerifyHitsTest, MemberOfAStructureBesideANumber) {
  DeviceBuffer<Mixed> out(1);
  Cache cache(verifying(OnStale::kReturnError));
  const auto run = [&](short captured) {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      Mixed value;
      std::memset(static_cast<void*>(&value), 0, sizeof value);
      value.small = captured;
      value.numbers[0] = 100;
      return launch(copy_struct, 1, 1, on, out.get(), value);
    });
  };
  EXPECT_SUCCESS(run(1));
  EXPECT_SUCCESS(run(1));
  EXPECT_FAILURE(kFailedPrecondition, run(2));
  expect_one_finding(cache, {"argument 1, bytes 16 to 23"});
}

// Nothing is launched, because the kernel would write to that memory.
TEST_F(VerifyHitsTest, PointerToFreedMemory) {
  Cache cache(verifying(OnStale::kReturnError));
  float* memory = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory), kSize * sizeof(float)));
  const auto run = [&](float* to) {
    return cache.run(key("k"), stream,
                     [to](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, to, kSize, 7.0f); });
  };
  EXPECT_RUN(kInstantiated, run(memory));
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaFree(memory));
  EXPECT_FAILURE(kFailedPrecondition, run(data.get()));
  expect_one_finding(cache, {"argument 0 was " + hex(memory) + " (pageable host memory or freed memory)"});
}

// A kernel would read unknown bytes, so nothing is launched here either.
TEST_F(VerifyHitsTest, PointerToTheStack) {
  Cache cache(verifying(OnStale::kReturnError));
  const auto call = [&](const float& local, bool warm) {
    const auto fn = [&](cudaStream_t on) { return launch(scale, kGrid, kBlock, on, data.get(), &local, 1, 1.0f); };
    if (warm) return cache.warm(key("k"), stream, fn);
    return cache.run(key("k"), stream, fn).status();
  };
  const float locals[2] = {1, 2};
  EXPECT_SUCCESS(call(locals[0], true));
  EXPECT_FAILURE(kFailedPrecondition, call(locals[1], false));
  expect_one_finding(cache, {"argument 1 was " + hex(&locals[0]) + " (on this thread's stack)",
                             "and is " + hex(&locals[1]) + " (on this thread's stack)"});
}

TEST_F(VerifyHitsTest, BranchThatIsNotInTheKey) {
  const auto run = runs_of([&](cudaStream_t on, int which) {
    const cudaError_t error = fill_data(on, 2);
    return error != cudaSuccess || which == 1 ? error : add_to_data(on, 1);
  });
  expect_found(run, first_of(data), 3, 2, kOneNodeLess);
}

TEST_F(VerifyHitsTest, BranchThatAddsWork) {
  const auto run = runs_of([&](cudaStream_t on, int which) {
    if (which == 1) {
      CUDA_OK(cudaMemsetAsync(other.get(), 0, sizeof(float), on));
    }
    return fill_data(on, 2);
  });
  expect_found(
      run, first_of(other), -1, 0,
      {"the number of nodes was 1 when", "and is 2 now", "node 0 (kernel graphcache::test::fill", "is a set now"});
}

// The site of a run is the type of `fn`, which both share.
class Enqueuer {
 public:
  using Enqueue = cudaError_t (*)(cudaStream_t on, float* data);
  Enqueuer(Enqueue enqueue, float* data) : enqueue_(enqueue), data_(data) {}
  cudaError_t operator()(cudaStream_t on) const { return enqueue_(on, data_); }

 private:
  Enqueue enqueue_;
  float* data_;
};

TEST_F(VerifyHitsTest, FunctorThatHoldsAFunctionPointer) {
  const auto run = [&](Cache& cache, int which) {
    const auto fill_two = [](cudaStream_t on, float* to) { return launch(fill, kGrid, kBlock, on, to, kSize, 2.0f); };
    const auto add_two = [](cudaStream_t on, float* to) { return launch(add, kGrid, kBlock, on, to, kSize, 2.0f); };
    return cache.run(key("k"), stream, Enqueuer(which == 0 ? +fill_two : +add_two, data.get()));
  };
  expect_wrong_without(run, first_of(data), 2);
  expect_reported(run, first_of(data), 2,
                  {"node 0 (kernel graphcache::test::fill", "the kernel was graphcache::test::fill",
                   "and is graphcache::test::add"});
  expect_forgotten(run, first_of(data), 4, {"and is graphcache::test::add"});
  expect_refused(run, {"and is graphcache::test::add"});
}

// Two places of the program that call one helper are one place for the cache.
absl::StatusOr<Outcome> run_helper(Cache& cache, cudaStream_t stream, float* to, int constant, float value) {
  return cache.run(key("helper"), stream,
                   [=](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, to, constant, value); });
}

TEST_F(VerifyHitsTest, LambdaOfAHelperWithOtherCaptures) {
  const auto run = [&](Cache& cache, int which) {
    return which == 0 ? run_helper(cache, stream, data.get(), kSize, 2) : run_helper(cache, stream, data.get(), 50, 2);
  };
  const auto last = [&] { return data.read()[kSize - 1]; };
  data.write(std::vector<float>(kSize, -1));
  {
    Cache cache;
    EXPECT_RUN(kInstantiated, run(cache, 0));
    data.write(std::vector<float>(kSize, -1));
    EXPECT_RUN(kReplayed, run(cache, 1));
    EXPECT_EQ(last(), 2);
  }
  Cache cache(verifying(OnStale::kForget));
  EXPECT_RUN(kInstantiated, run(cache, 0));
  data.write(std::vector<float>(kSize, -1));
  EXPECT_RUN(kInstantiated, run(cache, 1));
  EXPECT_EQ(last(), -1);
  expect_one_finding(cache, {"node 0 (kernel graphcache::test::fill", "argument 1 was 0x64 (100,", "and is 0x32 (50,"});
}

// The first run launched on the run's stream. The later one uses another stream, which the recording does not see.
TEST_F(VerifyHitsTest, LaunchThatWentElsewhere) {
  Stream elsewhere;
  const auto run = runs_of([&](cudaStream_t on, int which) {
    CUDA_OK(fill_data(on, 2));
    if (which == 0) return add_to_data(on, 1);
    return launch(add, kGrid, kBlock, elsewhere, other.get(), kSize, 1.0f);
  });
  expect_found(run, first_of(data), 3, 2, kOneNodeLess);
}

TEST_F(VerifyHitsTest, HostFunctionWhoseDataHasMoved) {
  static float counts[2];
  const auto run = runs_of([](cudaStream_t on, int which) {
    if (which == 0) counts[0] = counts[1] = 0;
    return cudaLaunchHostFunc(
        on, [](void* at) { *static_cast<float*>(at) += 1; }, &counts[which]);
  });
  const auto second = [&] {
    CUDA_OK(cudaDeviceSynchronize());
    return counts[1];
  };
  const std::vector<std::string> words = {"node 0 (host function): its data was 0x", "and is 0x"};
  expect_wrong_without(run, second, 0);
  expect_reported(run, second, 0, words);
  expect_forgotten(run, second, 1, words);
}

TEST_F(VerifyHitsTest, GridThatFollowsAVariable) {
  const auto run = runs_of([&](cudaStream_t on, int which) {
    return launch(fill, dim3(which == 0 ? 1 : 2), kBlock, on, data.get(), kSize, 2.0f);
  });
  expect_found(run, [&] { return data.read()[kSize - 1]; }, -1, 2,
               {"node 0 (kernel graphcache::test::fill", "the grid was (1, 1, 1) when", "and is (2, 1, 1) now"});
}

// As a solver does that swaps its two buffers at the end of each call of `fn`: a replay would use them as they were.
TEST_F(VerifyHitsTest, WhatEachCallOfFnChanges) {
  const std::vector<std::string> words = {"when the key was recorded, and each call of fn has another one, such as"};
  float *one = data.get(), *two = other.get();
  int calls = 0;
  DeviceBuffer<Mixed> out(1);
  using Fn = std::function<void(cudaStream_t)>;
  const std::vector<std::pair<const char*, Fn>> cases = {
      {"argument 0",
       [&](cudaStream_t on) {
         CUDA_OK(launch(add, kGrid, kBlock, on, one, kSize, 1.0f));
         std::swap(one, two);
       }},
      {"argument 2",
       [&](cudaStream_t on) { CUDA_OK(launch(add, kGrid, kBlock, on, one, kSize, static_cast<float>(++calls))); }},
      {"argument 1, bytes 8 to 15 of 40",
       [&](cudaStream_t on) {
         Mixed value;
         std::memset(static_cast<void*>(&value), 0, sizeof value);
         value.real = ++calls % 2 == 0 ? 1.5 : 2.5;
         CUDA_OK(launch(copy_struct, dim3(1), dim3(1), on, out.get(), value));
       }},
      {"argument 1, bytes 8 to 15 of 40",
       [&](cudaStream_t on) {
         Mixed value;
         std::memset(static_cast<void*>(&value), 0, sizeof value);
         const int two_numbers[] = {7, ++calls % 2 + 20};  // Together they are no address.
         std::memcpy(&value.real, two_numbers, sizeof two_numbers);
         CUDA_OK(launch(copy_struct, dim3(1), dim3(1), on, out.get(), value));
       }},
  };
  for (const auto& [argument, fn] : cases) {
    SCOPED_TRACE(argument);
    Cache cache(verifying(OnStale::kReturnError));
    calls = 0;
    const auto run = [&, &fn = fn] { return cache.run(key("k"), stream, [&](cudaStream_t on) { fn(on); }); };
    EXPECT_RUN(kInstantiated, run());
    EXPECT_FAILURE(kFailedPrecondition, run());
    expect_one_finding(cache, words);
    EXPECT_TRUE(holds_all(findings(cache), {std::string(argument) + " was "}));
  }
}

// One key overwrites what the other has staged, and its own copy finds the other's at a replay.
TEST_F(VerifyHitsTest, StagingBufferThatFnFills) {
  for (const bool keeps : {false, true}) {
    SCOPED_TRACE(keeps ? "memory that the key keeps" : "pinned memory");
    const auto memory = std::make_shared<std::array<float, kSize>>();
    const PinnedBuffer<float> pinned(kSize);
    float* const staging = keeps ? memory->data() : pinned.get();
    const auto run = [&](Cache& cache, const char* name, float value) {
      return cache.run(key(name), stream, [&, value](Recorder& rec) {
        if (keeps) rec.keep(memory);
        staging[kSize - 1] = value;
        CUDA_OK(cudaMemcpyAsync(data.get(), staging, kSize * sizeof(float), cudaMemcpyHostToDevice, rec.stream()));
      });
    };
    Cache cache(verifying(OnStale::kReturnError));
    EXPECT_RUN(kInstantiated, run(cache, "a", 20));
    EXPECT_RUN(kReplayed, run(cache, "a", 20));
    EXPECT_EQ(data.read()[kSize - 1], 20);
    ASSERT_SUCCESS(run(cache, "b", 30));
    EXPECT_EQ(data.read()[kSize - 1], 30);
    EXPECT_FAILURE(kFailedPrecondition, run(cache, "a", 20));
    EXPECT_EQ(cache.stats().stale, 1u);
    EXPECT_TRUE(holds_all(findings(cache), {"node 0 (copy)", "the bytes of its source", "fn, which writes there"}));
  }
}

// The address is the same at every call, and the memory is another, or none.
TEST_F(VerifyHitsTest, MemoryThatIsFreedAndGivenOutAgain) {
  std::vector<float> memory(kSize, 2);
  const auto pin = [&] { CUDA_OK(cudaHostRegister(memory.data(), kSize * sizeof(float), cudaHostRegisterDefault)); };
  pin();
  const float* const mapped = memory.data();  // Also its address on the device.
  Cache cache(verifying(OnStale::kReturnError));
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      return launch(scale, kGrid, kBlock, on, data.get(), mapped, kSize, 3.0f);
    });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(data.first(), 6);
  CUDA_OK(cudaHostUnregister(memory.data()));
  EXPECT_FAILURE(kFailedPrecondition, run());
  expect_one_finding(cache, {"argument 1 was " + hex(mapped), "the memory there has been freed or unregistered since",
                             "erase the key when memory that it uses is freed"});
  pin();
  EXPECT_FAILURE(kFailedPrecondition, run());
  EXPECT_EQ(cache.stats().stale, 2u);
  cache.clear();
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaHostUnregister(memory.data()));
}

TEST_F(VerifyHitsTest, AChangeBesideASizeThatBecameZero) {
  Cache cache(verifying(OnStale::kReturnError));
  float value = 1;
  const auto run = [&](std::size_t bytes) {
    return cache.run(key("k"), stream, params(bytes), [&](Recorder& rec, Slot<std::size_t> n) {
      rec.memset(other.get(), 0, n);
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, value);
    });
  };
  EXPECT_RUN(kInstantiated, run(16));
  value = 2;
  EXPECT_FAILURE(kFailedPrecondition, run(0));
  expect_one_finding(cache, {"node 1 (kernel graphcache::test::fill", "argument 2 was"});
}

}  // namespace
}  // namespace graphcache::test
