// One thread synchronizes the device and makes and destroys cuBLAS handles behind capture_gate, while another one
// captures new keys all the time, on a GPU: handles_behind_gate [DESTRUCTIONS [SECONDS [THREADS]]]. Each of three ways
// runs until one limit is reached, with THREADS threads that make handles. Fails if a capture broke or a result was
// wrong.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "../../demo/cublas.h"
#include "../kernels.h"
#include "graphcache/capture_gate.h"
#include "graphcache/graphcache.h"

namespace {

constexpr int kCount = 64;

#define CHECK(call) check((call), #call)
void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

enum class Way {
  kPairs,         // a handle is made and destroyed under one hold of the gate
  kBatches,       // handles are made under one hold, and destroyed under another
  kMadeBesideIt,  // as kBatches, but made without the gate
};

struct Counts {
  std::atomic<int> destroyed{0}, synchronized{0};
};

void make_handles(Way way, const demo::Cublas& cublas, int destructions, const std::atomic<bool>& stop,
                  Counts* counts) {
  std::vector<demo::Cublas::Handle> handles(way == Way::kPairs ? 1 : 16);
  const auto make = [&] {
    for (demo::Cublas::Handle& handle : handles) demo::check_cublas(cublas.create(&handle), "cublasCreate");
  };
  const auto destroy = [&] {
    for (demo::Cublas::Handle handle : handles) demo::check_cublas(cublas.destroy(handle), "cublasDestroy");
    counts->destroyed += static_cast<int>(handles.size());
    CHECK(cudaDeviceSynchronize());
    ++counts->synchronized;
  };
  graphcache::CaptureGate& gate = graphcache::capture_gate(0);
  while (!stop && counts->destroyed < destructions) {
    if (way == Way::kMadeBesideIt) make();
    if (way == Way::kBatches) {
      const std::lock_guard<graphcache::CaptureGate> no_capture(gate);
      make();
    }
    const std::lock_guard<graphcache::CaptureGate> no_capture(gate);
    if (way == Way::kPairs) make();
    destroy();
  }
}

bool is_sum(const float* data, cudaStream_t stream, float sum) {
  std::vector<float> values(kCount);
  CHECK(cudaMemcpyAsync(values.data(), data, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  return values == std::vector<float>(kCount, sum);
}

// Returns false if a capture broke or a result was wrong.
bool measure(const char* name, Way way, const demo::Cublas& cublas, int destructions, int seconds, int thread_count) {
  graphcache::Cache cache;
  cudaStream_t stream = nullptr;
  float* data = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&data), kCount * sizeof(float)));
  CHECK(cudaMemsetAsync(data, 0, kCount * sizeof(float), stream));

  std::atomic<bool> stop{false};
  Counts counts;
  std::vector<std::thread> others;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < thread_count; ++i) {
    others.emplace_back([&] { make_handles(way, cublas, destructions, stop, &counts); });
  }
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  int runs = 0, failed = 0, wrong = 0;
  while (counts.destroyed < destructions && passed() < seconds) {
    const auto outcome = cache.run(graphcache::key("new", runs), stream, [&](graphcache::Recorder& rec) {
      rec.launch(graphcache::test::add, {1, kCount}, data, kCount, 1.0f);
    });
    failed += outcome.ok() ? 0 : 1;
    ++runs;
    if (runs > 32) cache.erase(graphcache::key("new", runs - 32));
    if (runs % 64 == 0) wrong += is_sum(data, stream, static_cast<float>(runs - failed)) ? 0 : 1;
  }
  stop = true;
  for (std::thread& other : others) other.join();
  const double took = passed();
  wrong += is_sum(data, stream, static_cast<float>(runs - failed)) ? 0 : 1;
  const graphcache::Stats stats = cache.stats();
  const auto direct = stats.outcome(graphcache::Outcome::kEager);
  std::printf("%-18s %9llu %7llu %7llu %7d %6d %10d %13d %8.1f %14.0f\n", name,
              static_cast<unsigned long long>(stats.captures), static_cast<unsigned long long>(stats.capture_failures),
              static_cast<unsigned long long>(direct), failed, wrong, counts.destroyed.load(),
              counts.synchronized.load(), took, counts.destroyed / took);
  std::fflush(stdout);
  cache.clear();
  CHECK(cudaFree(data));
  CHECK(cudaStreamDestroy(stream));
  return stats.capture_failures == 0 && direct == 0 && failed == 0 && wrong == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int destructions = argc > 1 ? std::atoi(argv[1]) : 100000;
  const int seconds = argc > 2 ? std::atoi(argv[2]) : 600;
  const int threads = argc > 3 ? std::atoi(argv[3]) : 1;
  const demo::Cublas* cublas = demo::Cublas::get();
  if (cublas == nullptr) {
    std::printf("skipped: no libcublas here\n");
    return 77;
  }
  std::printf("%-18s %9s %7s %7s %7s %6s %10s %13s %8s %14s\n", "handles", "captures", "broken", "direct", "failed",
              "wrong", "destroyed", "synchronized", "seconds", "destructions/s");
  bool right = measure("pairs", Way::kPairs, *cublas, destructions, seconds, threads);
  right &= measure("batches", Way::kBatches, *cublas, destructions, seconds, threads);
  right &= measure("made beside it", Way::kMadeBesideIt, *cublas, destructions, seconds, threads);
  return right ? 0 : 1;
}
