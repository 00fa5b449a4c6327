// Cost of observation for a hit on a GPU: observed [--json FILE] [ROUNDS].
//
// A hit of a graph of eight kernels, by Cache::run() and by a prepared step, with one listener: HitLatency, NvtxRanges
// (without a profiler), both of these, EventRing, or one that wants launches and does nothing. The reference is the
// same hit without listeners. `control` is another cache without listeners: the distance of its ratio from 1 shows the
// precision of these ratios. Each way has several caches, because executables differ. The ways take turns with batches
// of eight launches, and the GPU is idle at the start of each. Medians of the rounds.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu.h"
#include "graphcache/graphcache.h"
#include "graphcache/observe.h"
#include "measure.h"
#include "report.h"

namespace {

constexpr int kBatch = 8, kNodes = 8, kCaches = 6;

struct Way {
  const char* name;
  graphcache::Options options;
  std::vector<std::unique_ptr<graphcache::Cache>> caches = {};
  std::vector<double> ns = {};
};

void measure(bench::Report& report, bool by_step, int rounds) {
  cudaStream_t stream = bench::new_stream();
  const bench::Counted work(kNodes);
  const auto enqueue = [&](cudaStream_t on) { return work.enqueue(on); };
  const graphcache::Key key = graphcache::key("chain");
  std::vector<Way> ways;
  class Launches final : public graphcache::Listener {
    Wants wants() const override { return {.launches = true}; }
  };
  for (const char* name : {"off", "control", "latency", "nvtx", "both", "events", "launches"}) {
    ways.push_back({name, {}});
    const std::string way = name;
    graphcache::Listeners& listeners = ways.back().options.listeners;
    if (way == "latency" || way == "both") listeners.push_back(std::make_shared<graphcache::HitLatency>());
    if (way == "nvtx" || way == "both") listeners.push_back(std::make_shared<graphcache::NvtxRanges>());
    if (way == "launches") listeners.push_back(std::make_shared<Launches>());
    if (way == "events") listeners.push_back(std::make_shared<graphcache::EventRing>(10'000));
  }
  using Step = decltype(ways[0].caches[0]->prepare(key, enqueue));
  std::vector<std::vector<Step>> steps(ways.size());
  bool right = true;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    for (int k = 0; k < kCaches; ++k) {
      ways[i].caches.push_back(std::make_unique<graphcache::Cache>(ways[i].options));
      steps[i].push_back(ways[i].caches.back()->prepare(key, enqueue));
    }
  }
  for (int round = -3; round < rounds; ++round) {  // negative rounds are a warm-up
    for (std::size_t i = 0; i < ways.size(); ++i) {
      // Each way comes first in turn.
      const std::size_t which = (i + static_cast<std::size_t>(round + 3)) % ways.size();
      double ns = 0;
      for (std::size_t k = 0; k < kCaches; ++k) {
        graphcache::Cache& cache = *ways[which].caches[k];
        CHECK(cudaStreamSynchronize(stream));
        ns += bench::nanoseconds([&] {
          for (int launch = 0; launch < kBatch; ++launch) {
            right &= by_step ? steps[which][k].run(stream).ok() : cache.run(key, stream, enqueue).ok();
          }
        });
      }
      if (round >= 0) ways[which].ns.push_back(ns / kBatch / kCaches);
    }
  }
  work.must_have_run((rounds + 3L) * kBatch * kCaches * static_cast<long>(ways.size()));
  if (!right) std::exit((std::fprintf(stderr, "a run failed\n"), 1));
  for (std::size_t i = 1; i < ways.size(); ++i) {
    report.add({"observed",
                {{"way", by_step ? "step" : "run"}, {"on", ways[i].name}},
                "ns",
                bench::median(ways[i].ns),
                "all off",
                bench::median(ways[0].ns)});
  }
  CHECK(cudaDeviceSynchronize());
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 200);
  for (const bool by_step : {false, true}) measure(report, by_step, rounds);
  return report.write();
}
