// NCCL: a collective of one rank with data at addresses that change in each run. demo/data_parallel has several ranks.
#include <nccl.h>

#include <deque>

#include "recipes.h"

namespace demo {
namespace {

constexpr std::size_t kCount = 1000;

// Made outside `fn`. It must outlive all graphs that contain its work.
struct Communicator {
  Communicator() {
    int device = 0;
    DEMO_CUDA(cudaGetDevice(&device));
    DEMO_LIBRARY(ncclCommInitAll(&handle, 1, &device));
  }
  ~Communicator() { DEMO_LIBRARY(ncclCommDestroy(handle)); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t handle = nullptr;
};

// The key is equal on all ranks, and so is what decides it: all capture together, and all replay together.
absl::StatusOr<graphcache::Outcome> sum_over_ranks(graphcache::Cache& cache, cudaStream_t stream,
                                                   const Communicator& ranks, const float* in, float* staged,
                                                   float* out) {
  return cache.run(
      graphcache::key("sum over ranks", kCount), stream, graphcache::params(in, out),
      [&](graphcache::Recorder& rec, graphcache::Slot<const float*> in_slot, graphcache::Slot<float*> out_slot) {
        float* const sum = staged + kCount;
        rec.memcpy(staged, in_slot, kCount * sizeof(float));
        DEMO_TRY(ncclAllReduce(staged, sum, kCount, ncclFloat, ncclSum, ranks.handle, rec.stream()));
        rec.memcpy(out_slot, sum, kCount * sizeof(float));
        return absl::OkStatus();
      });
}

bool check_sum(graphcache::Cache& cache, cudaStream_t stream) {
  const Communicator ranks;
  const Array<float> staged(2 * kCount);
  std::deque<Array<float>> in, out;  // all at once, so that each run has other addresses
  bool right = true;
  for (unsigned i = 0; i < kRuns; ++i) {
    const std::vector<float> numbers = small_numbers(kCount, i);
    in.emplace_back(numbers);
    out.emplace_back(kCount);
    right &= succeeded(sum_over_ranks(cache, stream, ranks, in.back().get(), staged.get(), out.back().get()));
    right &= out.back().on_host(stream) == numbers;  // the sum over one rank
  }
  cache.clear();  // before the communicator is destroyed
  return right;
}

[[maybe_unused]] const bool added = add_recipe({"nccl, staging on both sides", 1, check_sum});

}  // namespace
}  // namespace demo
