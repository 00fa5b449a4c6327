// The latency of a server's requests on a GPU, with graphs and without: server [--json FILE] [ROUNDS].
//
// Four threads serve 8,000 requests, each in one of 64 buckets that Zipf's law chooses. A request enqueues 40 short
// kernels, most of them on two branches, and waits for its stream; its time includes the wait. Each thread has its own
// streams and memory. The graphs contain the addresses of that memory, so the thread is part of the key, and there are
// 4 x 64 keys.
//
// Without a cache the function that enqueues the work is called directly. A cache has place for 256 executables, which
// is one for each key, or for a tenth of these. What there is before the first request:
//
//   cold      nothing
//   second    nothing, with Options::capture_after = 1: the second run of a key captures
//   runs      each thread has run each of its keys once
//   warm      Cache::warm() was called for each key, in the order of the buckets
//   manifest  warm_up() was called with the manifest of another day, whose requests differ but have the same law
//
// Each way of each round has a process of its own, as a server does at its start: the driver has made no graph there.
// But the context exists, and each thread has run each of its keys once without a graph. The ways take turns in another
// order in each round. The results of all requests are compared with those of the CPU.
//
// `prepare` is the time until the first request can come, `first` the mean time of the first request of each key.
// Figures are medians of the rounds, and ratios those of two ways in the same round. The other way is direct: cold
// beside cold and second, after runs beside the others.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "child.h"
#include "gpu.h"
#include "graphcache/graphcache.h"
#include "graphcache/manifest.h"
#include "measure.h"
#include "report.h"

namespace {

namespace test = graphcache::test;

constexpr int kThreads = 4, kBuckets = 64, kRequests = 8000, kInBranch = 19, kBlock = 256, kCount = kBuckets * kBlock;
constexpr int kAll = kThreads * kBuckets, kTenth = (kAll + 9) / 10;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

// The buckets of each thread's requests, in their order.
using Requests = std::vector<std::vector<int>>;

Requests requests_of_day(unsigned day) {
  std::vector<double> weights(kBuckets);
  std::vector<int> by_rank(kBuckets);
  std::iota(by_rank.begin(), by_rank.end(), 0);
  std::shuffle(by_rank.begin(), by_rank.end(), std::mt19937(1));  // on every day
  for (int rank = 0; rank < kBuckets; ++rank) weights[static_cast<std::size_t>(rank)] = 1.0 / (rank + 1);
  std::discrete_distribution<std::size_t> zipf(weights.begin(), weights.end());
  std::mt19937 random(day);
  Requests requests(kThreads);
  for (std::size_t i = 0; i < kRequests; ++i) requests[i % kThreads].push_back(by_rank[zipf(random)]);
  return requests;
}

// p[i] = factor * p[i] + plus + times * i, which is what the kernels of a branch come to.
struct Branch {
  unsigned factor = 1, plus = 0, times = 0;

  Branch(int factor_of_kernel, int bucket) {
    const auto by = static_cast<unsigned>(factor_of_kernel);
    for (int i = 0; i < kInBranch; ++i) {
      factor *= by;
      plus = by * plus + static_cast<unsigned>(value(bucket, i));
      times = by * times + 1;
    }
  }
  static int value(int bucket, int i) { return bucket * kInBranch + i; }
  unsigned operator()(unsigned p, unsigned i) const { return factor * p + plus + times * i; }
};

constexpr int kLeft = 3, kRight = 5, kFork = 7, kJoin = 9;  // factors of kernels

// The two arrays of a thread after these requests, one behind the other.
std::vector<int> reference(const std::vector<int>& buckets) {
  std::vector<int> result(2 * kCount);
  for (const int bucket : buckets) {
    const Branch on_left(kLeft, bucket), on_right(kRight, bucket);
    for (unsigned i = 0; i < static_cast<unsigned>((bucket + 1) * kBlock); ++i) {
      auto left = static_cast<unsigned>(result[i]), right = static_cast<unsigned>(result[kCount + i]);
      right = on_right(kFork * right + left, i);
      left = kJoin * on_left(left, i) + right;
      result[i] = static_cast<int>(left);
      result[kCount + i] = static_cast<int>(right);
    }
  }
  return result;
}

// The streams and the memory of a thread.
class Lane {
 public:
  Lane() {
    CHECK(cudaMalloc(reinterpret_cast<void**>(&left_), 2 * kCount * sizeof(int)));
    for (cudaEvent_t* event : {&fork_, &join_}) CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }

