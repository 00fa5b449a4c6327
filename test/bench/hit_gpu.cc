// Time of a hit on a GPU, relative to a bare cudaGraphLaunch of the same graph: hit [--json FILE] [ROUNDS].
//
// The ways take turns with batches of eight launches, and the GPU is idle at the start of each. The queue never fills,
// so the time is the host's. Medians of the rounds. `control` is another executable of the same graph, launched in the
// same way as the reference: the distance of its ratio from 1 shows the precision of these ratios.
#include <cuda_runtime_api.h>

#include <cstddef>
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

void measure(bench::Report& report, int nodes, int rounds) {
  cudaStream_t stream = bench::new_stream();
  const bench::Counted work(nodes);
  cudaGraphExec_t exec = work.instantiate(stream), other = work.instantiate(stream);
  graphcache::Cache cache;
  const graphcache::Key key = graphcache::key("chain", nodes);
  const auto enqueue = [&](cudaStream_t on) { return work.enqueue(on); };

  auto step = cache.prepare(key, enqueue);
  bool right = true;
  struct Way {
    const char* name;
    std::function<void()> launch;
    std::vector<double> ns = {};
  };
  std::vector<Way> ways = {
      {"cudaGraphLaunch", [&] { CHECK(cudaGraphLaunch(exec, stream)); }},
      {"control", [&] { CHECK(cudaGraphLaunch(other, stream)); }},
      {"run", [&] { right &= cache.run(key, stream, enqueue).ok(); }},
      {"step", [&] { right &= step.run(stream).ok(); }},
  };

  for (int round = -3; round < rounds; ++round) {  // negative rounds are a warm-up
    for (std::size_t i = 0; i < ways.size(); ++i) {
      Way& way = ways[(i + static_cast<std::size_t>(round + 3)) % ways.size()];  // each way comes first in turn
      CHECK(cudaStreamSynchronize(stream));
      const double ns = bench::nanoseconds([&] {
        for (int launch = 0; launch < kBatch; ++launch) way.launch();
      });
      if (round >= 0) way.ns.push_back(ns / kBatch);
    }
  }
  work.must_have_run((rounds + 3L) * kBatch * static_cast<long>(ways.size()));
  if (!right || cache.stats().captures != 1) {
    std::fprintf(stderr, "not as meant: %s\n", graphcache::to_string(cache.stats()).c_str());
    std::exit(1);
  }
  for (std::size_t i = 1; i < ways.size(); ++i) {
    report.add({"hit",
                {{"way", ways[i].name}, {"nodes", nodes}},
                "ns",
                bench::median(ways[i].ns),
                ways[0].name,
                bench::median(ways[0].ns)});
  }
  cache.clear();
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphExecDestroy(other));
  CHECK(cudaStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 400);
  for (const int nodes : {1, 8, 64, 200, 1025}) measure(report, nodes, rounds);
  return report.write();
}
