// Cost of a program's start for its runs, on a GPU: start_up [--json FILE] [ROUNDS].
//
// 64 keys of 200 kernels run in turn, over and over, and the stream is synchronized after each run. Keys differ in
// their grids. Each round has new caches:
//
//   shared  Share::kAlways
//   own     Share::kNever: an executable a key
//
// `slowest` is the longest host time of each key's first two runs, in us; its reference is the longest direct run of a
// key (a disabled cache) in the same round. `median` is the same for medians. `graphs` is the time until all 64 keys in
// turn have run as graphs, in ms. Medians of the rounds.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "gpu.h"
#include "graphcache/graphcache.h"
#include "measure.h"
#include "report.h"

namespace {

constexpr int kKeys = 64, kNodes = 200, kCount = 32, kBlock = 32, kMostTurns = 10'000;

struct Way {
  const char* executables;
  graphcache::Options options;
};

graphcache::Options options(graphcache::Share share, int max_executables = 64) {
  graphcache::Options options;
  options.share = share;
  options.max_executables = max_executables;
  return options;
}

struct Figures {
  std::vector<double> slowest, median, graphs;
};

class Work {
 public:
  Work() { CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), kCount * sizeof(float))); }

  // Measures the times of the first two runs of each key, in us, and the time until all run as graphs, in ms.
  void measure(const graphcache::Options& options, Figures* figures) {
    CHECK(cudaMemset(data_, 0, kCount * sizeof(float)));
    CHECK(cudaDeviceSynchronize());
    graphcache::Cache cache(options);
    std::vector<double> times;
    double until_graphs = 0;
    long runs = 0;
    int on_graphs = 0;  // number of keys in a row
    for (int turn = 0; turn < kMostTurns && on_graphs < kKeys; ++turn) {
      if (turn == 2 && options.max_executables == 0) break;
      for (int number = 0; number < kKeys && on_graphs < kKeys; ++number) {
        graphcache::Outcome outcome = graphcache::Outcome::kEager;
        const double ns = bench::nanoseconds([&] { outcome = run(cache, number); });
        until_graphs += ns + bench::nanoseconds([&] { CHECK(cudaStreamSynchronize(stream_)); });
        if (turn < 2) times.push_back(ns / 1000);
        on_graphs = outcome == graphcache::Outcome::kEager ? 0 : on_graphs + 1;
        ++runs;
      }
    }
    if (options.max_executables != 0 && on_graphs < kKeys) fail("not all keys came to run as graphs");
    must_have_run(runs);
    figures->slowest.push_back(*std::max_element(times.begin(), times.end()));
    figures->median.push_back(bench::median(times));
    figures->graphs.push_back(until_graphs / 1e6);
  }

 private:
  graphcache::Outcome run(graphcache::Cache& cache, int number) {
    const dim3 grid(static_cast<unsigned>(1 + number));  // blocks after the first find nothing to do
    const auto outcome = cache.run(graphcache::key("start_up", number), stream_, graphcache::params(1.0f),
                                   [&](graphcache::Recorder& rec, graphcache::Slot<float> one) {
                                     for (int i = 0; i < kNodes - 2; ++i) {
                                       rec.launch(graphcache::test::add, {grid, kBlock}, data_, kCount, 1.0f);
                                     }
                                     for (int i = 0; i < 2; ++i) {
                                       rec.launch(graphcache::test::add, {grid, kBlock}, data_, kCount, one);
                                     }
                                   });
    if (!outcome.ok()) fail(outcome.status().ToString().c_str());
    return *outcome;
  }

  void must_have_run(long runs) const {
    std::vector<float> values(kCount);
    CHECK(cudaMemcpy(values.data(), data_, kCount * sizeof(float), cudaMemcpyDeviceToHost));
    if (values != std::vector<float>(kCount, static_cast<float>(runs * kNodes))) fail("wrong sums");
  }

  [[noreturn]] static void fail(const char* why) {
    std::fprintf(stderr, "%s\n", why);
    std::exit(1);
  }

  float* data_ = nullptr;
  cudaStream_t stream_ = bench::new_stream();
};

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 11);
  const Way ways[] = {{"none", options(graphcache::Share::kAlways, 0)},
                      {"shared", options(graphcache::Share::kAlways)},
                      {"own", options(graphcache::Share::kNever)}};
  Figures figures[std::size(ways)];
  Work work;
  for (int round = -1; round < rounds; ++round) {  // negative rounds are a warm-up
    for (std::size_t i = 0; i < std::size(ways); ++i) {
      Figures uncounted;
      work.measure(ways[i].options, round < 0 ? &uncounted : &figures[i]);
    }
  }
  for (std::size_t i = 1; i < std::size(ways); ++i) {
    const auto add = [&](const char* what, std::vector<double> Figures::*of) {
      report.add({"start_up",
                  {{"executables", ways[i].executables}, {"time", what}},
                  "us",
                  bench::median(figures[i].*of),
                  "direct",
                  bench::median(figures[0].*of),
                  false});
    };
    add("slowest", &Figures::slowest);
    add("median", &Figures::median);
    report.add({"start_up",
                {{"executables", ways[i].executables}, {"time", "graphs"}},
                "ms",
                bench::median(figures[i].graphs)});
  }
  return report.write();
}
