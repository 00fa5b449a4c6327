// Exits with 0 if this build's CUDA runtime can use the machine's driver and GPU, else with 1. Used by demo/run.

#include <cuda_runtime_api.h>

int main() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 ? 0 : 1;
}
