// The choices of Options::share beside dictionaries of executables by hand, on a GPU: policy [--json FILE] [ROUNDS]
// [RUNS].
//
//   dict          an executable for each key, in a map; a key's first run captures and instantiates
//   lru8          the same with eight executables; a miss destroys the least recently used one
//   when_full_64  cache.run with the default options
//   when_full_8   max_executables = 8
//   never_64      Share::kNever
//   always_64     Share::kAlways
//
// 64 keys of 200 short kernels, each key with another grid and other values. Every way starts without executables, and
// has the same keys in the same order:
//
//   start_up  the first run of each key, until the device is done
//   host      the host time of each of RUNS runs of random keys. After every 32 runs, untimed, the stream is
//             synchronized, so that the launch queue is never full
//   total     another RUNS runs, until the device is done, for each run
//   memory    the device memory that is free before, less what is free at the end, by cudaMemGetInfo. The driver takes
//             it in pieces of 2 MiB
//
// Then everything is destroyed, and the result is compared with that of the CPU. In each round the ways take turns in
// another order. First, each way of each round has a process of its own. Then all of them share one process, where the
// driver reuses the memory that former ways have returned: instantiations are faster there, and `memory` says nothing.
// Before the first way, a process makes its context, loads the kernel and launches a small graph.
//
// The tables have the ratios of two ways in the same round: the median of the rounds, the least and the greatest.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "child.h"
#include "gpu.h"
#include "graphcache/graphcache.h"
#include "measure.h"
#include "report.h"

namespace {

namespace test = graphcache::test;

constexpr int kKeys = 64, kNodes = 200, kBlock = 256, kCount = kKeys * kBlock, kFactor = 3, kRunsToSync = 32;
constexpr std::size_t kLruSize = 8;

int value(int key, int node) { return key * kNodes + node; }

[[noreturn]] void fail(const char* way, const char* why) {
  std::fprintf(stderr, "%s: %s\n", way, why);
  std::exit(1);
}

// The keys of all runs of a way, and their result.
struct Order {
  explicit Order(int runs) {
    std::mt19937 random(1);
    std::uniform_int_distribution<int> any(0, kKeys - 1);
    for (std::vector<int>* keys : {&timed, &in_a_row}) {
      for (int i = 0; i < runs; ++i) keys->push_back(any(random));
    }
    for (int key = 0; key < kKeys; ++key) add(key);
    for (const int key : timed) add(key);
    for (const int key : in_a_row) add(key);
  }
  std::vector<int> timed, in_a_row;
  std::vector<int> expected = std::vector<int>(kCount);

 private:
  // All kernels of a key come to p[i] = factor * p[i] + plus + times * i.
  void add(int key) {
    unsigned factor = 1, plus = 0, times = 0;
    for (int node = 0; node < kNodes; ++node) {
      factor *= kFactor;
      plus = kFactor * plus + static_cast<unsigned>(value(key, node));
      times = kFactor * times + 1;
    }
    for (int i = 0; i < (key + 1) * kBlock; ++i) {
      int& element = expected[static_cast<std::size_t>(i)];
      element = static_cast<int>(factor * static_cast<unsigned>(element) + plus + times * static_cast<unsigned>(i));
    }
  }
};

// The stream and the memory of all ways of a process.
class Work {
 public:
  Work() {
    CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), kCount * sizeof(int)));
    CHECK(enqueue(kKeys - 1, stream_));
    bench::Counted small(1);
    cudaGraphExec_t exec = small.instantiate(stream_);
    CHECK(cudaGraphLaunch(exec, stream_));
    small.must_have_run(1);
    CHECK(cudaGraphExecDestroy(exec));
  }

  cudaError_t enqueue(int key, cudaStream_t on) const {
    const dim3 grid(static_cast<unsigned>(key + 1));
    for (int node = 0; node < kNodes; ++node) {
      const cudaError_t error = test::launch(test::blend, grid, kBlock, on, data_, kCount, kFactor, value(key, node));
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  cudaGraphExec_t instantiate(int key) const {
    cudaGraph_t graph = bench::captured(stream_, [&](cudaStream_t on) { return enqueue(key, on); });
    cudaGraphExec_t exec = nullptr;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
  }
  cudaStream_t stream() const { return stream_; }

  void clear() const {
    CHECK(cudaMemset(data_, 0, kCount * sizeof(int)));
    CHECK(cudaDeviceSynchronize());
  }
  bool equals(const std::vector<int>& expected) const {
    std::vector<int> found(kCount);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(found.data(), data_, kCount * sizeof(int), cudaMemcpyDeviceToHost));
    return found == expected;
  }

 private:
  int* data_ = nullptr;
  cudaStream_t stream_ = bench::new_stream();
};

struct Counts {
  unsigned long long captures = 0, instantiations = 0, executables = 0, switches = 0, by_sets = 0;
};

