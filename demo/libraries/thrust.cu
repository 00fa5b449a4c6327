// Thrust: a sort by values, with temporary memory that the caller owns.
#include <thrust/device_ptr.h>
#include <thrust/sort.h>
#include <thrust/system/cuda/execution_policy.h>

#include <algorithm>
#include <deque>
#include <new>

#include "recipes.h"

namespace demo {
namespace {

constexpr std::size_t kCount = 50000;

// Thrust's temporaries, from a block that is allocated once and outlives the graphs. The allocator that Thrust takes by
// default calls cudaMalloc, which breaks a capture.
class Temporaries {
 public:
  using value_type = char;

  explicit Temporaries(std::size_t bytes) : block_(bytes) {}

  // Call this at the start of each `fn`.
  void reset() { used_ = 0; }
  char* allocate(std::ptrdiff_t bytes) {
    const std::size_t rounded = (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
    if (rounded > block_.bytes() - used_) throw std::bad_alloc();
    used_ += rounded;
    return block_.get() + used_ - rounded;
  }
  void deallocate(char*, std::size_t) {}

 private:
  Array<char> block_;
  std::size_t used_ = 0;
};

absl::StatusOr<graphcache::Outcome> sort(graphcache::Cache& cache, cudaStream_t stream, Temporaries& temporaries,
                                         float* numbers) {
  return cache.run(graphcache::key("sort", kCount), stream, graphcache::values(numbers),
                   [&](cudaStream_t on, float* numbers_now) {
                     temporaries.reset();
                     const auto begin = thrust::device_pointer_cast(numbers_now);
                     thrust::sort(thrust::cuda::par_nosync(temporaries).on(on), begin, begin + kCount);
                   });
}

bool check_sort(graphcache::Cache& cache, cudaStream_t stream) {
  Temporaries temporaries(std::size_t{4} << 20);
  std::deque<Array<float>> there;  // all at once, so that each run has another address
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    std::vector<float> numbers = small_numbers(kCount, i);
    there.emplace_back(numbers);
    right &= succeeded(sort(cache, stream, temporaries, there.back().get()));
    std::sort(numbers.begin(), numbers.end());
    right &= there.back().on_host(stream) == numbers;
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"thrust, values", 1, check_sort, kCapturesOfValues});

}  // namespace
}  // namespace demo
