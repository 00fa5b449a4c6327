// Calls of libraries that get their pointers and factors by graphcache::values, and are otherwise as they always were.
// Each run has other buffers and another factor, and its result is compared, byte by byte, with that of a direct call.
#include <cublas_v2.h>
#include <cufft.h>
#include <cusolverDn.h>
#include <cusparse.h>
#include <thrust/device_ptr.h>
#include <thrust/scan.h>
#include <thrust/system/cuda/execution_policy.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
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

// ---- cuBLAS, cuSOLVER, cuSPARSE, cuFFT ----

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

absl::Status multiply(cudaStream_t stream, const Operands& of) {
  const float beta = 0.5f;
  DEMO_TRY(
      cublasSgemm(blas(stream), CUBLAS_OP_N, CUBLAS_OP_N, kN, kN, kN, &of.factor, of.a, kN, of.b, kN, &beta, of.c, kN));
  return absl::OkStatus();
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

absl::Status multiply_sparse(cudaStream_t stream, const Operands& of) {
  static const cusparseHandle_t handle = [] {
    cusparseHandle_t made = nullptr;
    DEMO_LIBRARY(cusparseCreate(&made));
    return made;
  }();
  static const Array<int>& starts = *new Array<int>([] {
    std::vector<int> each(kN + 1);
    for (int i = 0; i <= kN; ++i) each[static_cast<std::size_t>(i)] = 4 * i;
    return each;
  }());
  static const Array<int>& columns = *new Array<int>([] {
    std::vector<int> each(4 * kN);
    for (int i = 0; i < 4 * kN; ++i) each[static_cast<std::size_t>(i)] = i * 13 % kN;
    return each;
  }());
  const float beta = 0;
  cusparseConstSpMatDescr_t matrix = nullptr;
  cusparseConstDnVecDescr_t x = nullptr;
  cusparseDnVecDescr_t y = nullptr;
  DEMO_TRY(cusparseSetStream(handle, stream));
  DEMO_TRY(cusparseCreateConstCsr(&matrix, kN, kN, 4 * kN, starts.get(), columns.get(), of.a, CUSPARSE_INDEX_32I,
                                  CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
  DEMO_TRY(cusparseCreateConstDnVec(&x, kN, of.b, CUDA_R_32F));
  DEMO_TRY(cusparseCreateDnVec(&y, kN, of.c, CUDA_R_32F));
  DEMO_TRY(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &of.factor, matrix, x, &beta, y, CUDA_R_32F,
                        CUSPARSE_SPMV_CSR_ALG1, of.work));
  DEMO_TRY(cusparseDestroyDnVec(y));
  DEMO_TRY(cusparseDestroyDnVec(x));
  DEMO_TRY(cusparseDestroySpMat(matrix));
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

// ---- CUB, Thrust, the runtime ----

absl::Status sum(cudaStream_t stream, const Operands& of) {
  std::size_t bytes = kWorkBytes;
  DEMO_TRY(cub::DeviceReduce::Sum(of.work, bytes, of.a, of.c, kCount, stream));
  return absl::OkStatus();
}

absl::Status scan(cudaStream_t stream, const Operands& of) {
  std::size_t bytes = kWorkBytes;
  DEMO_TRY(cub::DeviceScan::InclusiveSum(of.work, bytes, of.a, of.c, kCount, stream));
  return absl::OkStatus();
}

absl::Status sort(cudaStream_t stream, const Operands& of) {
  std::size_t bytes = kWorkBytes;
  DEMO_TRY(cub::DeviceRadixSort::SortKeys(of.work, bytes, of.a, of.c, kCount, 0, 32, stream));
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
  const std::pair<const char*, Call> calls[] = {{"values, cublas f32", multiply},
                                                {"values, cublas bf16", multiply_bfloat16},
                                                {"values, cublas slices", multiply_slices},
                                                {"values, cusolver getrf", factorize},
                                                {"values, cusparse SpMV", multiply_sparse},
                                                {"values, cufft 3-D", transform},
                                                {"values, cub reduce", sum},
                                                {"values, cub scan", scan},
                                                {"values, cub radix sort", sort},
                                                {"values, thrust transform", scale},
                                                {"values, copies and sets", copy}};
  for (const auto& [name, call] : calls) {
    add_recipe({name, 1,
                [name = name, call = call](graphcache::Cache& cache, cudaStream_t stream) {
                  return check(cache, stream, name, call);
                },
                4});
  }
  return true;
}();

}  // namespace
}  // namespace demo
