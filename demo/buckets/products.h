// cuBLAS products as nodes of the loop.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "../cublas.h"
#include "loop.h"

namespace demo {

// result = alpha * weights * inputs in single precision. The weights depend on the node; alpha, the address of the
// inputs and the number of columns depend on the bucket. cuBLAS chooses the kernel.
class Products {
 public:
  // Ends the program with status 2 and a message if there is no cuBLAS.
  Products(cudaStream_t stream, int nodes, const std::vector<Bucket>& buckets);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  void enqueue(const Bucket& bucket, int node) const;
  // All products write their result here.
  const float* result() const;
  // Size of the bucket's result in numbers.
  static int size(const Bucket& bucket);

 private:
  const Cublas& cublas_;
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  float* weights_ = nullptr;
  float* inputs_ = nullptr;
  float* result_ = nullptr;
};

}  // namespace demo
