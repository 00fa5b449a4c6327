// The host cost of a hit on hostrt, the launch itself counted out, beside that of the least that any cache must do: an
// uncontended lock and a look-up. Times of one run are compared with each other, never with another machine's.
//
// Each benchmark iteration times a batch and reports its time per operation. A hit's launch is counted out by timing as
// many bare cudaGraphLaunch calls right after it and subtracting.
#include <absl/container/flat_hash_map.h>
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"

namespace {

constexpr int kBatch = 20000;

void nothing(float*, float) {}

template <class F>
double seconds(F&& operation) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kBatch; ++i) operation(i);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::vector<graphcache::Key> keys(int count) {
  std::vector<graphcache::Key> keys;
  for (int i = 0; i < count; ++i) keys.push_back(graphcache::key("train_step", i, dim3(4), dim3(256)));
  return keys;
}

class HitFixture {
 public:
  HitFixture() {
    graphcache::hostrt::reset();
    graphcache::hostrt::set_execution(false);
    check(cudaStreamCreate(&stream));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    float* data = nullptr;
    float value = 0;
    void* arguments[] = {&data, &value};
    check(cudaLaunchKernel(reinterpret_cast<const void*>(&nothing), dim3(1), dim3(1), arguments, 0, stream));
    check(cudaStreamEndCapture(stream, &graph_));
    check(cudaGraphInstantiate(&exec, graph_, 0));
  }

  template <class... Ts>
  graphcache::Outcome run(const graphcache::Key& key, const graphcache::Params<Ts...>& params) {
    return cache
        .run(key, stream, params,
             [](graphcache::Recorder& rec, graphcache::Slot<Ts>... slots) {
               float* data = nullptr;
               (rec.launch(nothing, {1, 1}, data, slots), ...);
               rec.launch(nothing, {1, 1}, data, 1.0f);
             })
        .value();
  }

  static void check(cudaError_t error) {
    if (error != cudaSuccess) std::abort();
  }

  graphcache::Cache cache{unshared()};
  cudaStream_t stream = nullptr;
  cudaGraphExec_t exec = nullptr;  // For bare launches.

 private:
  // Each key has its own executable from its first run on.
  static graphcache::Options unshared() {
    graphcache::Options options;
    options.share = false;
    return options;
  }

  cudaGraph_t graph_ = nullptr;
};

// `operation(i)` is a run that must have the outcome given.
template <class F>
void time_hits(benchmark::State& state, HitFixture& fixture, graphcache::Outcome expected, F&& operation) {
  bool right = true;
  for (auto _ : state) {
    const double hits = seconds([&](int i) { right &= operation(i) == expected; });
    const double launches =
        seconds([&](int) { benchmark::DoNotOptimize(cudaGraphLaunch(fixture.exec, fixture.stream)); });
    state.SetIterationTime(std::max(0.0, hits - launches) / kBatch);
  }
  if (!right) state.SkipWithError("a run had another outcome");
}

void hit_unchanged(benchmark::State& state) {
  HitFixture fixture;
  const auto all = keys(static_cast<int>(state.range(0)));
  for (const auto& key : all) fixture.run(key, graphcache::params());
  time_hits(state, fixture, graphcache::Outcome::kReplayed,
            [&](int i) { return fixture.run(all[static_cast<std::size_t>(i) % all.size()], graphcache::params()); });
}

void hit_unchanged_with_params(benchmark::State& state) {
  HitFixture fixture;
  const auto all = keys(1);
  fixture.run(all[0], graphcache::params(1.0f, 2.0f));
  time_hits(state, fixture, graphcache::Outcome::kReplayed,
            [&](int) { return fixture.run(all[0], graphcache::params(1.0f, 2.0f)); });
}

void hit_unchanged_key_built_each_time(benchmark::State& state) {
  HitFixture fixture;
  int batch = 7;
  benchmark::DoNotOptimize(batch);
  const auto key = [&] { return graphcache::key("train_step", batch, dim3(4), dim3(256)); };
  fixture.run(key(), graphcache::params());
  time_hits(state, fixture, graphcache::Outcome::kReplayed,
            [&](int) { return fixture.run(key(), graphcache::params()); });
}

void reference_lock_and_find(benchmark::State& state) {
  const auto all = keys(static_cast<int>(state.range(0)));
  absl::flat_hash_map<graphcache::Key, int> map;
  for (const auto& key : all) map.emplace(key, 1);
  std::mutex mutex;
  for (auto _ : state) {
    state.SetIterationTime(seconds([&](int i) {
                             const std::lock_guard<std::mutex> lock(mutex);
                             auto found = map.find(all[static_cast<std::size_t>(i) % all.size()]);
                             benchmark::DoNotOptimize(found);
                           }) /
                           kBatch);
  }
}

// Text of that many bytes, so that building the key is little beside its hash.
void build_key(benchmark::State& state) {
  const std::string text(static_cast<std::size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(graphcache::key(text));
}

// The argument is how many keys are used in turn.
BENCHMARK(hit_unchanged)->ArgName("keys")->Arg(1)->Arg(64)->UseManualTime()->Iterations(200);
BENCHMARK(reference_lock_and_find)->ArgName("keys")->Arg(1)->Arg(64)->UseManualTime()->Iterations(200);
BENCHMARK(hit_unchanged_with_params)->UseManualTime()->Iterations(200);
BENCHMARK(hit_unchanged_key_built_each_time)->UseManualTime()->Iterations(200);
BENCHMARK(build_key)->ArgName("bytes")->Arg(16)->Arg(28)->Arg(64)->Arg(256)->Arg(1 << 20);

}  // namespace

GRAPHCACHE_HOST_KERNEL(nothing)

BENCHMARK_MAIN();
