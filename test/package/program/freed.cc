// A kernel that reads memory after its end: to be compiled with AddressSanitizer, for a hostrt without it.
#include <cuda_runtime_api.h>
#include <graphcache/hostrt.h>

#include <cstdio>

void read(const int* from) { std::printf("read %d\n", *from); }
GRAPHCACHE_HOST_KERNEL(read)

int main() {
  int* memory = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&memory), sizeof(int));
  cudaFree(memory);
  void* arguments[] = {&memory};
  return cudaLaunchKernel(reinterpret_cast<const void*>(read), dim3(1), dim3(1), arguments, 0, nullptr);
}
