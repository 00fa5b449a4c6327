// Calls that fail while values are found and patched, and work that is late. On hostrt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/failing_calls.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "listeners.h"
#include "support.h"

namespace graphcache::test {
namespace {

void append_number(float* log, int* count, float v) { log[(*count)++] = v; }
GRAPHCACHE_HOST_KERNEL(append_number)

constexpr int kLog = 256;

// A log that shows which runs were made, in which order and with which values.
struct Log {
  absl::StatusOr<Outcome> run(Cache& cache, const Key& key, float value) {
    return cache.run(key, stream, values(value), [&](cudaStream_t on, float v) {
      return launch(append_number, 1, 1, on, numbers.get(), count.get(), v);
    });
  }
  std::vector<float> read() const {
    std::vector<float> all = numbers.read();
    all.resize(static_cast<std::size_t>(count.first()));
    return all;
  }

  Stream stream;
  DeviceBuffer<float> numbers{kLog};
  DeviceBuffer<int> count{1};
};

class ValuesFailuresTest : public testing::Test {
  FreshHostrt fresh_;
};

TEST_F(ValuesFailuresTest, AnUpdateThatFailsIsReplacedByAnInstantiation) {
  for (const cudaError_t error : {cudaErrorGraphExecUpdateFailure, cudaErrorMemoryAllocation, cudaErrorUnknown}) {
    hostrt::reset();
    Log log;
    std::vector<float> wanted;
    const auto listener = std::make_shared<Functions>();
    std::vector<std::string> lines;
    listener->on_message = [&](std::string_view line) { lines.emplace_back(line); };
    std::optional<Cache> cache(std::in_place, Options{.listeners = {listener}});
    for (int i = 0; i < 6; ++i) {
      if (i == 1) hostrt::fail_call("cudaGraphExecUpdate", 1, error);
      const float v = 2 + static_cast<float>(i);
      const absl::StatusOr<Outcome> outcome = log.run(*cache, key("k"), v);
      if (i <= 1) {
        EXPECT_RUN(kInstantiated, outcome);
      } else {
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        EXPECT_EQ(is_hit(*outcome), i >= 3) << i;
      }
      wanted.push_back(v);
      EXPECT_EQ(log.read(), wanted);
    }
    EXPECT_EQ(hostrt::failures_injected(), 1u);
    const std::string refusal = cache->entries().at(0).refusal;
    if (error == cudaErrorGraphExecUpdateFailure) {
      EXPECT_EQ(cache->stats().refused_updates, 1u);
      EXPECT_EQ(refusal, "the runtime does not support this update");
      ASSERT_EQ(lines.size(), 1u);
      EXPECT_NE(lines[0].find("(\"k\"): the runtime refused an update between two graphs that look alike: " + refusal),
                std::string::npos)
          << lines[0];
    } else {  // The executable may be anything now.
      EXPECT_EQ(cache->stats().refused_updates, 0u);
      EXPECT_EQ(refusal, "");
      EXPECT_TRUE(lines.empty());
    }
    cache.reset();
    EXPECT_EQ(hostrt::ledger().executables, 0u);
    EXPECT_EQ(hostrt::ledger().graphs, 0u);
  }
}

TEST_F(ValuesFailuresTest, APatchThatFailsIsReplaced) {
  Log log;
  Cache cache;
  std::vector<float> wanted;
  const auto run = [&](float v) {
    const absl::StatusOr<Outcome> outcome = log.run(cache, key("k"), v);
    wanted.push_back(v);
    EXPECT_EQ(log.read(), wanted);
    return outcome;
  };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(run(2 + static_cast<float>(i)).ok());
  hostrt::fail_call("cudaGraphExecKernelNodeSetParams", 1, cudaErrorUnknown);
  EXPECT_TRUE(run(20).ok());
  EXPECT_EQ(hostrt::failures_injected(), 1u);
  hostrt::clear_failures();
  (void)cudaGetLastError();
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(run(30 + static_cast<float>(i)).ok());
  EXPECT_RUN(kPatched, run(50));
}

// Each call of a sequence fails, once or from then on. A run that succeeds has done its work once, with its values, and
// one that fails has done nothing. Later runs find the values.
TEST_F(ValuesFailuresTest, NoFailedCallLosesWorkOrValues) {
  for (const int max_executables : {1, 8}) {
    // Returns the calls of the runs while calls may fail.
    const auto operate = [&](bool is_once, const std::function<void()>& arm) {
      hostrt::reset();
      std::map<std::string, std::uint64_t> counts;
      {
        Log log;
        std::optional<Cache> cache(Options{.max_executables = max_executables});
        std::vector<float> wanted;
        const auto run = [&](int which, float v) {
          const absl::StatusOr<Outcome> outcome = log.run(*cache, key("k", which), v);
          if (outcome.ok()) wanted.push_back(v);
          return outcome;
        };
        EXPECT_TRUE(run(0, 2).ok());
        arm();
        float v = 3;
        for (const int which : {0, 0, 1, 0, 1, 1, 0, 1}) (void)run(which, v++);
        counts = hostrt::call_counts();
        if (hostrt::failures_injected() == 0) {
          EXPECT_EQ(wanted.size(), 9u);
        }
        hostrt::clear_failures();
        (void)cudaGetLastError();
        EXPECT_EQ(log.read(), wanted);
        absl::StatusOr<Outcome> last = Outcome::kEager;
        for (int i = 0; i < 12; ++i) {
          last = run(0, v++);
          EXPECT_TRUE(last.ok()) << last.status();
        }
        EXPECT_EQ(log.read(), wanted);
        if (is_once && last.ok()) {
          EXPECT_TRUE(is_hit(*last)) << to_string(*last);
        }
        cache.reset();
        EXPECT_EQ(hostrt::ledger().executables, 0u);
        EXPECT_EQ(hostrt::ledger().graphs, 0u);
      }
      EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
      return counts;
    };
    const auto all_counts = operate(true, [] { hostrt::reset_calls(); });
    for (const auto& [function, count] : all_counts) {
      if (function.find("Destroy") != std::string::npos || function.find("Free") != std::string::npos) continue;
      for (std::uint64_t nth = 1; nth <= std::min<std::uint64_t>(count, 12); ++nth) {
        for (const int times : {1, -1}) {
          SCOPED_TRACE(function + " fails at call " + std::to_string(nth) + (times == 1 ? "" : " and on"));
          operate(times == 1, [&, of = function] {
            hostrt::fail_call(of.c_str(), static_cast<int>(nth), cudaErrorMemoryAllocation, times);
          });
        }
      }
    }
  }
}

TEST_F(ValuesFailuresTest, LateWorkHasTheValuesOfItsRun) {
  Log log;
  Cache cache;
  std::vector<float> wanted;
  hostrt::hold(log.stream);
  for (int i = 0; i < 40; ++i) {
    const float v = i % 9 == 8 ? 0 : 2 + static_cast<float>(i);
    ASSERT_TRUE(log.run(cache, key("k"), v).ok());
    wanted.push_back(v);
  }
  CUDA_OK(hostrt::release(log.stream));
  EXPECT_EQ(log.read(), wanted);
}

// Erasures, evictions and changing values, with work that runs in any order that streams allow.
TEST_F(ValuesFailuresTest, LateWorkSurvivesErasuresAndEvictions) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    hostrt::reset();
    hostrt::defer(seed);
    Log log;
    Cache cache({.max_executables = 1 + static_cast<int>(seed % 3)});
    std::vector<float> wanted;
    std::uint64_t state = seed;
    const auto below = [&](unsigned bound) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<unsigned>(state >> 33) % bound;
    };
    for (int i = 0; i < 100; ++i) {
      const unsigned which = below(4);
      if (below(12) == 0) cache.erase(key("k", which));
      const float v = static_cast<float>(below(6));
      ASSERT_TRUE(log.run(cache, key("k", which), v).ok());
      wanted.push_back(v);
    }
    EXPECT_EQ(log.read(), wanted);
  }
}

}  // namespace
}  // namespace graphcache::test
