// Exits 0 on a machine whose driver and GPU this build's CUDA runtime can use, else 1. demo/run asks it.

#include <cuda_runtime_api.h>

int main() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 ? 0 : 1;
}