  // cache.run and cache.warm need the same function.
  auto work(int bucket) const {
    return [this, bucket](cudaStream_t on) {
      const dim3 grid(static_cast<unsigned>(bucket + 1));
      CHECK(test::launch(test::blend_in, grid, kBlock, on, right(), left_, kCount, kFork));
      CHECK(cudaEventRecord(fork_, on));
      CHECK(cudaStreamWaitEvent(second_, fork_, 0));
      for (int i = 0; i < kInBranch; ++i) {
        const int value = Branch::value(bucket, i);
        CHECK(test::launch(test::blend, grid, kBlock, on, left_, kCount, kLeft, value));
        CHECK(test::launch(test::blend, grid, kBlock, second_, right(), kCount, kRight, value));
      }
      CHECK(cudaEventRecord(join_, second_));
      CHECK(cudaStreamWaitEvent(on, join_, 0));
      CHECK(test::launch(test::blend_in, grid, kBlock, on, left_, right(), kCount, kJoin));
    };
  }
  cudaStream_t stream() const { return stream_; }

  void clear() const { CHECK(cudaMemset(left_, 0, 2 * kCount * sizeof(int))); }
  bool equals(const std::vector<int>& expected) const {
    std::vector<int> found(2 * kCount);
    CHECK(cudaMemcpy(found.data(), left_, 2 * kCount * sizeof(int), cudaMemcpyDeviceToHost));
    return found == expected;
  }

 private:
  int* right() const { return left_ + kCount; }

  cudaStream_t stream_ = bench::new_stream(), second_ = bench::new_stream();
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  int* left_ = nullptr;
};

class Server {
 public:
  explicit Server(const graphcache::Options* options) {  // null: direct
    run_each_key();
    if (options != nullptr) cache_ = std::make_unique<graphcache::Cache>(*options);
    clear();
  }

  // Each thread does this; they begin together. Returns the time until all have ended, in ns.
  double in_threads(const std::function<void(int)>& of_thread) const {
    std::barrier begin(kThreads + 1);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        cudaStream_t stream = lanes_[static_cast<std::size_t>(thread)].stream();
        CHECK(test::launch(test::do_nothing, 1, 1, stream));  // a thread's first calls take longer
        CHECK(cudaStreamSynchronize(stream));
        begin.arrive_and_wait();
        of_thread(thread);
      });
    }
    begin.arrive_and_wait();
    return bench::nanoseconds([&] {
      for (std::thread& thread : threads) thread.join();
    });
  }

  void run(int thread, int bucket) {
    const Lane& lane = lanes_[static_cast<std::size_t>(thread)];
    if (cache_ == nullptr) {
      lane.work(bucket)(lane.stream());
    } else {
      const auto done = cache_->run(key(thread, bucket), lane.stream(), lane.work(bucket));
      if (!done.ok()) fail(done.status().ToString());
    }
    CHECK(cudaStreamSynchronize(lane.stream()));
  }
  void run_each_key() {
    in_threads([&](int thread) {
      for (int bucket = 0; bucket < kBuckets; ++bucket) run(thread, bucket);
    });
  }

  void warm_each_key() {
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      for (int thread = 0; thread < kThreads; ++thread) {
        if (const absl::Status status = warm(key(thread, bucket), thread, bucket); !status.ok()) {
          fail(status.ToString());
        }
      }
    }
  }
  void warm_from(const char* manifest) {
    const auto keys = graphcache::read_manifest(manifest);
    if (!keys.ok()) fail(keys.status().ToString());
    const graphcache::WarmUp warmed =
        graphcache::warm_up(*keys, std::chrono::minutes(1), [&](const graphcache::ManifestKey& known) {
          return warm(known.key, static_cast<int>(known.parts[1].integer), static_cast<int>(known.parts[2].integer));
        });
    if (!warmed.error.ok() || warmed.left != 0) fail("not all keys are warm: " + warmed.error.ToString());
  }

  void clear() const {
    for (const Lane& lane : lanes_) lane.clear();
    CHECK(cudaDeviceSynchronize());
  }
  bool equals(const std::vector<std::vector<int>>& expected) const {
    CHECK(cudaDeviceSynchronize());
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      if (!lanes_[thread].equals(expected[thread])) return false;
    }
    return true;
  }
  graphcache::Stats stats() const { return cache_ == nullptr ? graphcache::Stats() : cache_->stats(); }
  std::string manifest() const { return graphcache::manifest(*cache_); }

 private:
  static graphcache::Key key(int thread, int bucket) { return graphcache::key("request", thread, bucket); }
  absl::Status warm(const graphcache::Key& of, int thread, int bucket) {
    const Lane& lane = lanes_.at(static_cast<std::size_t>(thread));
    return cache_->warm(of, lane.stream(), lane.work(bucket));
  }

  std::vector<Lane> lanes_ = std::vector<Lane>(kThreads);
  std::unique_ptr<graphcache::Cache> cache_;  // null: direct
};

