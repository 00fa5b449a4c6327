// The kernels of the suites update_answers*_test.cc, which report their launch. For GPUs only.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "update_kernels.h"

namespace graphcache::test {
namespace {

__device__ bool is_first() { return blockIdx.x == 0 && threadIdx.x == 0; }

__device__ int cluster_size() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
#else
  return 1;
#endif
}

__device__ void fill_report(LaunchReport* report, int kernel, int value) {
  unsigned shared_bytes;
  asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(shared_bytes));
  report->kernel = kernel;
  report->grid = static_cast<int>(gridDim.x);
  report->block = static_cast<int>(blockDim.x);
  report->shared_bytes = static_cast<int>(shared_bytes);
  report->cluster = cluster_size();
  report->cooperative = cooperative_groups::this_grid().is_valid() ? 1 : 0;
  report->value = value;
}

__device__ int sum(const int* numbers, int count) {
  int total = 0;
  for (int i = 0; i < count; ++i) total += numbers[i];
  return total;
}

}  // namespace

__global__ void report_launch(LaunchReport* report, int value) {
  if (is_first()) fill_report(report, 1, value);
}

__global__ void report_launch_otherwise(LaunchReport* report, int value) {
  if (is_first()) fill_report(report, 2, value);
}

__global__ void report_largest_cluster(LaunchReport* report, int) {
  if (threadIdx.x == 0) atomicMax(&report->cluster, cluster_size());
}

__global__ void report_narrow(LaunchReport* report) {
  if (!is_first()) return;
  report->kernel = 3;
  report->value = -3;
}

__global__ void report_wide(char letter, LaunchReport* report, double real, Mixed mixed, int value) {
  if (!is_first()) return;
  report->kernel = 4;
  report->value = letter + static_cast<int>(real) + mixed.letter + static_cast<int>(mixed.real) + mixed.small +
                  sum(mixed.numbers, 3) + mixed.last + value;
}

__global__ void report_large(Large large, LaunchReport* report) {
  if (!is_first()) return;
  report->kernel = 5;
  report->value = sum(large.numbers, 1000);
}

}  // namespace graphcache::test