class Way {
 public:
  explicit Way(const Work& work) : work_(work) {}
  virtual ~Way() = default;
  virtual void run(int key) = 0;
  virtual Counts counts() const = 0;

 protected:
  const Work& work_;
};

class Dict : public Way {
 public:
  using Way::Way;
  ~Dict() override {
    for (const auto& [key, exec] : execs_) CHECK(cudaGraphExecDestroy(exec));
  }
  void run(int key) override {
    const auto [found, is_new] = execs_.try_emplace(key);
    if (is_new) found->second = work_.instantiate(key);
    CHECK(cudaGraphLaunch(found->second, work_.stream()));
  }
  Counts counts() const override { return {execs_.size(), execs_.size(), execs_.size()}; }

 private:
  std::unordered_map<int, cudaGraphExec_t> execs_;
};

class Lru : public Way {
 public:
  using Way::Way;
  ~Lru() override {
    for (const auto& [key, exec] : execs_) CHECK(cudaGraphExecDestroy(exec));
  }
  void run(int key) override {
    const auto found =
        std::find_if(execs_.begin(), execs_.end(), [key](const auto& known) { return known.first == key; });
    if (found != execs_.end()) {
      execs_.splice(execs_.begin(), execs_, found);
    } else {
      if (execs_.size() == kLruSize) {
        CHECK(cudaGraphExecDestroy(execs_.back().second));
        execs_.pop_back();
      }
      execs_.emplace_front(key, work_.instantiate(key));
      ++misses_;
    }
    CHECK(cudaGraphLaunch(execs_.front().second, work_.stream()));
  }
  Counts counts() const override { return {misses_, misses_, execs_.size()}; }

 private:
  std::list<std::pair<int, cudaGraphExec_t>> execs_;  // most recently used first
  unsigned long long misses_ = 0;
};

class Cached : public Way {
 public:
  Cached(const Work& work, const graphcache::Options& options) : Way(work), cache_(options) {}
  void run(int key) override {
    const auto done = cache_.run(graphcache::key("policy", key), work_.stream(),
                                 [&](cudaStream_t on) { return work_.enqueue(key, on); });
    if (!done.ok()) fail("cache.run", done.status().ToString().c_str());
    if (*done == graphcache::Outcome::kEager) fail("cache.run", "a run was direct");
  }
  Counts counts() const override {
    using graphcache::Outcome;
    const graphcache::Stats stats = cache_.stats();
    return {stats.captures, stats.instantiations, stats.live_executables,
            stats.outcome(Outcome::kSwitched) + stats.outcome(Outcome::kUpdated), stats.set_switches};
  }

 private:
  graphcache::Cache cache_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Way>(const Work&)> make;
};
constexpr std::size_t kDict = 0, kLru8 = 1, kWhenFull8 = 3;

std::vector<Kind> kinds() {
  using graphcache::Share;
  const auto cached = [](Share share, int max_executables) {
    graphcache::Options options;
    options.share = share;
    options.max_executables = max_executables;
    return [options](const Work& work) { return std::make_unique<Cached>(work, options); };
  };
  return {{"dict", [](const Work& work) { return std::make_unique<Dict>(work); }},
          {"lru8", [](const Work& work) { return std::make_unique<Lru>(work); }},
          {"when_full_64", [](const Work& work) { return std::make_unique<Cached>(work, graphcache::Options()); }},
          {"when_full_8", cached(Share::kWhenFull, 8)},
          {"never_64", cached(Share::kNever, 64)},
          {"always_64", cached(Share::kAlways, 64)}};
}

// One way in one round.
struct Figures {
  double start_up = 0, mean = 0, median = 0, p99 = 0, max = 0, total = 0, memory = 0;
  Counts counts;
};

double free_mib() {
  std::size_t free = 0, all = 0;
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemGetInfo(&free, &all));
  return static_cast<double>(free) / (1 << 20);
}

Figures measure(const Kind& kind, const Work& work, const Order& order) {
  Figures figures;
  work.clear();
  const double free_before = free_mib();
  std::unique_ptr<Way> way;
  figures.start_up = bench::nanoseconds([&] {
                       way = kind.make(work);
                       for (int key = 0; key < kKeys; ++key) way->run(key);
                       CHECK(cudaStreamSynchronize(work.stream()));
                     }) /
                     1e6;

  std::vector<double> host;
  host.reserve(order.timed.size());
  for (const int key : order.timed) {
    host.push_back(bench::nanoseconds([&] { way->run(key); }) / 1000);
    if (host.size() % kRunsToSync == 0) CHECK(cudaStreamSynchronize(work.stream()));
  }
  CHECK(cudaStreamSynchronize(work.stream()));
  figures.total = bench::nanoseconds([&] {
                    for (const int key : order.in_a_row) way->run(key);
                    CHECK(cudaStreamSynchronize(work.stream()));
                  }) /
                  1000 / static_cast<double>(order.in_a_row.size());

  figures.memory = free_before - free_mib();
  figures.counts = way->counts();
  way.reset();
  if (!work.equals(order.expected)) fail(kind.name, "the result is not that of the CPU");

  std::sort(host.begin(), host.end());
  figures.mean = std::accumulate(host.begin(), host.end(), 0.0) / static_cast<double>(host.size());
  figures.median = host[host.size() / 2];
  figures.p99 = host[host.size() * 99 / 100];
  figures.max = host.back();
  return figures;
}

