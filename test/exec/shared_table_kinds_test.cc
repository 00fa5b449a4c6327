// The kinds of nodes that rows can change, on either runtime (docs/semantics.md, "What the device can write"). If the
// device sets a grid that it must not set, other blocks run without any error, so the tests check what has run.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "sharing_support.h"

namespace graphcache::test {
namespace {

class SharedTableKindsTest : public SharingTest {
 protected:
  SharedTableKindsTest() { use(forced(Patching::kDeviceUpdated, forced(Sharing::kTable, {.max_executables = 8}))); }

  static bool has_clusters() {
    int major = 0;
    CUDA_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }

  // Counts its threads at memory[0], and blends with `factor` as far as the grid reaches.
  absl::StatusOr<Outcome> run_in_clusters(unsigned cluster, unsigned grid, int factor) {
    return run(key("clusters", cluster, grid, factor), [&](Recorder& rec) {
      CUDA_OK(cudaMemsetAsync(at(0), 0, sizeof(int), rec.stream()));
      CUDA_OK(launch_in_clusters(count_threads, grid, 32, cluster, rec.stream(), at(0)));
      CUDA_OK(launch_in_clusters(blend, grid, 32, cluster, rec.stream(), at(1), 900, factor, 3));
      CUDA_OK(launch(blend, dim3(grid), 32, rec.stream(), at(2), 900, 3, factor));
    });
  }
};

TEST_F(SharedTableKindsTest, ArgumentsOfKernelsInClustersAreForRowsAndTheirGridsAreNot) {
  if (!has_clusters()) GTEST_SKIP() << "clusters need compute capability 9.0";
  take_turns(3, 5, [&](int which) { return run_in_clusters(2, 8, 1 + which); });
  const std::uint64_t by_rows = cache->stats().set_switches;
  EXPECT_EQ(by_rows, 14u);
  // Grids of 4, 8, 12 and 16 blocks, each in clusters of 2 and of 4.
  take_turns(3, 8, [&](int which) { return run_in_clusters(which % 2 == 0 ? 2 : 4, 4u + 4u * (which / 2), 3); });
  EXPECT_EQ(cache->stats().failed, 0u);
}

// Sets the attribute of the most recently captured node.
void set_last_node(const Recorder& rec, cudaLaunchAttributeID id, const cudaLaunchAttributeValue& value) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  CUDA_OK(cudaStreamGetCaptureInfo(rec.stream(), &status, nullptr, nullptr, &nodes, nullptr, &count));
#else
  CUDA_OK(cudaStreamGetCaptureInfo_v2(rec.stream(), &status, nullptr, nullptr, &nodes, &count));
#endif
  if (status != cudaStreamCaptureStatusActive) return;
  ASSERT_EQ(count, 1u);
  CUDA_OK(cudaGraphKernelNodeSetAttribute(nodes[0], id, &value));
}

TEST_F(SharedTableKindsTest, SlotsOfGridsOfKernelsInClustersAreSetByTheHost) {
  if (!has_clusters()) GTEST_SKIP() << "clusters need compute capability 9.0";
  for (const int which : {1, 2, 1, 2}) {
    for (const unsigned grid : {8u, 4u, 12u}) {
      ASSERT_SUCCESS(run(key("k", which), params(grid, which), [&](Recorder& rec, Slot<unsigned> g, Slot<int> v) {
        rec.memset(at(0), 0, sizeof(int));
        rec.launch(count_threads, {g, 32}, at(0));
        cudaLaunchAttributeValue value = {};
        value.clusterDim.x = 4;
        value.clusterDim.y = value.clusterDim.z = 1;
        set_last_node(rec, cudaLaunchAttributeClusterDimension, value);
        rec.launch(blend, {g, 32}, at(5), 900, v, which);
      }));
    }
  }
  EXPECT_GT(cache->stats().set_switches, 0u);
  EXPECT_EQ(cache->stats().refused_device_updates, 0u);
}

// Branches, copies, sets and host functions beside nodes that rows change, and edges that let a kernel begin early.
TEST_F(SharedTableKindsTest, AllElseBesideThem) {
  Stream side;
  const auto run_member = [&](int which) {
    return run(key("beside", which), [&, which](Recorder& rec) {
      const auto grid = static_cast<unsigned>(1 + which % 5);
      CUDA_OK(launch(blend, grid, 32, rec.stream(), at(0), 400, which, 2));
      let_follow(side, rec.stream());
      CUDA_OK(cudaMemsetAsync(at(500), 1, 64 * sizeof(int), side));
      CUDA_OK(launch(blend, grid, 32, side, at(500), 400, 3, which));
      CUDA_OK(cudaLaunchHostFunc(
          side, [](void*) {}, nullptr));
      CUDA_OK(launch(blend, 2, 32, side, at(700), 100, which, which));
      CUDA_OK(cudaMemcpyAsync(at(300), at(0), 64 * sizeof(int), cudaMemcpyDeviceToDevice, rec.stream()));
      CUDA_OK(launch(blend_in, grid, 32, rec.stream(), at(100), at(300), 160, which));
      let_follow(rec.stream(), side);
      CUDA_OK(launch(blend, grid, 64, rec.stream(), at(0), kSize, 5, which));
    });
  };
  take_turns(3, 9, run_member);
  EXPECT_EQ(cache->stats().set_switches, 26u);
  EXPECT_EQ(cache->stats().instantiations, 1u);
}

}  // namespace
}  // namespace graphcache::test
