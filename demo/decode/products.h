// Products of a worker's activations with weights: by cuBLAS if it is installed, else by the demo's own kernel. cuBLAS
// is loaded at run time, so that the demo builds and runs without it.
#pragma once

#include <cuda_runtime_api.h>

#include "memory.h"
#include "network.h"

namespace demo {

// Each worker has its own: a cuBLAS handle with the worker's stream and a workspace.
class Products {
 public:
  enum class Into { kBf16, kAddedToBf16, kFloat };

  explicit Products(cudaStream_t stream);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Whether cuBLAS computes them.
  static bool by_cublas();

  // out = in * weights^T: turns `rows` rows of the tensor's inputs into as many rows of its outputs.
  void enqueue(const Model& model, const Tensor& tensor, const Bf16* in, void* out, int rows, Into into) const;

 private:
  const cudaStream_t stream_;
  DeviceMemory memory_;
  void* handle_ = nullptr;
};

}  // namespace demo
