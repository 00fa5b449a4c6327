// Verify mode names each mistake that makes a hit wrong, on either runtime: values, pointers, branches and functions
// that are not in the key. The suite verify_nodes has the parts of a graph; verify_quiet shows that nothing else is
// named.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "verify_findings.h"

namespace graphcache::test {
namespace {

using VerifyHitsTest = FindingTest;

TEST_F(VerifyHitsTest, ValueCapturedByReference) {
  float value = 0;
  const auto run = [&](Cache& cache, int which) {
    value = which == 0 ? 2.0f : 3.0f;
    return cache.run(key("k"), stream,
                     [&](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, data.get(), kSize, value); });
  };
  expect_found(run, first_of(data), 2, 3,
               {"node 0 (kernel graphcache::test::fill", "argument 2 was 0x40000000 (", "as a float 2)",
                "and is 0x40400000 (", "as a float 3)"});
}

TEST_F(VerifyHitsTest, PointerThatMoved) {
  const auto run = [&](Cache& cache, int which) {
    float* const to = which == 0 ? other.get() : data.get();
    return cache.run(key("k"), stream,
                     [to](cudaStream_t on) { return launch(fill, kGrid, kBlock, on, to, kSize, 7.0f); });
  };
  expect_found(run, first_of(data), -1, 7,
               {"node 0 (kernel graphcache::test::fill", "argument 0 was " + hex(other.get()) + " (memory of device 0)",
                "and is " + hex(data.get()) + " (memory of device 0)"});
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
  EXPECT_TRUE(call(locals[0], true).ok());
  EXPECT_FAILURE(kFailedPrecondition, call(locals[1], false));
  expect_one_finding(cache, {"argument 1 was " + hex(&locals[0]) + " (on this thread's stack)",
                             "and is " + hex(&locals[1]) + " (on this thread's stack)"});
}

TEST_F(VerifyHitsTest, BranchThatIsNotInTheKey) {
  const auto run = [&](Cache& cache, int which) {
    const bool twice = which == 0;
    return cache.run(key("k"), stream, [&, twice](cudaStream_t on) {
      CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
      if (twice) {
        CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
      }
    });
  };
  expect_found(
      run, first_of(data), 3, 2,
      {"the number of nodes was 2 when", "and is 1 now", "node 1 (kernel graphcache::test::add", ") is missing now"});
}

TEST_F(VerifyHitsTest, BranchThatAddsWork) {
  const auto run = [&](Cache& cache, int which) {
    return cache.run(key("k"), stream, [&, which](cudaStream_t on) {
      if (which == 1) {
        CUDA_OK(cudaMemsetAsync(other.get(), 0, sizeof(float), on));
      }
      CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
    });
  };
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
  cudaStream_t where = nullptr;
  const auto run = [&](Cache& cache, int which) {
    where = which == 0 ? stream : elsewhere;
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
      CUDA_OK(launch(add, kGrid, kBlock, where, on == where ? data.get() : other.get(), kSize, 1.0f));
    });
  };
  expect_found(
      run, first_of(data), 3, 2,
      {"the number of nodes was 2 when", "and is 1 now", "node 1 (kernel graphcache::test::add", ") is missing now"});
}

TEST_F(VerifyHitsTest, HostFunctionWhoseDataHasMoved) {
  static float counts[2];
  const auto run = [&](Cache& cache, int which) {
    if (which == 0) counts[0] = counts[1] = 0;
    float* const count = &counts[which];
    return cache.run(key("k"), stream, [count](cudaStream_t on) {
      return cudaLaunchHostFunc(
          on, [](void* at) { *static_cast<float*>(at) += 1; }, count);
    });
  };
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
  unsigned blocks = 0;
  const auto run = [&](Cache& cache, int which) {
    blocks = which == 0 ? 1 : 2;
    return cache.run(key("k"), stream,
                     [&](cudaStream_t on) { return launch(fill, dim3(blocks), kBlock, on, data.get(), kSize, 2.0f); });
  };
  expect_found(run, [&] { return data.read()[kSize - 1]; }, -1, 2,
               {"node 0 (kernel graphcache::test::fill", "the grid was (1, 1, 1) when", "and is (2, 1, 1) now"});
}

}  // namespace
}  // namespace graphcache::test
