// Shared by the benchmarks on hostrt. Include this once in a program, because it defines functions.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "measure.h"

// The program is linked with --wrap=cudaGraphLaunch, so a launch does nothing. hostrt's launch takes longer than a hit,
// and holds one lock for all threads.
extern "C" cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

namespace bench {

inline void nothing(float*, float) {}

// "AMD EPYC, 2 CPUs, hostrt"
inline std::string machine() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, model = "CPU";
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) model = line.substr(line.find(':') + 2);
  }
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) + " CPUs, hostrt";
}

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

inline cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  return stream;
}

inline graphcache::Key numbered(int i) { return graphcache::key("train_step", i, dim3(4), dim3(256)); }

inline std::vector<graphcache::Key> numbered_keys(int count) {
  std::vector<graphcache::Key> keys;
  for (int i = 0; i < count; ++i) keys.push_back(numbered(i));
  return keys;
}

// Each key has its own executable from its first run on, and keeps it.
inline graphcache::Options unshared(int executables) {
  graphcache::Options options;
  options.share = graphcache::Share::kNever;
  options.max_executables = options.max_templates = executables;
  return options;
}

// A graph of one kernel, different for each value.
template <class... Ts>
struct Work {
  void operator()(graphcache::Recorder& rec, graphcache::Slot<Ts>... slots) const {
    float* data = nullptr;
    (rec.launch(nothing, {1, 1}, data, slots), ...);
    rec.launch(nothing, {1, 1}, data, 1.0f);
  }
};

template <class... Ts>
void run(graphcache::Cache& cache, cudaStream_t stream, const graphcache::Key& key, Ts... values) {
  const auto done = cache.run(key, stream, graphcache::params(values...), Work<Ts...>());
  if (done.ok()) return;
  std::fprintf(stderr, "%s\n", done.status().ToString().c_str());
  std::exit(1);
}

inline void must_be_hit(const absl::StatusOr<graphcache::Outcome>& outcome) {
  if (outcome.ok() && *outcome == graphcache::Outcome::kReplayed) return;
  std::fprintf(stderr, "a run was no hit\n");
  std::exit(1);
}

template <class... Ts>
void must_hit(graphcache::Cache& cache, cudaStream_t stream, const graphcache::Key& key, Ts... values) {
  must_be_hit(cache.run(key, stream, graphcache::params(values...), Work<Ts...>()));
}

// The minimum work of any cache: an uncontended lock and a look-up.
class LockAndFind {
 public:
  explicit LockAndFind(const std::vector<graphcache::Key>& keys) {
    for (const graphcache::Key& key : keys) map_.emplace(key, nullptr);
  }
  void operator()(const graphcache::Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = map_.find(key);
    keep(found);
  }

 private:
  std::mutex mutex_;
  absl::flat_hash_map<graphcache::Key, void*> map_;
};

// ns of each of `count` calls operation(i).
template <class F>
double each(int count, F&& operation) {
  return nanoseconds([&] {
           for (int i = 0; i < count; ++i) operation(i);
         }) /
         count;
}

// The lowest time of each way; the ways take turns. Other work on the machine can only increase a time.
inline std::vector<double> lowest_in_turns(int rounds, const std::vector<std::function<double()>>& ways) {
  std::vector<double> lowest(ways.size(), std::numeric_limits<double>::max());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t way = 0; way < ways.size(); ++way) lowest[way] = std::min(lowest[way], ways[way]());
  }
  return lowest;
}

}  // namespace bench

GRAPHCACHE_HOST_KERNEL(bench::nothing)
