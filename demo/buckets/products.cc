#include "products.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <random>

#include "../cublas.h"
#include "../support.h"

namespace demo {
namespace {

constexpr int kRows = 128;         // of the (square) weights, the inputs and the result
constexpr int kColumns = 8;        // of inputs and result, for each block of the bucket's grids
constexpr std::size_t kStep = 64;  // distance between two nodes' weights or two buckets' inputs

int columns(const Bucket& bucket) { return kColumns * bucket.blocks; }

const Cublas& cublas() {
  if (const Cublas* found = on_gpu() ? Cublas::get() : nullptr; found != nullptr) return *found;
  absl::FPrintF(stderr, "--cublas: %s\n", on_gpu() ? "no libcublas here" : "cuBLAS needs a GPU");
  std::exit(2);
}

template <class T>
T* allocated(std::size_t count) {
  void* memory = nullptr;
  DEMO_CUDA(cudaMalloc(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}

// Not integers, so that another order of a sum gives other bits.
float* random_numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(random() % 20011) / 20011.0f - 0.5f;
  float* const memory = allocated<float>(count);
  DEMO_CUDA(cudaMemcpy(memory, numbers.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  DEMO_CUDA(cudaStreamSynchronize(cudaStreamLegacy));  // The copy may still be running, and other streams do not wait.
  return memory;
}

}  // namespace

Products::Products(cudaStream_t stream, int nodes, const std::vector<Bucket>& buckets) : cublas_(cublas()) {
  int widest = 0;
  for (const Bucket& bucket : buckets) widest = std::max(widest, columns(bucket));
  const auto matrix = static_cast<std::size_t>(kRows) * static_cast<std::size_t>(widest);
  weights_ = random_numbers(kRows * kRows + kStep * static_cast<std::size_t>(nodes), 1);
  inputs_ = random_numbers(matrix + kStep * buckets.size(), 2);
  result_ = allocated<float>(matrix);
  workspace_ = allocated<char>(Cublas::kWorkspaceBytes);
  check_cublas(cublas_.create(&handle_), "cublasCreate");
  check_cublas(cublas_.set_stream(handle_, stream), "cublasSetStream");
  check_cublas(cublas_.set_workspace(handle_, workspace_, Cublas::kWorkspaceBytes), "cublasSetWorkspace");
}

Products::~Products() {
  check_cublas(cublas_.destroy(handle_), "cublasDestroy");
  for (void* memory :
       {workspace_, static_cast<void*>(weights_), static_cast<void*>(inputs_), static_cast<void*>(result_)}) {
    DEMO_CUDA(cudaFree(memory));
  }
}

void Products::enqueue(const Bucket& bucket, int node) const {
  const float alpha = 1.0f + 0.01f * static_cast<float>(bucket.variant);
  const float beta = 0;
  const float* const weights = weights_ + kStep * static_cast<std::size_t>(node);
  const float* const inputs = inputs_ + kStep * bucket.variant;
  check_cublas(cublas_.sgemm(handle_, 0, 0, kRows, columns(bucket), kRows, &alpha, weights, kRows, inputs, kRows, &beta,
                             result_, kRows),
               "cublasSgemm");
}

const float* Products::result() const { return result_; }

int Products::size(const Bucket& bucket) { return kRows * columns(bucket); }

}  // namespace demo
