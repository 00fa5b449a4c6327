// cuFFT: a plan with its own work area, and the pointers as values.
#include <cufft.h>

#include <cmath>
#include <complex>
#include <deque>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kSize = 331;  // a prime, for which cuFFT needs a work area
constexpr int kBatch = 3;
constexpr std::size_t kElements = std::size_t{kSize} * kBatch;

// Make it outside `fn`: making a plan allocates, copies and waits. The work area must outlive the graphs. Graphs
// of one plan share it, so they must not run at the same time.
struct Plan {
  Plan() {
    std::size_t work_bytes = 0;
    DEMO_LIBRARY(cufftCreate(&handle));
    DEMO_LIBRARY(cufftSetAutoAllocation(handle, 0));
    DEMO_LIBRARY(cufftMakePlan1d(handle, kSize, CUFFT_C2C, kBatch, &work_bytes));
    DEMO_CUDA(cudaMalloc(&work_area, work_bytes == 0 ? 1 : work_bytes));
    DEMO_LIBRARY(cufftSetWorkArea(handle, work_area));
  }
  ~Plan() {
    DEMO_LIBRARY(cufftDestroy(handle));
    DEMO_CUDA(cudaFree(work_area));
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cufftHandle handle = 0;
  void* work_area = nullptr;
};

absl::StatusOr<graphcache::Outcome> transform(graphcache::Cache& cache, cudaStream_t stream, const Plan& plan,
                                              cufftComplex* in, cufftComplex* out) {
  return cache.run(graphcache::key("transform", kSize, kBatch), stream, graphcache::values(in, out),
                   [&](cudaStream_t on, cufftComplex* in_now, cufftComplex* out_now) {
                     DEMO_TRY(cufftSetStream(plan.handle, on));
                     DEMO_TRY(cufftExecC2C(plan.handle, in_now, out_now, CUFFT_FORWARD));
                     return absl::OkStatus();
                   });
}

// The largest difference from the sum that defines the transform.
double error(const std::vector<float>& in, const std::vector<cufftComplex>& out) {
  const double step = -2 * std::acos(-1.0) / kSize;
  double largest = 0;
  for (std::size_t start = 0; start < kElements; start += kSize) {
    for (std::size_t k = 0; k < kSize; ++k) {
      std::complex<double> sum = 0;
      for (std::size_t i = 0; i < kSize; ++i) {
        const std::complex<double> number(in[2 * (start + i)], in[2 * (start + i) + 1]);
        sum += number * std::polar(1.0, step * static_cast<double>(i * k % kSize));
      }
      largest = std::max(largest, std::abs(sum - std::complex<double>(out[start + k].x, out[start + k].y)));
    }
  }
  return largest;
}

bool check_transform(graphcache::Cache& cache, cudaStream_t stream) {
  const Plan plan;
  std::deque<Array<cufftComplex>> in, out;  // all at once, so that each run has other addresses
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    const std::vector<float> numbers = small_numbers(2 * kElements, i);
    in.emplace_back(kElements).set(numbers.data());
    out.emplace_back(kElements);
    right &= succeeded(transform(cache, stream, plan, in.back().get(), out.back().get()));
    right &= error(numbers, out.back().on_host(stream)) < 1e-3;  // the results are about 100
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"cufft, values", 1, check_transform, kCapturesOfValues});

}  // namespace
}  // namespace demo
