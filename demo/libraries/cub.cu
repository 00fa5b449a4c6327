// CUB: a sum by values.
#include <cub/device/device_reduce.cuh>
#include <deque>
#include <numeric>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kCount = 100000;

// The size of the temporary memory is queried once, outside `fn`. The memory must outlive the graphs.
std::size_t temporary_bytes() {
  const float* numbers = nullptr;
  float* result = nullptr;
  std::size_t bytes = 0;
  DEMO_CUDA(cub::DeviceReduce::Sum(nullptr, bytes, numbers, result, kCount));
  return bytes;
}

absl::StatusOr<graphcache::Outcome> sum(graphcache::Cache& cache, cudaStream_t stream, const Array<char>& temporary,
                                        const float* numbers, float* result) {
  return cache.run(graphcache::key("sum", kCount), stream, graphcache::values(numbers, result),
                   [&](cudaStream_t on, const float* numbers_now, float* result_now) {
                     std::size_t bytes = temporary.bytes();
                     return cub::DeviceReduce::Sum(temporary.get(), bytes, numbers_now, result_now, kCount, on);
                   });
}

bool check_sum(graphcache::Cache& cache, cudaStream_t stream) {
  const Array<char> temporary(temporary_bytes());
  std::deque<Array<float>> there, results;  // all at once, so that each run has other addresses
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    const std::vector<float> numbers = small_numbers(kCount, i);
    there.emplace_back(numbers);
    results.emplace_back(1);
    right &= succeeded(sum(cache, stream, temporary, there.back().get(), results.back().get()));
    right &= results.back().on_host(stream)[0] == std::accumulate(numbers.begin(), numbers.end(), 0.0f);
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"cub, values", 1, check_sum, kCapturesOfValues});

}  // namespace
}  // namespace demo
