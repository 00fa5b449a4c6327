#include "products.h"

#include <absl/strings/str_format.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <random>
#include <string>
#include <type_traits>

#include "../support.h"

namespace demo {
namespace {

constexpr int kRows = 128;         // Of the weights, which are square, and of inputs and result.
constexpr int kColumns = 8;        // Of inputs and result, for each block of the bucket's grids.
constexpr std::size_t kStep = 64;  // Numbers between one node's weights, or one bucket's inputs, and the next one's.
constexpr std::size_t kWorkspaceBytes = 32 << 20;

int columns(const Bucket& bucket) { return kColumns * bucket.blocks; }

[[noreturn]] void unavailable(const std::string& why) {
  absl::FPrintF(stderr, "--cublas: %s\n", why);
  std::exit(2);
}

void check_cublas(int status, const char* call) {
  if (status == 0) return;
  absl::FPrintF(stderr, "%s: cublasStatus_t %d\n", call, status);
  std::exit(1);
}

template <class T>
T* allocated(std::size_t count) {
  void* memory = nullptr;
  DEMO_CUDA(cudaMalloc(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}

// Not integers: another order of a sum gives other bits.
float* random_numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = static_cast<float>(random() % 20011) / 20011.0f - 0.5f;
  float* const memory = allocated<float>(count);
  DEMO_CUDA(cudaMemcpy(memory, numbers.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  return memory;
}

}  // namespace

// The few functions of cublas_v2.h that are used here, with its enumerations as numbers.
struct Products::Library {
  int (*create)(void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*set_stream)(void*, cudaStream_t) = nullptr;  // Takes the workspace away.
  int (*set_workspace)(void*, void*, std::size_t) = nullptr;
  int (*sgemm)(void*, int, int, int, int, int, const float*, const float*, int, const float*, int, const float*, float*,
               int) = nullptr;

  Library() {
    if (std::string(kRuntime) != "cuda") unavailable("needs a GPU: cuBLAS does not run on hostrt");
    void* library = nullptr;
    for (const char* file : {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so"}) {
      if (library == nullptr) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) unavailable(absl::StrFormat("no libcublas here (%s)", dlerror()));
    const auto find = [&](const char* name, auto* function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      if (*function == nullptr) unavailable(absl::StrFormat("this libcublas has no %s", name));
    };
    find("cublasCreate_v2", &create);
    find("cublasDestroy_v2", &destroy);
    find("cublasSetStream_v2", &set_stream);
    find("cublasSetWorkspace_v2", &set_workspace);
    find("cublasSgemm_v2", &sgemm);
  }
};

Products::Products(cudaStream_t stream, int nodes, const std::vector<Bucket>& buckets)
    : library_(std::make_unique<Library>()) {
  int widest = 0;
  for (const Bucket& bucket : buckets) widest = std::max(widest, columns(bucket));
  const auto matrix = static_cast<std::size_t>(kRows) * static_cast<std::size_t>(widest);
  weights_ = random_numbers(kRows * kRows + kStep * static_cast<std::size_t>(nodes), 1);
  inputs_ = random_numbers(matrix + kStep * buckets.size(), 2);
  result_ = allocated<float>(matrix);
  workspace_ = allocated<char>(kWorkspaceBytes);
  check_cublas(library_->create(&handle_), "cublasCreate");
  check_cublas(library_->set_stream(handle_, stream), "cublasSetStream");
  check_cublas(library_->set_workspace(handle_, workspace_, kWorkspaceBytes), "cublasSetWorkspace");
}

Products::~Products() {
  check_cublas(library_->destroy(handle_), "cublasDestroy");
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
  check_cublas(library_->sgemm(handle_, 0, 0, kRows, columns(bucket), kRows, &alpha, weights, kRows, inputs, kRows,
                               &beta, result_, kRows),
               "cublasSgemm");
}

const float* Products::result() const { return result_; }

int Products::size(const Bucket& bucket) { return kRows * columns(bucket); }

}  // namespace demo