enum class Start { kCold, kSecond, kRuns, kWarm, kManifest };

struct Kind {
  int budget;  // 0: direct
  Start start;
  std::string name() const {
    constexpr const char* kNames[] = {"cold", "second", "runs", "warm", "manifest"};
    return kNames[static_cast<int>(start)];
  }
  std::string budget_name() const { return budget == 0 ? "direct" : std::to_string(budget); }
};

// The first two are direct, and the references of the others.
std::vector<Kind> kinds() {
  std::vector<Kind> kinds = {{0, Start::kCold}, {0, Start::kRuns}};
  for (const int budget : {kAll, kTenth}) {
    for (const Start start : {Start::kCold, Start::kSecond, Start::kRuns, Start::kWarm, Start::kManifest}) {
      kinds.push_back({budget, start});
    }
  }
  return kinds;
}
std::size_t reference_of(const Kind& kind) {
  return kind.start == Start::kCold || kind.start == Start::kSecond ? 0 : 1;
}

graphcache::Options options(const Kind& kind) {
  graphcache::Options options;
  options.max_executables = kind.budget;
  options.capture_after = kind.start == Start::kSecond ? 1 : 0;
  return options;
}

// One way in one round: times of requests in us, that of `prepare` in ms.
struct Figures {
  double prepare = 0, p50 = 0, p99 = 0, p999 = 0, max = 0, first = 0, per_second = 0;
  // During the requests.
  unsigned long long captures = 0, instantiations = 0, switches = 0, direct = 0;
};

// What the processes share.
struct Shared {
  Figures figures;
  char manifest[1 << 17];
};

Figures serve(Server& server, const Requests& requests, const std::vector<std::vector<int>>& expected) {
  std::vector<std::vector<double>> times(kThreads);
  for (std::vector<double>& of_thread : times) of_thread.reserve(kRequests);
  const graphcache::Stats before = server.stats();
  const double ns = server.in_threads([&](int thread) {
    const auto at = static_cast<std::size_t>(thread);
    for (const int bucket : requests[at]) {
      times[at].push_back(bench::nanoseconds([&] { server.run(thread, bucket); }) / 1000);
    }
  });
  if (!server.equals(expected)) fail("the results are not those of the CPU");
  const graphcache::Stats stats = server.stats() - before;

  std::vector<double> all, first;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    std::vector<bool> seen(kBuckets);
    for (std::size_t i = 0; i < requests[thread].size(); ++i) {
      const auto bucket = static_cast<std::size_t>(requests[thread][i]);
      if (!seen[bucket]) first.push_back(times[thread][i]);
      seen[bucket] = true;
      all.push_back(times[thread][i]);
    }
  }
  std::sort(all.begin(), all.end());
  using graphcache::Outcome;
  Figures figures;
  figures.p50 = all[all.size() / 2];
  figures.p99 = all[all.size() * 99 / 100];
  figures.p999 = all[all.size() * 999 / 1000];
  figures.max = all.back();
  figures.first = std::accumulate(first.begin(), first.end(), 0.0) / static_cast<double>(first.size());
  figures.per_second = kRequests / ns * 1e9;
  figures.captures = stats.captures;
  figures.instantiations = stats.instantiations;
  figures.switches = stats.outcome(Outcome::kSwitched) + stats.outcome(Outcome::kUpdated);
  figures.direct = stats.outcome(Outcome::kEager);
  return figures;
}

void in_child(const std::function<void()>& work) {
  if (!bench::in_child(work)) fail("a process failed");
}

class Measurement {
 public:
  Measurement() {
    if (shared_.get() == nullptr) fail("no memory is shared with other processes");
    for (const std::vector<int>& of_thread : requests_) expected_.push_back(reference(of_thread));
    in_child([&] {
      const graphcache::Options of_cache = options({kAll, Start::kCold});
      Server server(&of_cache);
      const Requests requests = requests_of_day(2);
      server.in_threads([&](int thread) {
        for (const int bucket : requests[static_cast<std::size_t>(thread)]) server.run(thread, bucket);
      });
      const std::string text = server.manifest();
      if (text.size() >= sizeof(shared_->manifest)) fail("the manifest is too long");
      std::memcpy(shared_->manifest, text.c_str(), text.size() + 1);
    });
  }

