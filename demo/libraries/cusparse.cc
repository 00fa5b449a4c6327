// cuSPARSE: a product of a sparse matrix and a vector by values.
#include <cusparse.h>

#include <deque>
#include <optional>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kN = 500;

// y = alpha * M * x + beta * y. M has three diagonals. Descriptors and the buffer are made outside `fn`. Those of the
// vectors hold any address first, because `fn` sets the right ones.
struct Product {
  Product() : rows(row_starts()), columns(column_of_each()), values(small_numbers(3 * kN - 2, 1)) {
    const float alpha = 1, beta = 0;
    std::size_t bytes = 0;
    DEMO_LIBRARY(cusparseCreate(&handle));
    DEMO_LIBRARY(cusparseCreateCsr(&matrix, kN, kN, 3 * kN - 2, rows.get(), columns.get(), values.get(),
                                   CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
    DEMO_LIBRARY(cusparseCreateDnVec(&x, kN, values.get(), CUDA_R_32F));
    DEMO_LIBRARY(cusparseCreateDnVec(&y, kN, values.get(), CUDA_R_32F));
    DEMO_LIBRARY(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, x, &beta, y,
                                         CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT, &bytes));
    buffer.emplace(bytes == 0 ? 1 : bytes);
  }
  ~Product() {
    DEMO_LIBRARY(cusparseDestroyDnVec(y));
    DEMO_LIBRARY(cusparseDestroyDnVec(x));
    DEMO_LIBRARY(cusparseDestroySpMat(matrix));
    DEMO_LIBRARY(cusparseDestroy(handle));
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  static std::vector<int> row_starts() {
    std::vector<int> starts{0};
    for (int row = 0; row < kN; ++row) starts.push_back(starts.back() + (row == 0 || row == kN - 1 ? 2 : 3));
    return starts;
  }
  static std::vector<int> column_of_each() {
    std::vector<int> all;
    for (int row = 0; row < kN; ++row) {
      for (int column = row - 1; column <= row + 1; ++column) {
        if (column >= 0 && column < kN) all.push_back(column);
      }
    }
    return all;
  }

  Array<int> rows, columns;
  Array<float> values;
  std::optional<Array<char>> buffer;
  cusparseHandle_t handle = nullptr;
  cusparseSpMatDescr_t matrix = nullptr;
  cusparseDnVecDescr_t x = nullptr, y = nullptr;
};

absl::StatusOr<graphcache::Outcome> multiply(graphcache::Cache& cache, cudaStream_t stream, const Product& product,
                                             float alpha, float* x, float beta, float* y) {
  return cache.run(
      graphcache::key("sparse product", kN), stream, graphcache::values(alpha, x, beta, y),
      [&](cudaStream_t on, float alpha_now, float* x_now, float beta_now, float* y_now) {
        DEMO_TRY(cusparseSetStream(product.handle, on));
        DEMO_TRY(cusparseDnVecSetValues(product.x, x_now));
        DEMO_TRY(cusparseDnVecSetValues(product.y, y_now));
        DEMO_TRY(cusparseSpMV(product.handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha_now, product.matrix, product.x,
                              &beta_now, product.y, CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT, product.buffer->get()));
        return absl::OkStatus();
      });
}

bool check_multiply(graphcache::Cache& cache, cudaStream_t stream) {
  const Product product;
  const std::vector<int> rows = product.rows.on_host(stream), columns = product.columns.on_host(stream);
  const std::vector<float> values = product.values.on_host(stream);
  std::deque<Array<float>> x_there, y_there;  // all at once, so that each run has other addresses
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    // Never 0 or 1, with which cuSPARSE may do other work.
    const float alpha = 2 + static_cast<float>(i), beta = 0.5f - static_cast<float>(i);
    const std::vector<float> x = small_numbers(kN, i);
    std::vector<float> y = small_numbers(kN, 20 + i);
    x_there.emplace_back(x);
    y_there.emplace_back(y);
    for (std::size_t row = 0; row < kN; ++row) {
      float sum = 0;
      for (auto at = static_cast<std::size_t>(rows[row]); at < static_cast<std::size_t>(rows[row + 1]); ++at) {
        sum += values[at] * x[static_cast<std::size_t>(columns[at])];
      }
      y[row] = alpha * sum + beta * y[row];
    }
    right &= succeeded(multiply(cache, stream, product, alpha, x_there.back().get(), beta, y_there.back().get()));
    right &= y_there.back().on_host(stream) == y;
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"cusparse, values", 1, check_multiply, kCapturesOfValues});

}  // namespace
}  // namespace demo
