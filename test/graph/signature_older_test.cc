// A driver older than the toolkit: hostrt acts as one for CUDA 12.4 here, whatever headers it was built with.
#include <gtest/gtest.h>

#include "cuda/driver.h"
#include "signature_support.h"

namespace graphcache::test {
namespace {

// The library queries the version once, so this comes before the first call.
[[maybe_unused]] const bool is_old = (hostrt::set_driver_version(12040), true);

using SignatureOlderTest = SignatureTest;

TEST_F(SignatureOlderTest, NodesOfAllTypesAreRead) {
  ASSERT_EQ(driver().version, 12040);
  int number = 0;
  const auto work = [&](int value) {
    return [&, value](cudaStream_t s) {
      void* memory = nullptr;
      CUDA_OK(launch(blend, 1, 32, s, at(0), 32, 3, value));
      CUDA_OK(cudaMemsetAsync(at(100), value, 64, s));
      CUDA_OK(cudaMemcpyAsync(at(200), at(0), 64, cudaMemcpyDeviceToDevice, s));
      CUDA_OK(cudaLaunchHostFunc(s, add_one, &number));
      if (value < 0) {
        CUDA_OK(cudaMallocAsync(&memory, 64, s));
        CUDA_OK(cudaFreeAsync(memory, s));
      }
    };
  };
  EXPECT_TRUE(alike(work(1), work(2)));
  EXPECT_FALSE(described(work(-1)).signature);
}

TEST_F(SignatureOlderTest, AttributesThatItDoesNotHaveAreNotRead) {
  hostrt::reset_calls();
  EXPECT_TRUE(kernels(1).signature);
  EXPECT_EQ(hostrt::calls("cudaGraphKernelNodeGetAttribute"), 8u);
}

#if CUDART_VERSION >= 13020
TEST_F(SignatureOlderTest, TheNewerGetterIsRefused) {
  const Described set = described([this](cudaStream_t s) { CUDA_OK(cudaMemsetAsync(at(0), 1, 64, s)); });
  cudaGraphNodeParams params = {};
  EXPECT_EQ(cudaGraphNodeGetParams(set.graph.nodes[0], &params), cudaErrorCallRequiresNewerDriver);
  EXPECT_EQ(cudaGetLastError(), cudaErrorCallRequiresNewerDriver);
}
#endif

TEST_F(SignatureOlderTest, ACacheSharesAndRunsRight) {
  constexpr int kCount = 64;
  Cache cache({.max_executables = 1});
  for (int round = 0; round < 3; ++round) {
    for (const int which : {3, 5}) {
      const absl::StatusOr<Outcome> outcome = cache.run(key("older", which), *stream, [&](cudaStream_t s) {
        CUDA_OK(cudaMemsetAsync(at(0), which, kCount * sizeof(int), s));
        CUDA_OK(cudaMemcpyAsync(at(kCount), at(0), kCount * sizeof(int), cudaMemcpyDeviceToDevice, s));
        CUDA_OK(launch(blend, 2, 32, s, at(0), kCount, which, 1));
      });
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      if (round > 0) {
        EXPECT_EQ(*outcome, Outcome::kSwitched);
      }
      CUDA_OK(cudaStreamSynchronize(*stream));
      const std::vector<int> found = memory->read();
      const int bytes = which * 0x01010101;
      for (int i = 0; i < kCount; ++i) {
        ASSERT_EQ(found[static_cast<std::size_t>(i)], which * bytes + 1 + i);
        ASSERT_EQ(found[static_cast<std::size_t>(kCount + i)], bytes);
      }
    }
  }
}

}  // namespace
}  // namespace graphcache::test
