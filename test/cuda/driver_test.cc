// A driver that lacks a function of CUDA 12.0. The library looks its functions up once in a process, so this suite is a
// program of its own.
#include "cuda/driver.h"

#include <gtest/gtest.h>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "support.h"

namespace graphcache::test {
namespace {

TEST(DriverTest, NoCacheBeginsWithoutAFunctionOfCuda12) {
  hostrt::reset();
  hostrt::fail_call("cudaGetDriverEntryPoint", 5, cudaErrorUnknown);
  ASSERT_STREQ(driver().missing, "cuGraphExecKernelNodeSetParams");
  {
    Cache cache;
    Stream stream;
    int calls = 0;
    const auto fn = [&](cudaStream_t) { ++calls; };
    for (int i = 0; i < 2; ++i) {
      const absl::Status error = cache.run(key("k"), stream, fn).status();
      EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_TRUE(mentions(error, "the driver does not have cuGraphExecKernelNodeSetParams")) << error;
      EXPECT_TRUE(mentions(error, "it is for CUDA 1")) << error;
      EXPECT_FALSE(cache.warm(key("k"), stream, fn).ok());
    }
    EXPECT_EQ(calls, 0);
    EXPECT_FALSE(cache.status().ok());
    cache.clear();
    EXPECT_TRUE(cache.entries().empty());
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(hostrt::ledger(), hostrt::Ledger());
  EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
  hostrt::reset();
}

}  // namespace
}  // namespace graphcache::test
