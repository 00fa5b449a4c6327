// Shared by the suites of Recorder::keep(): objects that count how many of them are alive, and runs that keep them.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

// Whether the condition holds after an erase(). On a GPU other processes may use the device for longer than it waits.
template <class Condition>
bool soon(Cache& cache, const Condition& condition) {
  for (int i = 0; kOnGpu && i < 1000 && !condition(); ++i) cache.erase(key("a key that was never run"));
  return condition();
}

// An object that a graph keeps.
class Thing {
 public:
  explicit Thing(std::atomic<int>* alive, std::function<void()> at_end = nullptr)
      : alive_(alive), at_end_(std::move(at_end)) {
    ++*alive_;
  }
  ~Thing() {
    if (at_end_) at_end_();
    --*alive_;
  }
  Thing(const Thing&) = delete;

 private:
  std::atomic<int>* alive_;
  std::function<void()> at_end_;
};

// A world in which each run changes one number, and keeps one thing.
class Keeping {
 public:
  explicit Keeping(cudaStream_t on) : stream(on) {}

  std::shared_ptr<Thing> make() { return std::make_shared<Thing>(&alive, at_end); }
  // number = 3 * number + value. Keys of several values are siblings.
  absl::StatusOr<Outcome> run(Cache& cache, const Key& key, int value, cudaStream_t on = nullptr) {
    return followed(value, cache.run(key, on == nullptr ? stream : on, [&, value](Recorder& rec) {
      ++calls;
      rec.keep(make());
      record(rec, value);
    }));
  }
  // The same with another topology.
  absl::StatusOr<Outcome> run_other(Cache& cache, const Key& key, int value) {
    return followed(value, cache.run(key, stream, [&, value](Recorder& rec) {
      ++calls;
      rec.keep(make());
      rec.launch(do_nothing, {1, 1});
      record(rec, value);
    }));
  }
  // The work of a run with this value.
  template <class Value>
  void record(Recorder& rec, Value value) {
    rec.launch(blend, {1, 1}, number.get(), 1, 3, value);
  }
  // The outcome of a run with this value, for expect_number().
  absl::StatusOr<Outcome> followed(int value, const absl::StatusOr<Outcome>& outcome) {
    if (outcome.ok()) wanted = after(wanted, value);
    return outcome;
  }
  static unsigned after(unsigned was, int value) { return 3 * was + static_cast<unsigned>(value); }
  unsigned now() const { return static_cast<unsigned>(number.first()); }
  // Whether each run that succeeded has done its work, in order.
  void expect_number() const { EXPECT_EQ(now(), wanted); }

  const cudaStream_t stream;
  DeviceBuffer<int> number{1, 1};
  std::atomic<int> alive{0};
  std::function<void()> at_end;  // Called by the destructor of each thing that is made from now on.
  int calls = 0;
  unsigned wanted = 1;
};

// Calls that fail while the thread captures.
inline void allocate_and_free() {
  void* memory = nullptr;
  CUDA_OK(cudaMalloc(&memory, 64));
  CUDA_OK(cudaFree(memory));
}

inline bool erase_nothing(Cache& cache) { return cache.erase(key("a key that was never run")); }

// Gives the cache time to see that the launches are over: at once, or by uploads, whose end the second call sees.
inline void settle(Cache& cache) {
  for (int i = 0; i < 2; ++i) {
    CUDA_OK(cudaDeviceSynchronize());
    erase_nothing(cache);
  }
}

// Lets the stream's held work end, and the cache see it. For hostrt.
inline void release(const Stream& stream, Keeping& keeping, Cache& cache) {
  CUDA_OK(hostrt::release(stream));
  keeping.expect_number();
  settle(cache);
}

}  // namespace graphcache::test
