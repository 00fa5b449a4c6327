#include "products.h"

#include <cstddef>

#include "../cublas.h"
#include "kernels.h"

namespace demo {
namespace {

// Null if there is no cuBLAS.
const Cublas* cublas() { return on_gpu() ? Cublas::get() : nullptr; }

}  // namespace

Products::Products(cudaStream_t stream) : stream_(stream) {
  const Cublas* const library = cublas();
  if (library == nullptr) return;
  check_cublas(library->create(&handle_), "cublasCreate");
  check_cublas(library->set_stream(handle_, stream), "cublasSetStream");
  check_cublas(
      library->set_workspace(handle_, memory_.allocate<char>(Cublas::kWorkspaceBytes), Cublas::kWorkspaceBytes),
      "cublasSetWorkspace");
}

Products::~Products() {
  if (handle_ != nullptr) check_cublas(cublas()->destroy(handle_), "cublasDestroy");
}

bool Products::by_cublas() { return cublas() != nullptr; }

void Products::enqueue(const Model& model, const Tensor& tensor, const Bf16* in, void* out, int rows, Into into) const {
  const Bf16* const weights = model.weights(tensor);
  const bool add = into == Into::kAddedToBf16;
  const bool is_float = into == Into::kFloat;
  if (handle_ == nullptr) {
    return launch_over(size(rows) * size(tensor.outputs), product, stream_, weights, in, out, rows, tensor.inputs,
                       tensor.outputs, add, is_float);
  }
  // cuBLAS matrices are column-major, so each of ours is its own transpose there.
  const float one = 1.0f;
  const float beta = add ? 1.0f : 0.0f;
  check_cublas(
      cublas()->gemm(handle_, Cublas::kTransposed, Cublas::kAsItIs, tensor.outputs, rows, tensor.inputs, &one, weights,
                     CUDA_R_16BF, tensor.inputs, in, CUDA_R_16BF, tensor.inputs, &beta, out,
                     is_float ? CUDA_R_32F : CUDA_R_16BF, tensor.outputs, Cublas::kInFloat, Cublas::kAnyAlgorithm),
      "cublasGemmEx");
}

}  // namespace demo
