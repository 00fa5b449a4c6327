// Code that checks every call, as in RAFT: macros throw on an error, and temporaries come from a pool for each stream.
#include <algorithm>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <deque>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>

#include "recipes.h"

namespace demo {
namespace {

constexpr int kCount = 20000;

// Throws, as RAFT_CUDA_TRY does. If `fn` throws under capture, it is called again, directly.
#define CHECKED(call)                                         \
  if (const cudaError_t error = (call); error != cudaSuccess) \
  throw std::runtime_error(std::string(#call) + ": " + cudaGetErrorString(error))

// Temporaries of one stream: a block that all keys share, since their launches follow each other. Its address is in the
// key, because a graph keeps it. What is freed is used again within `fn`, in the order of the stream.
class ScratchPool {
 public:
  explicit ScratchPool(std::size_t bytes) : block_(bytes) {}

  const void* address() const { return block_.get(); }
  // Frees all of it at the end of a scope.
  class Scope {
   public:
    explicit Scope(ScratchPool& pool) : pool_(pool), used_(pool.used_) {}
    ~Scope() { pool_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    void* allocate(std::size_t bytes) { return pool_.allocate(bytes); }

   private:
    ScratchPool& pool_;
    const std::size_t used_;
  };

 private:
  // It never grows: graphs that were captured keep the address.
  void* allocate(std::size_t bytes) {
    const std::size_t rounded = (bytes + 255) / 256 * 256;
    if (rounded > block_.bytes() - used_) throw std::bad_alloc();
    used_ += rounded;
    return block_.get() + used_ - rounded;
  }

  Array<char> block_;
  std::size_t used_ = 0;
};

// The sum of all running sums, in two steps of CUB.
void sum_of_sums(ScratchPool& pool, const float* numbers, float* result, cudaStream_t stream) {
  ScratchPool::Scope scratch(pool);
  auto* const sums = static_cast<float*>(scratch.allocate(kCount * sizeof(float)));
  std::size_t bytes = 0;
  CHECKED(cub::DeviceScan::InclusiveSum(nullptr, bytes, numbers, sums, kCount, stream));
  {
    ScratchPool::Scope temporary(pool);
    CHECKED(cub::DeviceScan::InclusiveSum(temporary.allocate(bytes), bytes, numbers, sums, kCount, stream));
  }
  CHECKED(cub::DeviceReduce::Sum(nullptr, bytes, sums, result, kCount, stream));
  CHECKED(cub::DeviceReduce::Sum(scratch.allocate(bytes), bytes, sums, result, kCount, stream));
}

absl::StatusOr<graphcache::Outcome> run_sum_of_sums(graphcache::Cache& cache, cudaStream_t stream, ScratchPool& pool,
                                                    const float* numbers, float* result) {
  return cache.run(graphcache::key("sum of sums", kCount, pool.address()), stream, graphcache::values(numbers, result),
                   [&](cudaStream_t on, const float* numbers_now, float* result_now) {
                     sum_of_sums(pool, numbers_now, result_now, on);
                   });
}

bool check_sum_of_sums(graphcache::Cache& cache, cudaStream_t stream) {
  ScratchPool pool(std::size_t{1} << 20);
  std::deque<Array<float>> there, results;  // all at once, so that each run has other addresses
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    std::vector<float> numbers(kCount);  // mostly 0, so that sums are exact in any order
    for (std::size_t k = 0; k < numbers.size(); k += 1000) numbers[k] = static_cast<float>(i % 4);
    there.emplace_back(numbers);
    results.emplace_back(1);
    right &= succeeded(run_sum_of_sums(cache, stream, pool, there.back().get(), results.back().get()));
    std::vector<float> sums(kCount);
    std::partial_sum(numbers.begin(), numbers.end(), sums.begin());
    right &= results.back().on_host(stream)[0] == std::accumulate(sums.begin(), sums.end(), 0.0f);
  }
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"checked, scratch pool", 1, check_sum_of_sums, kCapturesOfValues});

}  // namespace
}  // namespace demo
