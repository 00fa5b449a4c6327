// cuBLAS: a product with a changing factor and changing scalars, and a batch in which all pointers change.
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
  absl::Status use(cudaStream_t stream, cublasPointerMode_t scalars) const {
    DEMO_TRY(cublasSetStream(handle, stream));
    DEMO_TRY(cublasSetWorkspace(handle, workspace.get(), kWorkspaceBytes));
    DEMO_TRY(cublasSetPointerMode(handle, scalars));
    return absl::OkStatus();
  }

  cublasHandle_t handle = nullptr;
  Array<char> workspace{kWorkspaceBytes};
};

struct Scalars {
  float alpha, beta;
};

// C = alpha * A * B + beta * C. A changes from run to run, so it is copied to where the product reads it. `staged_a`
// and `in_memory` are device memory that outlives the entry.
absl::StatusOr<graphcache::Outcome> multiply(graphcache::Cache& cache, cudaStream_t stream, const Blas& blas,
                                             const float* a, Scalars scalars, float* staged_a, Scalars* in_memory,
                                             const float* b, float* c) {
  return cache.run(
      graphcache::key("multiply", kN), stream, graphcache::params(a, scalars),
      [&](graphcache::Recorder& rec, graphcache::Slot<const float*> a_slot, graphcache::Slot<Scalars> scalars_slot) {
        if (absl::Status used = blas.use(rec.stream(), CUBLAS_POINTER_MODE_DEVICE); !used.ok()) return used;
        rec.memcpy(staged_a, a_slot, kElements * sizeof(float));
        rec.write(in_memory, scalars_slot);
        DEMO_TRY(cublasSgemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, kN, kN, kN, &in_memory->alpha, staged_a, kN, b, kN,
                             &in_memory->beta, c, kN));
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
                     if (absl::Status used = blas.use(rec.stream(), CUBLAS_POINTER_MODE_HOST); !used.ok()) return used;
                     rec.write(in_memory, slot);
                     const float alpha = 1, beta = 0;  // On the host: the graph keeps these values.
                     DEMO_TRY(cublasSgemmBatched(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, kN, kN, kN, &alpha,
                                                 in_memory->a, kN, in_memory->b, kN, &beta, in_memory->c, kN, kBatch));
                     return absl::OkStatus();
                   });
}

// Column-major, as in cuBLAS.
std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b, Scalars scalars,
                           const std::vector<float>& c) {
  std::vector<float> result(kElements);
  for (int column = 0; column < kN; ++column) {
    for (int row = 0; row < kN; ++row) {
      float sum = 0;
      for (int k = 0; k < kN; ++k) sum += a[k * kN + row] * b[column * kN + k];
      result[column * kN + row] = scalars.alpha * sum + (c.empty() ? 0 : scalars.beta * c[column * kN + row]);
    }
  }
  return result;
}

bool check_multiply(graphcache::Cache& cache, cudaStream_t stream) {
  const Blas blas;
  const Array<float> staged_a(kElements), c(kElements);
  const Array<Scalars> in_memory(1);
  const std::vector<float> b = small_numbers(kElements, 1);
  const Array<float> b_there(b);
  std::deque<Array<float>> a_there;  // all at once, so that each run has another address
  bool right = true;
  for (int i = 0; i < kRuns; ++i) {
    const Scalars scalars{static_cast<float>(i), static_cast<float>(1 - i)};
    const std::vector<float> a = small_numbers(kElements, 2 + static_cast<unsigned>(i));
    const std::vector<float> before = c.on_host(stream);
    a_there.emplace_back(a);
    right &= succeeded(multiply(cache, stream, blas, a_there.back().get(), scalars, staged_a.get(), in_memory.get(),
                                b_there.get(), c.get()));
    right &= c.on_host(stream) == product(a, b, scalars, before);
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
      right &= c_there[at(k + 2)].on_host(stream) == product(a[at(k)], b[at(k + 1)], {1, 0}, {});
    }
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"cublas, staging and scalars", 1, check_multiply}) &&
                                    add_recipe({"cublas, batch of pointers", 1, check_multiply_batch});

}  // namespace
}  // namespace demo