  Figures measure(const Kind& kind) {
    in_child([&] {
      const graphcache::Options of_cache = options(kind);
      Server server(kind.budget == 0 ? nullptr : &of_cache);
      const double ns = bench::nanoseconds([&] {
        if (kind.start == Start::kRuns) server.run_each_key();
        if (kind.start == Start::kWarm) server.warm_each_key();
        if (kind.start == Start::kManifest) server.warm_from(shared_->manifest);
      });
      server.clear();
      shared_->figures = serve(server, requests_, expected_);
      shared_->figures.prepare = ns / 1e6;
    });
    return shared_->figures;
  }

 private:
  const Requests requests_ = requests_of_day(3);
  std::vector<std::vector<int>> expected_;  // by thread
  const bench::Shared<Shared> shared_;
};

struct Column {
  const char* name;
  const char* unit;
  double Figures::*figure;
};
constexpr Column kColumns[] = {{"p50", "us", &Figures::p50},
                               {"p99", "us", &Figures::p99},
                               {"p99.9", "us", &Figures::p999},
                               {"max", "us", &Figures::max},
                               {"first", "us", &Figures::first}};

double median(const std::vector<Figures>& rounds, double Figures::*figure) {
  std::vector<double> values;
  for (const Figures& figures : rounds) values.push_back(figures.*figure);
  return bench::median(values);
}

void print(const Kind& kind, const Figures& of) {
  std::printf("%-7s %-9s prepare %8.2f ms", kind.budget_name().c_str(), kind.name().c_str(), of.prepare);
  for (const Column& column : kColumns) std::printf("  %s %8.1f", column.name, of.*column.figure);
  std::printf(" us  %7.0f/s  captures %llu  instantiations %llu  switches %llu  direct %llu\n", of.per_second,
              of.captures, of.instantiations, of.switches, of.direct);
  std::fflush(stdout);
}

using Rounds = std::vector<std::vector<Figures>>;  // by way and round

void print_tables(const std::vector<Kind>& all, const Rounds& rounds) {
  std::printf("\n%-7s %-9s %11s %11s", "budget", "start", "prepare, ms", "requests/s");
  for (const Column& column : kColumns) std::printf(" %9s", (std::string(column.name) + ", us").c_str());
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::printf("\n%-7s %-9s %11.2f %11.0f", all[i].budget_name().c_str(), all[i].name().c_str(),
                median(rounds[i], &Figures::prepare), median(rounds[i], &Figures::per_second));
    for (const Column& column : kColumns) std::printf(" %9.1f", median(rounds[i], column.figure));
  }
  std::printf("\n\nratios to direct: median (least to greatest)\n%-7s %-9s", "budget", "start");
  for (const Column& column : kColumns) std::printf(" %-24s", column.name);
  for (std::size_t i = 2; i < all.size(); ++i) {
    std::printf("\n%-7s %-9s", all[i].budget_name().c_str(), all[i].name().c_str());
    const std::vector<Figures>& of = rounds[i];
    const std::vector<Figures>& direct = rounds[reference_of(all[i])];
    for (const Column& column : kColumns) {
      std::vector<double> ratios;
      for (std::size_t round = 0; round < of.size(); ++round) {
        ratios.push_back(of[round].*column.figure / direct[round].*column.figure);
      }
      std::printf(" %-24s", bench::spread(ratios).c_str());
    }
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int count = bench::Report(argc, argv, "").argument(0, 3);  // read before the first CUDA call
  const std::vector<Kind> all = kinds();
  Rounds rounds(all.size());
  std::vector<std::size_t> turns(all.size());
  std::iota(turns.begin(), turns.end(), 0u);
  std::mt19937 random(4);
  Measurement measurement;
  for (int round = 0; round < count; ++round) {
    std::shuffle(turns.begin(), turns.end(), random);
    for (const std::size_t turn : turns) {
      rounds[turn].push_back(measurement.measure(all[turn]));
      print(all[turn], rounds[turn].back());
    }
  }

  bench::Report report(argc, argv, bench::machine());
  for (std::size_t i = 2; i < all.size(); ++i) {
    for (const Column& column : kColumns) {
      report.add({"server",
                  {{"budget", all[i].budget}, {"start", all[i].name().c_str()}, {"time", column.name}},
                  column.unit,
                  median(rounds[i], column.figure),
                  "direct",
                  median(rounds[reference_of(all[i])], column.figure)});
    }
  }
  print_tables(all, rounds);
  return report.write();
}
