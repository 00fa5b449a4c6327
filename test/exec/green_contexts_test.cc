// Keys on the stream of a green context stay on its multiprocessors, however their graphs are patched, updated and
// switched. For GPUs only, because hostrt has no green contexts.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/compat.h"
#include "green_contexts_kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

constexpr int kBlocks = 1024;
constexpr unsigned kThreads = 32;

template <class F>
bool find(const char* name, F* out) {
  *out = reinterpret_cast<F>(driver_function(name, 12080));
  return *out != nullptr;
}

class GreenContextTest : public testing::Test {
 protected:
  void SetUp() override {
    CUDA_OK(cudaFree(nullptr));
    CUresult (*resource)(CUdevice, CUdevResource*, CUdevResourceType) = nullptr;
    CUresult (*split)(CUdevResource*, unsigned*, const CUdevResource*, CUdevResource*, unsigned, unsigned) = nullptr;
    CUresult (*describe)(CUdevResourceDesc*, CUdevResource*, unsigned) = nullptr;
    CUresult (*create)(CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned) = nullptr;
    CUresult (*stream_of)(CUstream*, CUgreenCtx, unsigned, int) = nullptr;
    if (!find("cuDeviceGetDevResource", &resource) || !find("cuDevSmResourceSplitByCount", &split) ||
        !find("cuDevResourceGenerateDesc", &describe) || !find("cuGreenCtxCreate", &create) ||
        !find("cuGreenCtxStreamCreate", &stream_of) || !find("cuGreenCtxDestroy", &destroy)) {
      GTEST_SKIP() << "the driver has no green contexts";
    }
    CUdevResource all, part, rest;
    unsigned groups = 1;
    CUdevResourceDesc description = nullptr;
    ASSERT_EQ(resource(0, &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    ASSERT_EQ(split(&part, &groups, &all, &rest, 0, 16), CUDA_SUCCESS);
    ASSERT_EQ(describe(&description, &part, 1), CUDA_SUCCESS);
    ASSERT_EQ(create(&context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    ASSERT_EQ(stream_of(&stream, context, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    size = part.sm.smCount;
    ASSERT_LT(size, all.sm.smCount);
  }
  void TearDown() override {
    if (stream != nullptr) {
      CUDA_OK(cudaStreamDestroy(stream));
    }
    if (context != nullptr) {
      EXPECT_EQ(destroy(context), CUDA_SUCCESS);
    }
  }

  // A run of `nodes` kernels that add `value` from every block, and `constant` from the key.
  absl::StatusOr<Outcome> run(Cache& cache, int number, int value, int nodes) {
    wanted += kBlocks * nodes * (value + number);
    return cache.run(key("k", number), stream, params(value), [&, number, nodes](Recorder& rec, Slot<int> v) {
      for (int i = 0; i < nodes; ++i) {
        rec.launch(where, {kBlocks, kThreads}, places.get(), sum.get(), v);
        rec.launch(where, {kBlocks, kThreads}, places.get(), sum.get(), number);
      }
    });
  }
  // Whether the work is right, and on the context's multiprocessors.
  void expect_in_context(const std::string& when) {
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(sum.first(), wanted) << when;
    const std::vector<unsigned> found = places.read();
    EXPECT_LE(std::set<unsigned>(found.begin(), found.end()).size(), size) << when;
    places.write(std::vector<unsigned>(kBlocks));
  }
  void expect_runs_in_context(const Options& options, int keys, int nodes, const std::string& what) {
    Cache cache(options);
    for (int i = 0; i < 12; ++i) {
      const auto outcome = run(cache, i % keys, 1 + i / 2, nodes);
      ASSERT_SUCCESS(outcome) << what << ": " << outcome.status();
      expect_in_context(what + ", run " + std::to_string(i) + ": " + to_string(*outcome));
    }
  }

  CUresult (*destroy)(CUgreenCtx) = nullptr;
  CUgreenCtx context = nullptr;
  cudaStream_t stream = nullptr;
  unsigned size = 0;
  int wanted = 0;
  DeviceBuffer<unsigned> places{kBlocks};
  DeviceBuffer<int> sum{1};
};

TEST_F(GreenContextTest, PatchedByTheHost) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run(cache, 0, 1, 2));
  expect_in_context("captured");
  for (int value = 2; value < 5; ++value) {
    EXPECT_RUN(kPatched, run(cache, 0, value, 2)) << explain(cache, key("k", 0));
    expect_in_context("patched");
    EXPECT_RUN(kReplayed, run(cache, 0, value, 2));
    expect_in_context("replayed");
  }
  EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
}

TEST_F(GreenContextTest, NodesThatTheDeviceCannotWrite) {
  expect_runs_in_context({}, 1, 30, "by default");
  expect_runs_in_context(forced(Patching::kDeviceUpdated), 1, 3, "updated by the device");
}

// Of one executable that is switched, or made again.
TEST_F(GreenContextTest, KeysThatTakeTurns) {
  for (const Sharing sharing : {Sharing::kUpdates, Sharing::kUpdatesAcross, Sharing::kTable, Sharing::kNever}) {
    const std::string what = "sharing " + std::to_string(static_cast<int>(sharing));
    expect_runs_in_context(forced(sharing, {.max_executables = 1}), 3, 3, what);
  }
}

TEST_F(GreenContextTest, BesideAKeyOnAnOrdinaryStream) {
  Stream ordinary;
  Cache cache(forced(Sharing::kUpdatesAcross, {.max_executables = 1}));
  for (int i = 0; i < 6; ++i) {
    const cudaStream_t green = std::exchange(stream, static_cast<cudaStream_t>(ordinary));
    EXPECT_SUCCESS(run(cache, 100 + i % 2, i, 2));
    CUDA_OK(cudaStreamSynchronize(stream));
    stream = green;
    EXPECT_SUCCESS(run(cache, i % 2, i, 2));
    expect_in_context("in turn");
  }
}

}  // namespace
}  // namespace graphcache::test
