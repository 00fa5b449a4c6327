#include "products.h"

#include <absl/strings/str_format.h>
#include <dlfcn.h>
#include <library_types.h>

#include <cstddef>
#include <cstdlib>
#include <type_traits>

#include "kernels.h"

namespace demo {
namespace {

// What NVIDIA recommends for this architecture.
constexpr std::size_t kWorkspaceBytes = 32 << 20;

void check_cublas(int status, const char* call) {
  if (status == 0) return;
  absl::FPrintF(stderr, "%s: cublasStatus_t %d\n", call, status);
  std::exit(1);
}

// The few functions of cublas_v2.h that are used here, with its enumerations as numbers.
struct Library {
  static constexpr int kAsItIs = 0, kTransposed = 1;  // cublasOperation_t
  static constexpr int kInFloat = 68;                 // CUBLAS_COMPUTE_32F
  static constexpr int kAnyAlgorithm = -1;            // CUBLAS_GEMM_DEFAULT

  int (*create)(void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*set_stream)(void*, cudaStream_t) = nullptr;  // Takes the workspace away.
  int (*set_workspace)(void*, void*, std::size_t) = nullptr;
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, cudaDataType, int, const void*, cudaDataType,
              int, const void*, void*, cudaDataType, int, int, int) = nullptr;

  // Null if there is none.
  static const Library* get() {
    static Library library;
    static const bool found = on_gpu() && library.load();
    return found ? &library : nullptr;
  }

 private:
  bool load() {
    for (const char* file : {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so"}) {
      void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      const auto find = [&](const char* name, auto* function) {
        *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
        return *function != nullptr;
      };
      return find("cublasCreate_v2", &create) && find("cublasDestroy_v2", &destroy) &&
             find("cublasSetStream_v2", &set_stream) && find("cublasSetWorkspace_v2", &set_workspace) &&
             find("cublasGemmEx", &gemm);
    }
    return false;
  }
};

}  // namespace

Products::Products(cudaStream_t stream) : stream_(stream) {
  const Library* const library = Library::get();
  if (library == nullptr) return;
  check_cublas(library->create(&handle_), "cublasCreate");
  check_cublas(library->set_stream(handle_, stream), "cublasSetStream");
  check_cublas(library->set_workspace(handle_, memory_.allocate<char>(kWorkspaceBytes), kWorkspaceBytes),
               "cublasSetWorkspace");
}

Products::~Products() {
  if (handle_ != nullptr) check_cublas(Library::get()->destroy(handle_), "cublasDestroy");
}

bool Products::by_cublas() { return Library::get() != nullptr; }

void Products::enqueue(const Model& model, const Tensor& tensor, const Bf16* in, void* out, int rows, Into into) const {
  const Bf16* const weights = model.weights(tensor);
  const bool add = into == Into::kAddedToBf16;
  const bool is_float = into == Into::kFloat;
  if (handle_ == nullptr) {
    return launch_over(size(rows) * size(tensor.outputs), product, stream_, weights, in, out, rows, tensor.inputs,
                       tensor.outputs, add, is_float);
  }
  // To cuBLAS, whose matrices are column by column, each of ours is its own transpose.
  const float one = 1.0f;
  const float beta = add ? 1.0f : 0.0f;
  check_cublas(Library::get()->gemm(handle_, Library::kTransposed, Library::kAsItIs, tensor.outputs, rows,
                                    tensor.inputs, &one, weights, CUDA_R_16BF, tensor.inputs, in, CUDA_R_16BF,
                                    tensor.inputs, &beta, out, is_float ? CUDA_R_32F : CUDA_R_16BF, tensor.outputs,
                                    Library::kInFloat, Library::kAnyAlgorithm),
               "cublasGemmEx");
}

}  // namespace demo
