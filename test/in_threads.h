// Shared by the suites with threads: threads that begin together, and waits that end. Needs no CUDA runtime.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace graphcache::test {

// Lets threads through once all of them have arrived.
class Gate {
 public:
  explicit Gate(int count) : missing_(count) {}
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) return arrived_.notify_all();
    arrived_.wait(lock, [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  int missing_;
};

// Calls work(0) ... work(count - 1) at the same time, each in its own thread, and waits for them.
inline void in_threads(int count, const std::function<void(int)>& work) {
  Gate gate(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      gate.pass();
      work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Waits for `flag`, but not for ever, so that a test fails instead of hanging.
inline bool comes_true(const std::atomic<bool>& flag) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!flag && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return flag;
}

}  // namespace graphcache::test
