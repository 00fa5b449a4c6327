// Thrust: a sort with temporary memory that the caller owns.
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
                                         const float* numbers, float* sorted) {
  return cache.run(graphcache::key("sort", kCount), stream, graphcache::params(numbers),
                   [&](graphcache::Recorder& rec, graphcache::Slot<const float*> slot) {
                     temporaries.reset();
                     rec.memcpy(sorted, slot, kCount * sizeof(float));
                     const auto policy = thrust::cuda::par_nosync(temporaries).on(rec.stream());
                     const auto begin = thrust::device_pointer_cast(sorted);
                     thrust::sort(policy, begin, begin + kCount);
                   });
}

bool check_sort(graphcache::Cache& cache, cudaStream_t stream) {
  Temporaries temporaries(std::size_t{4} << 20);
  const Array<float> sorted(kCount);
  std::deque<Array<float>> there;  // all at once, so that each run has another address
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    std::vector<float> numbers = small_numbers(kCount, i);
    there.emplace_back(numbers);
    right &= succeeded(sort(cache, stream, temporaries, there.back().get(), sorted.get()));
    std::sort(numbers.begin(), numbers.end());
    right &= sorted.on_host(stream) == numbers;
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"thrust, staging", 1, check_sort});

}  // namespace
}  // namespace demo
