// CUB: a sum of numbers at an address that changes in each run, read through a pointer in device memory.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_reduce.cuh>
#include <deque>
#include <numeric>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kCount = 100000;

// The i-th number of an array whose address lies in device memory. A kernel reads the address when it runs.
struct NumberAt {
  const float* const* array;
  __device__ float operator()(int i) const { return (*array)[i]; }
};
using Numbers = thrust::transform_iterator<NumberAt, thrust::counting_iterator<int>>;
Numbers numbers_at(const float* const* array) { return Numbers(thrust::counting_iterator<int>(0), NumberAt{array}); }

// The size of the temporary memory is queried once, outside `fn`. The memory must outlive the graphs.
std::size_t temporary_bytes() {
  std::size_t bytes = 0;
  DEMO_CUDA(cub::DeviceReduce::Sum(nullptr, bytes, numbers_at(nullptr), static_cast<float*>(nullptr), kCount));
  return bytes;
}

absl::StatusOr<graphcache::Outcome> sum(graphcache::Cache& cache, cudaStream_t stream, const Array<char>& temporary,
                                        const float** in_memory, const float* numbers, float* result) {
  return cache.run(graphcache::key("sum", kCount), stream, graphcache::params(numbers),
                   [&](graphcache::Recorder& rec, graphcache::Slot<const float*> slot) {
                     rec.write(in_memory, slot);
                     std::size_t bytes = temporary.bytes();
                     return cub::DeviceReduce::Sum(temporary.get(), bytes, numbers_at(in_memory), result, kCount,
                                                   rec.stream());
                   });
}

bool check_sum(graphcache::Cache& cache, cudaStream_t stream) {
  const Array<char> temporary(temporary_bytes());
  const Array<float> result(1);
  const Array<const float*> in_memory(1);
  std::deque<Array<float>> there;  // all at once, so that each run has another address
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    const std::vector<float> numbers = small_numbers(kCount, i);
    there.emplace_back(numbers);
    right &= succeeded(sum(cache, stream, temporary, in_memory.get(), there.back().get(), result.get()));
    right &= result.on_host(stream)[0] == std::accumulate(numbers.begin(), numbers.end(), 0.0f);
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"cub, pointer in memory", 1, check_sum});

}  // namespace
}  // namespace demo
