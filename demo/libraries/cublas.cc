// cuBLAS: a product by values, and a batch in which all pointers change.
#include <cublas_v2.h>

#include <deque>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kN = 48;
constexpr std::size_t kElements = std::size_t{kN} * kN;
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// A handle with a workspace of its own. Graphs that are captured with it share the workspace, so they must not run at
// the same time: it serves one stream.
struct Blas {
  Blas() { DEMO_LIBRARY(cublasCreate(&handle)); }
  ~Blas() { DEMO_LIBRARY(cublasDestroy(handle)); }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // In this order: cublasSetStream takes the workspace away.
  absl::Status use(cudaStream_t stream) const {
    DEMO_TRY(cublasSetStream(handle, stream));
    DEMO_TRY(cublasSetWorkspace(handle, workspace.get(), kWorkspaceBytes));
    return absl::OkStatus();
  }

  cublasHandle_t handle = nullptr;
  Array<char> workspace{kWorkspaceBytes};
};

// C = alpha * A * B + beta * C. B stays where it is.
absl::StatusOr<graphcache::Outcome> multiply(graphcache::Cache& cache, cudaStream_t stream, const Blas& blas,
                                             float alpha, const float* a, const float* b, float beta, float* c) {
  return cache.run(graphcache::key("multiply", kN, b), stream, graphcache::values(alpha, a, beta, c),
                   [&](cudaStream_t on, float alpha_now, const float* a_now, float beta_now, float* c_now) {
                     if (absl::Status used = blas.use(on); !used.ok()) return used;
                     DEMO_TRY(cublasSgemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, kN, kN, kN, &alpha_now, a_now, kN, b,
                                          kN, &beta_now, c_now, kN));
                     return absl::OkStatus();
                   });
}

constexpr int kBatch = 4;
struct Matrices {
  const float* a[kBatch];
  const float* b[kBatch];
  float* c[kBatch];
};

// C[i] = A[i] * B[i]. cuBLAS reads the pointers from device memory, so they are one slot.
absl::StatusOr<graphcache::Outcome> multiply_batch(graphcache::Cache& cache, cudaStream_t stream, const Blas& blas,
                                                   Matrices* in_memory, const Matrices& matrices) {
  return cache.run(graphcache::key("multiply batch", kN, kBatch), stream, graphcache::params(matrices),
                   [&](graphcache::Recorder& rec, graphcache::Slot<Matrices> slot) {
                     if (absl::Status used = blas.use(rec.stream()); !used.ok()) return used;
                     rec.write(in_memory, slot);
                     const float alpha = 1, beta = 0;  // On the host: the graph keeps these values.
                     DEMO_TRY(cublasSgemmBatched(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, kN, kN, kN, &alpha,
                                                 in_memory->a, kN, in_memory->b, kN, &beta, in_memory->c, kN, kBatch));
                     return absl::OkStatus();
                   });
}

// Column-major, as in cuBLAS.
std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b, float alpha = 1, float beta = 0,
                           const std::vector<float>& c = std::vector<float>(kElements)) {
  std::vector<float> result(kElements);
  for (int column = 0; column < kN; ++column) {
    for (int row = 0; row < kN; ++row) {
      float sum = 0;
      for (int k = 0; k < kN; ++k) sum += a[k * kN + row] * b[column * kN + k];
      result[column * kN + row] = alpha * sum + beta * c[column * kN + row];
    }
  }
  return result;
}

bool check_multiply(graphcache::Cache& cache, cudaStream_t stream) {
  const Blas blas;
  const std::vector<float> b = small_numbers(kElements, 1);
  const Array<float> b_there(b);
  std::deque<Array<float>> a_there, c_there;  // all at once, so that each run has other addresses
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    // Never 0 or 1, with which cuBLAS may do other work.
    const float alpha = 2 + static_cast<float>(i), beta = 0.5f - static_cast<float>(i);
    const std::vector<float> a = small_numbers(kElements, 2 + i), c = small_numbers(kElements, 20 + i);
    a_there.emplace_back(a);
    c_there.emplace_back(c);
    right &= succeeded(
        multiply(cache, stream, blas, alpha, a_there.back().get(), b_there.get(), beta, c_there.back().get()));
    right &= c_there.back().on_host(stream) == product(a, b, alpha, beta, c);
  }
  return right;
}

bool check_multiply_batch(graphcache::Cache& cache, cudaStream_t stream) {
  const Blas blas;
  const Array<Matrices> in_memory(1);
  // Two sets of matrices. In each run another matrix of a set comes first.
  std::vector<std::vector<float>> a, b;
  std::deque<Array<float>> a_there, b_there, c_there;
  for (unsigned i = 0; i < 2 * kBatch; ++i) {
    a_there.emplace_back(a.emplace_back(small_numbers(kElements, 20 + i)));
    b_there.emplace_back(b.emplace_back(small_numbers(kElements, 40 + i)));
    c_there.emplace_back(kElements);
  }
  bool right = true;
  for (std::size_t i = 0; i < kRuns; ++i) {
    Matrices matrices{};
    const auto at = [i](std::size_t k) { return kBatch * (i % 2) + (i + k) % kBatch; };
    for (std::size_t k = 0; k < kBatch; ++k) {
      matrices.a[k] = a_there[at(k)].get();
      matrices.b[k] = b_there[at(k + 1)].get();
      matrices.c[k] = c_there[at(k + 2)].get();
    }
    right &= succeeded(multiply_batch(cache, stream, blas, in_memory.get(), matrices));
    for (std::size_t k = 0; k < kBatch; ++k) {
      right &= c_there[at(k + 2)].on_host(stream) == product(a[at(k)], b[at(k + 1)]);
    }
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"cublas, values", 1, check_multiply, kCapturesOfValues}) &&
                                    add_recipe({"cublas, batch of pointers", 1, check_multiply_batch});

}  // namespace
}  // namespace demo
