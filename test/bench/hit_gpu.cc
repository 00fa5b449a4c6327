// A hit on a GPU as a ratio to a bare cudaGraphLaunch of the same graph: hit [--json FILE] [ROUNDS].
//
// Both launch a batch of eight in turns, and the GPU is idle at the start of each: the queue never fills, so the time
// is the host's. Medians of the rounds.
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "gpu.h"
#include "graphcache/graphcache.h"
#include "measure.h"
#include "report.h"

namespace {

constexpr int kBatch = 8;

double batch(cudaStream_t stream, const std::function<void()>& launches) {
  CHECK(cudaStreamSynchronize(stream));
  return bench::nanoseconds(launches) / kBatch;
}

void measure(bench::Report& report, int nodes, int rounds) {
  cudaStream_t stream = bench::new_stream();
  const bench::Counted work(nodes);
  cudaGraphExec_t exec = work.instantiate(stream);
  graphcache::Cache cache;
  const graphcache::Key key = graphcache::key("chain", nodes);
  const auto enqueue = [&](cudaStream_t on) { return work.enqueue(on); };

  bool right = true;
  const std::function<void()> bare = [&] {
    for (int i = 0; i < kBatch; ++i) CHECK(cudaGraphLaunch(exec, stream));
  };
  const std::function<void()> run = [&] {
    for (int i = 0; i < kBatch; ++i) right &= cache.run(key, stream, enqueue).ok();
  };
  const std::vector<std::pair<const char*, std::function<void()>>> ways = {{"run", run}};

  std::vector<double> of_bare;
  std::vector<std::vector<double>> of_ways(ways.size());
  for (int round = -3; round < rounds; ++round) {  // The first ones are not counted.
    const double ns = batch(stream, bare);
    if (round >= 0) of_bare.push_back(ns);
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const double of_way = batch(stream, ways[way].second);
      if (round >= 0) of_ways[way].push_back(of_way);
    }
  }
  work.must_have_run((rounds + 3L) * kBatch * (1 + static_cast<long>(ways.size())));
  if (!right || cache.stats().captures != 1) {
    std::fprintf(stderr, "not as meant: %s\n", graphcache::to_string(cache.stats()).c_str());
    std::exit(1);
  }
  for (std::size_t way = 0; way < ways.size(); ++way) {
    report.add({"hit",
                {{"way", ways[way].first}, {"nodes", nodes}},
                "ns",
                bench::median(of_ways[way]),
                "cudaGraphLaunch",
                bench::median(of_bare)});
  }
  cache.clear();
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 400);
  for (const int nodes : {1, 8, 64, 200, 1025}) measure(report, nodes, rounds);
  return report.write();
}
