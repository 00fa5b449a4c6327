// Shared by the accounting suites: counts of the calls that some work makes, and of what it leaves alive.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

using Counts = std::map<std::string, std::uint64_t>;

// Counts the runtime calls that `work` makes.
template <class F>
inline Counts calls_of(F&& work) {
  hostrt::reset_calls();
  work();
  return hostrt::call_counts();
}

// Each of `once` was called once, and none of `never`.
inline void expect_calls(const Counts& calls, const std::vector<const char*>& once,
                         const std::vector<const char*>& never) {
  for (const char* name : once) EXPECT_EQ(calls.count(name) != 0 ? calls.at(name) : 0, 1u) << name;
  for (const char* name : never) EXPECT_EQ(calls.count(name), 0u) << name;
}

class AccountingTest : public testing::Test {
 protected:
  AccountingTest() {
    hostrt::reset();
    stream = std::make_unique<Stream>();
    data = std::make_unique<DeviceBuffer<float>>(kSize);
    empty = hostrt::ledger();
  }
  ~AccountingTest() override {
    EXPECT_FALSE(is_capturing(*stream));
    EXPECT_EQ(thread_capture_mode(), cudaStreamCaptureModeGlobal);
    CUDA_OK(cudaPeekAtLastError());
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
  }

  absl::StatusOr<Outcome> run_add(Cache& cache, const Key& which) { return run_add(cache, which, *stream); }
  absl::StatusOr<Outcome> run_add(Cache& cache, const Key& which, cudaStream_t on) {
    return cache.run(which, on, [&](cudaStream_t s) {
      if (in_fn) in_fn();
      return launch(add, kGrid, kBlock, s, data->get(), kSize, 1.0f);
    });
  }
  // Three kernel, two copy and two set nodes with one slot each, between nodes without slots.
  absl::StatusOr<Outcome> run_mixed(Cache& cache, const std::vector<int>& v) { return run_mixed(cache, v, *stream); }
  absl::StatusOr<Outcome> run_mixed(Cache& cache, const std::vector<int>& v, cudaStream_t on) {
    return run_mixed(cache, key("mixed"), v, on);
  }
  absl::StatusOr<Outcome> run_mixed(Cache& cache, const Key& which, const std::vector<int>& v) {
    return run_mixed(cache, which, v, *stream);
  }
  absl::StatusOr<Outcome> run_mixed(Cache& cache, const Key& which, const std::vector<int>& v, cudaStream_t on) {
    float* const p = data->get();
    using I = Slot<int>;
    return cache.run(which, on, params(v[0], v[1], v[2], v[3], v[4], v[5], v[6]),
                     [p](Recorder& rec, I a, I b, I c, I d, I e, I f, I g) {
                       rec.launch(fill, {kGrid, kBlock}, p, kSize, 0);
                       rec.launch(add, {kGrid, kBlock}, p, kSize, a);
                       rec.memset(p, b, 4);
                       rec.memcpy(p + 8, p, c);
                       rec.launch(add, {kGrid, kBlock}, p, d, 1);
                       rec.memset(p + 16, 1, e);
                       rec.memcpy(p + 32, p, f);
                       rec.launch(add, {kGrid, g}, p, kSize, 1);
                       rec.memset(p + 48, 0, 4);
                     });
  }
  static constexpr int kMixedSlotNodes = 7;
  static constexpr std::size_t kMixedNodes = 9;

  void expect_no_graphs() {
    const hostrt::Ledger now = hostrt::ledger();
    EXPECT_EQ(now.graphs, 0u);
    EXPECT_EQ(now.executables, 0u);
    EXPECT_EQ(now.captures, 0u);
    EXPECT_EQ(now.events, empty.events);
    EXPECT_LE(now.streams, empty.streams + 1);  // a cache may have a stream
    EXPECT_EQ(now.allocations, empty.allocations);
  }

  std::unique_ptr<Stream> stream;
  std::unique_ptr<DeviceBuffer<float>> data;
  std::function<void()> in_fn;
  hostrt::Ledger empty;
};

}  // namespace graphcache::test
