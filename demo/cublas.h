// cuBLAS, loaded at run time, so that its users build and run without it.
#pragma once

#include <absl/strings/str_format.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <library_types.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace demo {

// The few functions of cublas_v2.h that the demos use, with numbers instead of enumerators. All return a
// cublasStatus_t, which is 0 for success.
struct Cublas {
  static constexpr int kAsItIs = 0, kTransposed = 1;  // cublasOperation_t
  static constexpr int kPlain = 0, kTf32 = 3;         // cublasMath_t: CUBLAS_DEFAULT_MATH, CUBLAS_TF32_TENSOR_OP_MATH
  static constexpr int kInFloat = 68;                 // CUBLAS_COMPUTE_32F
  static constexpr int kAnyAlgorithm = -1;            // CUBLAS_GEMM_DEFAULT
  static constexpr std::size_t kWorkspaceBytes = 32 << 20;  // NVIDIA's recommendation for compute capability 9.0

  using Handle = void*;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;  // also removes the workspace
  int (*set_workspace)(Handle, void*, std::size_t) = nullptr;
  int (*set_math_mode)(Handle, int) = nullptr;
  int (*sgemm)(Handle, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*,
               float*, int) = nullptr;
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, cudaDataType, int, const void*, cudaDataType,
              int, const void*, void*, cudaDataType, int, int, int) = nullptr;

  // Null if there is no cuBLAS, or one without these functions. Thread-safe.
  static const Cublas* get() {
    static Cublas cublas;
    static const bool found = cublas.load();
    return found ? &cublas : nullptr;
  }

 private:
  bool load() {
    void* library = nullptr;
    for (const char* file : {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so"}) {
      if (library == nullptr) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return false;
    const auto find = [library](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      return *function != nullptr;
    };
    return find("cublasCreate_v2", &create) && find("cublasDestroy_v2", &destroy) &&
           find("cublasSetStream_v2", &set_stream) && find("cublasSetWorkspace_v2", &set_workspace) &&
           find("cublasSetMathMode", &set_math_mode) && find("cublasSgemm_v2", &sgemm) && find("cublasGemmEx", &gemm);
  }
};

// Ends the program with status 1 and a message if the call failed.
inline void check_cublas(int status, const char* call) {
  if (status == 0) return;
  absl::FPrintF(stderr, "%s: cublasStatus_t %d\n", call, status);
  std::exit(1);
}

}  // namespace demo
