// The cache's decisions do not depend on clocks and addresses. On hostrt.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "policy_sequences.h"
#include "size.h"

namespace graphcache::test {
namespace {

// What the cache did and reported, line by line.
template <int kPlace>
std::vector<std::string> trace(const Sequence& sequence, Bench<kPlace>& bench, const std::function<void()>& between) {
  std::vector<std::string> lines;
  for (const Operation& operation : sequence.operations) {
    if (between) between();
    const Spec& which = sequence.specs[operation.which];
    std::string line = text_of(operation, sequence.specs) + ": ";
    switch (operation.kind) {
      case Operation::kPin:
        line += bench.cache.pin(which.key) ? "yes" : "no";
        break;
      case Operation::kUnpin:
        line += bench.cache.unpin(which.key) ? "yes" : "no";
        break;
      case Operation::kErase:
        line += bench.cache.erase(which.key) ? "yes" : "no";
        break;
      case Operation::kClear:
        bench.cache.clear();
        break;
      case Operation::kWarm:
        line += absl::StatusCodeToString(bench.warm(which, operation.values, operation.stream).code());
        break;
      case Operation::kRun: {
        const absl::StatusOr<Outcome> outcome = bench.go(which, operation.values, operation.stream);
        line += outcome.ok() ? to_string(*outcome) : outcome.status().ToString();
      }
    }
    lines.push_back(line + "\n" + text_of(bench.cache.stats()) + "\n" + text_of(bench.cache.entries()));
  }
  return lines;
}

// Another thread that runs its own cache as fast as it can. Made and destroyed while no thread is capturing, because
// its memory is allocated and freed with synchronizations, which break captures of other threads.
class Neighbour {
 public:
  ~Neighbour() {
    stop_ = true;
    thread_.join();
  }

 private:
  void live() {
    for (std::size_t i = 0; !stop_; i = (i + 1) % sequence_.operations.size()) {
      const Operation& operation = sequence_.operations[i];
      EXPECT_SUCCESS(bench_.run(sequence_.specs[operation.which], operation.values));
      const std::vector<char> memory(1 + i * 100);
      std::this_thread::yield();
    }
  }

  const Sequence sequence_ = random_sequence(4711);
  Bench<2> bench_{sequence_.options};
  std::atomic<bool> stop_{false};
  std::thread thread_{[this] { live(); }};
};

TEST_F(PolicyTest, DecisionsDependOnTheCallsAlone) {
  const auto seeds = by_size<std::uint64_t>(50, 200, 200);
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Sequence sequence = random_sequence(1'000'000 + seed);
    std::vector<std::string> quiet;
    {
      Bench<0> bench(sequence.options);
      quiet = trace(sequence, bench, nullptr);
    }

    Sequence again = sequence;
    for (Spec& which : again.specs) {
      const Key rebuilt = key(which.name.c_str());
      ASSERT_EQ(rebuilt, which.key);
      which.key = rebuilt;
    }
    Random random(seed);
    std::vector<void*> device_memory;
    std::vector<std::vector<char>> host_memory;
    const auto shift = [&] {
      if (random.chance(60)) return;
      host_memory.emplace_back(static_cast<std::size_t>(random.between(1, 5000)));
      CUDA_OK(cudaMalloc(&device_memory.emplace_back(), static_cast<std::size_t>(random.between(1, 700))));
    };
    std::vector<std::string> disturbed;
    {
      shift();
      const Stream another;
      Bench<1> bench(again.options);
      bench.in_fn = [&] {
        if (random.chance(30)) std::this_thread::sleep_for(std::chrono::microseconds(random.between(1, 60)));
      };
      const Neighbour neighbour;
      disturbed = trace(again, bench, shift);
    }
    for (void* const memory : device_memory) CUDA_OK(cudaFree(memory));
    ASSERT_EQ(quiet.size(), disturbed.size());
    for (std::size_t i = 0; i < quiet.size(); ++i) {
      ASSERT_EQ(quiet[i], disturbed[i]) << "seed " << seed << ", operation " << i;
    }
  }
}

}  // namespace
}  // namespace graphcache::test
