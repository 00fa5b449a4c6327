// The work on which graphcache and others are measured: 64 keys, each with a graph of 200 short kernels. workload.py
// measures the same for ways in Python.
//
// Key k adds 1 to the first 256 (k + 1) floats of one array, 200 times. The keys run in a random order that is the same
// for every way. A way is `run`: it enqueues the work of a key on `stream`, from its first call on.
//
//   start-up  each key runs once, until the device is done
//   device    what these runs took of the device's memory
//   host      the time of each of 2000 calls of run, four in a row with the device idle before
//   total     2000 runs in a row, until the device is done, for each run
//
// Between start-up and the rest, 1280 runs are not timed, in which ways that share executables settle. Each way runs in
// its own process. It prints its figures as one line of JSON, after a check of the kernels' results.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace peers {

constexpr int kKeys = 64, kKernels = 200, kBlock = 256;
constexpr int kRunsToSettle = 1280, kBatches = 500, kInBatch = 4, kRunsInTotal = 2000;

#define PEERS_CHECK(call) ::peers::check((call), #call)
inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

inline int elements(int key) { return kBlock * (key + 1); }

class Order {
 public:
  int next() {
    state_ = (state_ * 1103515245u + 12345u) & 0x7fffffffu;
    return static_cast<int>((state_ >> 16) % kKeys);
  }

 private:
  std::uint32_t state_ = 1;
};

// The memory and the stream of all ways.
struct Work {
  cudaStream_t stream = nullptr;
  float* data = nullptr;

  Work() {
    PEERS_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    PEERS_CHECK(cudaMalloc(reinterpret_cast<void**>(&data), elements(kKeys - 1) * sizeof(float)));
    clear();
  }
  void clear() const {
    PEERS_CHECK(cudaMemset(data, 0, elements(kKeys - 1) * sizeof(float)));
    wait();
  }
  void wait() const { PEERS_CHECK(cudaDeviceSynchronize()); }
};

inline double used_mib() {
  std::size_t free = 0, all = 0;
  PEERS_CHECK(cudaMemGetInfo(&free, &all));
  return static_cast<double>(all - free) / (1 << 20);
}

inline double microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Runs everything and prints the figures. Returns the exit status of main.
template <class Run>
int measure(const char* way, const char* version, const Work& work, Run&& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<long> runs(kKeys);
  const auto run_key = [&](int key) {
    run(key);
    ++runs[static_cast<std::size_t>(key)];
  };
  const double used = used_mib();
  const auto begin = Clock::now();
  for (int key = 0; key < kKeys; ++key) run_key(key);
  work.wait();
  const double start_up = microseconds_since(begin) / 1000, device = used_mib() - used;

  Order order;
  for (int i = 0; i < kRunsToSettle; ++i) run_key(order.next());
  work.wait();

  std::vector<double> host;
  for (int batch = 0; batch < kBatches; ++batch) {
    for (int i = 0; i < kInBatch; ++i) {
      const int key = order.next();
      const auto called = Clock::now();
      run_key(key);
      host.push_back(microseconds_since(called));
    }
    work.wait();
  }
  const auto begin_total = Clock::now();
  for (int i = 0; i < kRunsInTotal; ++i) run_key(order.next());
  work.wait();
  const double total = microseconds_since(begin_total) / kRunsInTotal;

  // The keys from b on use the elements of block b.
  std::vector<float> found(static_cast<std::size_t>(elements(kKeys - 1)));
  PEERS_CHECK(cudaMemcpy(found.data(), work.data, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
  long expected = 0;
  for (int key = kKeys - 1; key >= 0; --key) {
    expected += kKernels * runs[static_cast<std::size_t>(key)];
    for (int i = key * kBlock; i < elements(key); ++i) {
      if (found[static_cast<std::size_t>(i)] == static_cast<float>(expected)) continue;
      std::fprintf(stderr, "%s: element %d is %f, not %ld\n", way, i, found[static_cast<std::size_t>(i)], expected);
      return 1;
    }
  }

  cudaDeviceProp properties;
  PEERS_CHECK(cudaGetDeviceProperties(&properties, 0));
  std::sort(host.begin(), host.end());
  std::printf(
      "{\"way\": \"%s\", \"version\": \"%s\", \"device\": \"%s\", \"start_up_ms\": %.4g, \"device_mib\": %.4g, "
      "\"host_mean_us\": %.4g, \"host_median_us\": %.4g, \"host_p99_us\": %.4g, \"total_us\": %.4g}\n",
      way, version, properties.name, start_up, device,
      std::accumulate(host.begin(), host.end(), 0.0) / static_cast<double>(host.size()), host[host.size() / 2],
      host[host.size() * 99 / 100], total);
  return 0;
}

}  // namespace peers
