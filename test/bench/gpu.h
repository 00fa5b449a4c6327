// Shared by the benchmarks on a GPU: checked calls, and the graph that they replay.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../kernels.h"
#include "../launch.h"

namespace bench {

#define CHECK(call) ::bench::check((call), #call)
inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

inline std::string machine() {
  cudaDeviceProp properties;
  int driver = 0;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  CHECK(cudaDriverGetVersion(&driver));
  return std::string(properties.name) + ", driver for CUDA " + std::to_string(driver / 1000) + "." +
         std::to_string(driver % 1000 / 10);
}

inline cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

template <class F>
cudaGraph_t captured(cudaStream_t stream, F&& enqueue) {
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(enqueue(stream));
  CHECK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

// A chain of kernels that each add 1 to some numbers, which thus count the kernels that ran.
class Counted {
 public:
  static constexpr int kCount = 32;

  explicit Counted(int nodes) : nodes_(nodes) {
    CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), kCount * sizeof(float)));
    CHECK(cudaMemset(data_, 0, kCount * sizeof(float)));
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { CHECK(cudaFree(data_)); }

  cudaError_t enqueue(cudaStream_t stream) const {
    for (int i = 0; i < nodes_; ++i) {
      const cudaError_t error = graphcache::test::launch(graphcache::test::add, 1, kCount, stream, data_, kCount, 1.0f);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  cudaGraphExec_t instantiate(cudaStream_t stream) const {
    cudaGraph_t graph = captured(stream, [this](cudaStream_t on) { return enqueue(on); });
    cudaGraphExec_t exec = nullptr;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
  }

  // Ends the program if the chain did not run `times` times. Waits for the device.
  void must_have_run(long times) const {
    std::vector<float> values(kCount);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(values.data(), data_, kCount * sizeof(float), cudaMemcpyDeviceToHost));
    if (values == std::vector<float>(kCount, static_cast<float>(times * nodes_))) return;
    std::fprintf(stderr, "%d nodes ran %f times, not %ld\n", nodes_, values[0] / nodes_, times);
    std::exit(1);
  }

 private:
  int nodes_;
  float* data_ = nullptr;
};

}  // namespace bench
