// How long the hits of one thread are held up by what another thread asks of the same cache: pauses [KEYS [ROUNDS]].
// For each operation: the worst hit while it was repeated, and beside it the worst hit of as long a time in which the
// other thread had another cache to itself, which is what the machine adds. The lowest of the rounds.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"

namespace {

using Clock = std::chrono::steady_clock;

void nothing(float*) {}

graphcache::Options options(int keys) {
  graphcache::Options options;
  options.share = false;
  options.max_executables = options.max_templates = keys + 10;
  return options;
}

void run(graphcache::Cache& cache, cudaStream_t stream, const graphcache::Key& key) {
  const auto done = cache.run(key, stream, [](graphcache::Recorder& rec) {
    float* data = nullptr;
    rec.launch(nothing, {1, 1}, data);
  });
  if (!done.ok()) std::abort();
}

graphcache::Key numbered(int i) { return graphcache::key("train_step", i, dim3(4), dim3(256)); }

// The worst hit of `cache`, in microseconds, while `operation` runs here.
double worst_hit(graphcache::Cache& cache, const std::function<void()>& operation) {
  std::atomic<bool> ready{false}, over{false};
  double worst = 0;
  std::thread other([&] {
    cudaStream_t stream = nullptr;
    if (cudaStreamCreate(&stream) != cudaSuccess) std::abort();
    const graphcache::Key key = graphcache::key("hit");
    run(cache, stream, key);
    run(cache, stream, key);
    ready = true;
    while (!over) {
      const auto begin = Clock::now();
      run(cache, stream, key);
      worst = std::max(worst, std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
  });
  while (!ready) std::this_thread::yield();
  operation();
  over = true;
  other.join();
  return worst;
}

template <class F>
void repeatedly(F&& operation) {
  for (const auto end = Clock::now() + std::chrono::milliseconds(20); Clock::now() < end;) operation();
}

}  // namespace

GRAPHCACHE_HOST_KERNEL(nothing)

int main(int argc, char** argv) {
  const int keys = argc > 1 ? std::atoi(argv[1]) : 100000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  graphcache::hostrt::set_execution(false);
  cudaStream_t stream = nullptr;
  if (cudaStreamCreate(&stream) != cudaSuccess) std::abort();

  struct Operation {
    const char* name;
    int times;  // In a round.
    std::function<void(graphcache::Cache&)> run;
    double worst = 1e9, of_machine = 1e9;
  } operations[] = {
      {"new keys", 1,
       [&](graphcache::Cache& cache) {
         for (int i = 0; i < keys; ++i) run(cache, stream, numbered(i));
       }},
      {"stats", 20, [](graphcache::Cache& cache) { repeatedly([&] { (void)cache.stats(); }); }},
      {"entries", 20, [](graphcache::Cache& cache) { repeatedly([&] { (void)cache.entries(); }); }},
  };
  for (int round = 0; round < rounds; ++round) {
    auto cache = std::make_unique<graphcache::Cache>(options(keys));
    auto other = std::make_unique<graphcache::Cache>(options(keys));
    for (Operation& operation : operations) {
      for (int i = 0; i < operation.times; ++i) {
        operation.worst = std::min(operation.worst, worst_hit(*cache, [&] { operation.run(*cache); }));
        operation.of_machine = std::min(operation.of_machine, worst_hit(*cache, [&] { operation.run(*other); }));
      }
    }
  }
  std::printf("%d keys, worst hit in us, lowest of %d rounds\n%-10s %10s %18s\n", keys, rounds, "operation",
              "its cache", "another's cache");
  for (const Operation& operation : operations) {
    std::printf("%-10s %10.0f %18.0f\n", operation.name, operation.worst, operation.of_machine);
  }
}