void print(const char* processes, int round, const char* way, const Figures& of) {
  std::printf(
      "%-3s %d %-12s  start_up %7.2f ms  host: mean %7.2f  median %7.2f  p99 %7.2f  max %8.2f us  total %7.2f us  "
      "memory %5.1f MiB  captures %llu  instantiations %llu  executables %llu  switches %llu, %llu by sets\n",
      processes, round, way, of.start_up, of.mean, of.median, of.p99, of.max, of.total, of.memory, of.counts.captures,
      of.counts.instantiations, of.counts.executables, of.counts.switches, of.counts.by_sets);
  std::fflush(stdout);
}

// Figures of a process of its own. This process must not have used CUDA.
Figures measure_in_child(const Kind& kind, const Order& order) {
  const bench::Shared<Figures> figures;
  if (figures.get() == nullptr) fail(kind.name, "no memory is shared with its process");
  if (!bench::in_child([&] { *figures.get() = measure(kind, Work(), order); })) fail(kind.name, "its process failed");
  return *figures.get();
}

using Rounds = std::vector<std::vector<Figures>>;  // by way and round

Rounds measure_all(const char* processes, const std::vector<Kind>& all, int rounds,
                   const std::function<Figures(const Kind&)>& measure_one) {
  Rounds figures(all.size());
  std::vector<std::size_t> turns(all.size());
  std::iota(turns.begin(), turns.end(), 0u);
  std::mt19937 random(2);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(turns.begin(), turns.end(), random);
    for (const std::size_t turn : turns) {
      figures[turn].push_back(measure_one(all[turn]));
      print(processes, round, all[turn].name, figures[turn].back());
    }
  }
  return figures;
}

struct Column {
  const char* name;
  const char* unit;
  double Figures::*figure;
};
constexpr Column kColumns[] = {{"mean", "us", &Figures::mean},
                               {"p99", "us", &Figures::p99},
                               {"start_up", "ms", &Figures::start_up},
                               {"total", "us", &Figures::total},
                               {"memory", "MiB", &Figures::memory}};

// All but memory if the ways share a process.
std::size_t columns(bool own) { return std::size(kColumns) - (own ? 0 : 1); }

void add(bench::Report& report, bool own, const std::vector<Kind>& all, const Rounds& rounds) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == kDict) continue;
    for (std::size_t at = 0; at < columns(own); ++at) {
      const auto of = [&](std::size_t way) {
        std::vector<double> values;
        for (const Figures& figures : rounds[way]) values.push_back(figures.*kColumns[at].figure);
        return bench::median(values);
      };
      report.add({"policy",
                  {{"processes", own ? "own" : "one"}, {"way", all[i].name}, {"figure", kColumns[at].name}},
                  kColumns[at].unit,
                  of(i),
                  all[kDict].name,
                  of(kDict)});
    }
  }
}

void print_ratios(bool own, const std::vector<Kind>& all, const Rounds& rounds) {
  std::printf("\nratios, %s\n%-20s", own ? "each way in a process of its own" : "all ways in one process", "");
  for (std::size_t at = 0; at < columns(own); ++at) std::printf(" %-24s", kColumns[at].name);
  const auto row = [&](std::size_t way, std::size_t beside) {
    std::printf("\n%-20s", (std::string(all[way].name) + '/' + all[beside].name).c_str());
    for (std::size_t at = 0; at < columns(own); ++at) {
      std::vector<double> ratios;
      for (std::size_t round = 0; round < rounds[way].size(); ++round) {
        ratios.push_back(rounds[way][round].*kColumns[at].figure / rounds[beside][round].*kColumns[at].figure);
      }
      std::printf(" %-24s", bench::spread(ratios).c_str());
    }
  };
  for (std::size_t way = 0; way < all.size(); ++way) {
    if (way != kDict) row(way, kDict);
  }
  row(kWhenFull8, kLru8);
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Report arguments(argc, argv, "");  // read before the first CUDA call
  const int rounds = arguments.argument(0, 5);
  const Order order(arguments.argument(1, 4000));
  const std::vector<Kind> all = kinds();

  const Rounds own = measure_all("own", all, rounds, [&](const Kind& kind) { return measure_in_child(kind, order); });
  bench::Report report(argc, argv, bench::machine());
  const Work work;
  const Rounds one = measure_all("one", all, rounds, [&](const Kind& kind) { return measure(kind, work, order); });

  add(report, true, all, own);
  add(report, false, all, one);
  print_ratios(true, all, own);
  print_ratios(false, all, one);
  return report.write();
}
