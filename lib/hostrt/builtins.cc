// The variables that a kernel reads as threadIdx, blockIdx, blockDim, gridDim and warpSize.
//
// <device_launch_parameters.h> declares them extern const, so this file must not include it. Here they are ordinary
// variables with the same C names, which the scheduler sets before each call of a kernel.

#include "builtins.h"

#include "graphcache/hostrt.h"

extern "C" {
uint3 threadIdx = {0, 0, 0};
uint3 blockIdx = {0, 0, 0};
dim3 blockDim(1, 1, 1);
dim3 gridDim(1, 1, 1);
int warpSize = 32;
}

namespace graphcache::hostrt {
namespace {

dim3 cluster_size(1, 1, 1);
int device_of_kernel = 0;

}  // namespace

void set_dimensions(const dim3& grid, const dim3& block, const dim3& cluster) {
  gridDim = grid;
  blockDim = block;
  cluster_size = cluster;
}

void set_device(int device) { device_of_kernel = device; }

void set_indices(const uint3& block_index, const uint3& thread_index) {
  blockIdx = block_index;
  threadIdx = thread_index;
}

dim3 cluster_dim() { return cluster_size; }

int current_device() { return device_of_kernel; }

}  // namespace graphcache::hostrt
