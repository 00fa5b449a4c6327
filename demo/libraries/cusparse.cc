// cuSPARSE: a sparse matrix times a vector at an address that changes in each run, with changing scalars.
#include <cusparse.h>

#include <deque>
#include <optional>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kN = 500;

struct Scalars {
  float alpha, beta;
};

// y = alpha * M * x + beta * y. M has three diagonals. Descriptors and the buffer are made outside `fn`.
struct Product {
  Product() : rows(row_starts()), columns(column_of_each()), values(small_numbers(3 * kN - 2, 1)) {
    const Scalars scalars{1, 0};
    std::size_t bytes = 0;
    DEMO_LIBRARY(cusparseCreate(&handle));
    DEMO_LIBRARY(cusparseCreateCsr(&matrix, kN, kN, 3 * kN - 2, rows.get(), columns.get(), values.get(),
                                   CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
    DEMO_LIBRARY(cusparseCreateDnVec(&x, kN, staged_x.get(), CUDA_R_32F));
    DEMO_LIBRARY(cusparseCreateDnVec(&y, kN, result.get(), CUDA_R_32F));
    DEMO_LIBRARY(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &scalars.alpha, matrix, x,
                                         &scalars.beta, y, CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT, &bytes));
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
  Array<float> staged_x{kN}, result{kN};
  std::optional<Array<char>> buffer;
  cusparseHandle_t handle = nullptr;
  cusparseSpMatDescr_t matrix = nullptr;
  cusparseDnVecDescr_t x = nullptr, y = nullptr;
};

absl::StatusOr<graphcache::Outcome> multiply(graphcache::Cache& cache, cudaStream_t stream, const Product& product,
                                             Scalars* in_memory, const float* x, Scalars scalars) {
  return cache.run(
      graphcache::key("sparse product", kN), stream, graphcache::params(x, scalars),
      [&](graphcache::Recorder& rec, graphcache::Slot<const float*> x_slot, graphcache::Slot<Scalars> scalars_slot) {
        DEMO_TRY(cusparseSetStream(product.handle, rec.stream()));
        DEMO_TRY(cusparseSetPointerMode(product.handle, CUSPARSE_POINTER_MODE_DEVICE));
        rec.memcpy(product.staged_x.get(), x_slot, kN * sizeof(float));
        rec.write(in_memory, scalars_slot);
        DEMO_TRY(cusparseSpMV(product.handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &in_memory->alpha, product.matrix,
                              product.x, &in_memory->beta, product.y, CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT,
                              product.buffer->get()));
        return absl::OkStatus();
      });
}

bool check_multiply(graphcache::Cache& cache, cudaStream_t stream) {
  const Product product;
  const Array<Scalars> in_memory(1);
  const std::vector<int> rows = product.rows.on_host(stream), columns = product.columns.on_host(stream);
  const std::vector<float> values = product.values.on_host(stream);
  std::vector<float> expected(kN);
  std::deque<Array<float>> x_there;  // all at once, so that each run has another address
  bool right = true;
  for (int i = 0; i < kRuns; ++i) {
    const Scalars scalars{static_cast<float>(i), static_cast<float>(i % 3 - 1)};
    const std::vector<float> x = small_numbers(kN, static_cast<unsigned>(i));
    x_there.emplace_back(x);
    for (std::size_t row = 0; row < kN; ++row) {
      float sum = 0;
      for (int at = rows[row]; at < rows[row + 1]; ++at) {
        sum +=
            values[static_cast<std::size_t>(at)] * x[static_cast<std::size_t>(columns[static_cast<std::size_t>(at)])];
      }
      expected[row] = scalars.alpha * sum + scalars.beta * expected[row];
    }
    right &= succeeded(multiply(cache, stream, product, in_memory.get(), x_there.back().get(), scalars));
    right &= product.result.on_host(stream) == expected;
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"cusparse, staging and scalars", 1, check_multiply});

}  // namespace
}  // namespace demo
