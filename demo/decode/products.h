// Products of a worker's activations with weights: by cuBLAS where there is one, else by a kernel of the demo's own.
// cuBLAS is looked for at run time, so that the demo builds and runs without it.
#pragma once

#include <cuda_runtime_api.h>

#include "memory.h"
#include "network.h"

namespace demo {

// A worker has one of its own: a cuBLAS handle with the worker's stream and a workspace.
class Products {
 public:
  enum class Into { kBf16, kAddedToBf16, kFloat };

  explicit Products(cudaStream_t stream);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Whether it is cuBLAS that computes them.
  static bool by_cublas();

  // out = in * weights^T: `rows` rows of the tensor's inputs become as many of its outputs.
  void enqueue(const Model& model, const Tensor& tensor, const Bf16* in, void* out, int rows, Into into) const;

 private:
  const cudaStream_t stream_;
  DeviceMemory memory_;
  void* handle_ = nullptr;
};

}  // namespace demo
