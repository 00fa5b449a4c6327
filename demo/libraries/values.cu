// More calls of libraries that get their pointers and factors by graphcache::values, and are otherwise as they always
// were. Each run has other buffers and another factor, and its result is compared, byte by byte, with that of a direct
// call.
#include <cublas_v2.h>
#include <cufft.h>
#include <cusolverDn.h>
#include <thrust/device_ptr.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/transform.h>

#include <deque>
#include <functional>
#include <utility>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kN = 512;  // Rows and columns of a matrix.
constexpr int kCount = kN * kN;
constexpr std::size_t kWorkBytes = std::size_t{16} << 20;

// What a call gets. All of it changes from run to run.
struct Operands {
  const float* a;
  const float* b;
  float* c;
  char* work;
  float factor;
};
using Call = std::function<absl::Status(cudaStream_t, const Operands&)>;

struct Buffers {
  Array<float> a{kCount}, b{kCount}, c{kCount};
  Array<char> work{kWorkBytes};

  // The contents that each call begins with.
  Operands begin(float factor) const {
    a.set(small_numbers(kCount, 1).data());
    b.set(small_numbers(kCount, 2).data());
    c.set(small_numbers(kCount, 3).data());
    DEMO_CUDA(cudaMemset(work.get(), 0, kWorkBytes));
    DEMO_CUDA(cudaDeviceSynchronize());
    return {a.get(), b.get(), c.get(), work.get(), factor};
  }
};

bool check(graphcache::Cache& cache, cudaStream_t stream, const char* name, const Call& call) {
  std::deque<Buffers> all(4);
  bool right = true;
  for (std::size_t i = 0; i < kRuns; ++i) {
    const Buffers& buffers = all[i % all.size()];
    const float factor = 0.25f + static_cast<float>(i) / 2;
    right &= call(stream, buffers.begin(factor)).ok();
    const std::vector<float> wanted = buffers.c.on_host(stream);
    const Operands now = buffers.begin(factor);
    right &= succeeded(cache.run(graphcache::key(name), stream,
                                 graphcache::values(now.a, now.b, now.c, now.work, now.factor),
                                 [&](cudaStream_t on, const float* a, const float* b, float* c, char* work, float by) {
                                   return call(on, {a, b, c, work, by});
                                 }));
    right &= buffers.c.on_host(stream) == wanted;
  }
  return right;
}

// Handles are made once, and serve one stream.
cublasHandle_t blas(cudaStream_t stream) {
  static Array<char>& workspace = *new Array<char>(std::size_t{32} << 20);
  static const cublasHandle_t handle = [] {
    cublasHandle_t made = nullptr;
    DEMO_LIBRARY(cublasCreate(&made));
    return made;
  }();
  DEMO_LIBRARY(cublasSetStream(handle, stream));
  DEMO_LIBRARY(cublasSetWorkspace(handle, workspace.get(), workspace.bytes()));
  return handle;
}

absl::Status multiply_bfloat16(cudaStream_t stream, const Operands& of) {
  const float beta = 0;
  DEMO_TRY(cublasGemmEx(blas(stream), CUBLAS_OP_T, CUBLAS_OP_N, kN, 8, kN, &of.factor, of.a, CUDA_R_16BF, kN, of.b,
                        CUDA_R_16BF, kN, &beta, of.c, CUDA_R_16BF, kN, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  return absl::OkStatus();
}

absl::Status multiply_slices(cudaStream_t stream, const Operands& of) {  // Places inside the buffers.
  constexpr int kSlice = 64 * kN;
  const float beta = 0;
  for (int i = 0; i < 4; ++i) {
    DEMO_TRY(cublasSgemv(blas(stream), CUBLAS_OP_T, kN, 64, &of.factor, of.a + i * kSlice, kN, of.b + i * kN, 1, &beta,
                         of.c + i * kN, 1));
  }
  return absl::OkStatus();
}

absl::Status factorize(cudaStream_t stream, const Operands& of) {
  constexpr int kRows = 64;
  static const cusolverDnHandle_t handle = [] {
    cusolverDnHandle_t made = nullptr;
    DEMO_LIBRARY(cusolverDnCreate(&made));
    return made;
  }();
  DEMO_TRY(cusolverDnSetStream(handle, stream));
  auto* const pivots = reinterpret_cast<int*>(of.work + kWorkBytes / 2);
  DEMO_TRY(
      cusolverDnSgetrf(handle, kRows, kRows, of.c, kRows, reinterpret_cast<float*>(of.work), pivots, pivots + kRows));
  return absl::OkStatus();
}

absl::Status transform(cudaStream_t stream, const Operands& of) {
  static const cufftHandle plan = [] {
    cufftHandle made = 0;
    DEMO_LIBRARY(cufftPlan3d(&made, 32, 48, 70, CUFFT_C2C));
    return made;
  }();
  DEMO_TRY(cufftSetStream(plan, stream));
  auto* const in = reinterpret_cast<cufftComplex*>(const_cast<float*>(of.a));
  DEMO_TRY(cufftExecC2C(plan, in, reinterpret_cast<cufftComplex*>(of.c), CUFFT_FORWARD));
  return absl::OkStatus();
}

struct Times {
  float factor;
  __host__ __device__ float operator()(float number) const { return factor * number; }
};
absl::Status scale(cudaStream_t stream, const Operands& of) {
  const auto in = thrust::device_pointer_cast(of.a);
  thrust::transform(thrust::cuda::par_nosync.on(stream), in, in + kCount, thrust::device_pointer_cast(of.c),
                    Times{of.factor});
  return absl::OkStatus();
}

absl::Status copy(cudaStream_t stream, const Operands& of) {
  DEMO_TRY(cudaMemcpyAsync(of.c, of.a + kN, kN * sizeof(float), cudaMemcpyDeviceToDevice, stream));
  DEMO_TRY(cudaMemsetAsync(of.c + kN, 7, kN, stream));
  return absl::OkStatus();
}

[[maybe_unused]] const bool added = [] {
  const std::pair<const char*, Call> calls[] = {
      {"values, cublas bf16", multiply_bfloat16}, {"values, cublas slices", multiply_slices},
      {"values, cusolver getrf", factorize},      {"values, cufft 3-D", transform},
      {"values, thrust transform", scale},        {"values, copies and sets", copy}};
  for (const auto& [name, call] : calls) {
    add_recipe({name, 1,
                [name = name, call = call](graphcache::Cache& cache, cudaStream_t stream) {
                  return check(cache, stream, name, call);
                },
                kCapturesOfValues});
  }
  return true;
}();

}  // namespace
}  // namespace demo
