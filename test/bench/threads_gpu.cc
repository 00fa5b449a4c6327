// Threads that hit one cache at the same time on a GPU, each on its own stream: threads [--json FILE] [ROUNDS].
//
// keys=own: each thread has its own key; the reference launches an executable for each thread by cudaGraphLaunch.
// keys=one: all threads share one key; the reference is one executable under a mutex, because CUDA lets one thread
// launch it at a time. Each thread launches batches of eight, and waits for its stream after each. `host` is the time
// that a thread spends in a launch, `wall` the time for each launch of the program. The two ways take turns; medians of
// the rounds.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu.h"
#include "graphcache/graphcache.h"
#include "measure.h"
#include "report.h"

namespace {

constexpr int kBatch = 8, kBatches = 60, kNodes = 8;

struct Times {
  double host, wall;
};

// Launches of all threads at the same time. `launch` gets the thread's number and returns whether it succeeded.
Times together(int count, const std::vector<cudaStream_t>& streams, const std::function<bool(int)>& launch) {
  std::atomic<int> waiting{count};
  std::vector<double> in_launches(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  std::atomic<bool> right{true};
  std::atomic<bool> go{false};
  const auto work = [&](int number) {
    const auto i = static_cast<std::size_t>(number);
    CHECK(cudaStreamSynchronize(streams[i]));
    --waiting;
    while (!go) std::this_thread::yield();
    for (int batch = 0; batch < kBatches; ++batch) {
      in_launches[i] += bench::nanoseconds([&] {
        for (int of_batch = 0; of_batch < kBatch; ++of_batch) {
          if (!launch(number)) right = false;
        }
      });
      CHECK(cudaStreamSynchronize(streams[i]));
    }
  };
  for (int number = 0; number < count; ++number) threads.emplace_back(work, number);
  while (waiting != 0) std::this_thread::yield();
  const double wall = bench::nanoseconds([&] {
    go = true;
    for (std::thread& thread : threads) thread.join();
  });
  if (!right) std::exit((std::fprintf(stderr, "a launch failed\n"), 1));
  double host = 0;
  for (const double ns : in_launches) host += ns;
  const double launches = static_cast<double>(count) * kBatches * kBatch;
  return {host / launches, wall / launches};
}

void measure(bench::Report& report, int count, bool own, int rounds) {
  std::vector<cudaStream_t> streams;
  std::vector<std::unique_ptr<bench::Counted>> works;
  std::vector<cudaGraphExec_t> execs;
  std::vector<graphcache::Key> keys;
  for (int i = 0; i < count; ++i) streams.push_back(bench::new_stream());
  for (int i = 0; i < (own ? count : 1); ++i) {
    works.push_back(std::make_unique<bench::Counted>(kNodes));
    execs.push_back(works.back()->instantiate(streams[0]));
    keys.push_back(graphcache::key("thread", i));
  }
  graphcache::Options options;
  options.share = graphcache::Share::kNever;  // one executable for each key, as in the reference
  graphcache::Cache cache(options);
  std::mutex one;

  const auto index = [&](int number) { return own ? static_cast<std::size_t>(number) : 0; };
  const auto stream = [&](int number) { return streams[static_cast<std::size_t>(number)]; };
  const auto launch = [&](int number) { return cudaGraphLaunch(execs[index(number)], stream(number)) == cudaSuccess; };
  const std::function<bool(int)> bare = [&](int number) {
    if (own) return launch(number);
    const std::lock_guard<std::mutex> lock(one);
    return launch(number);
  };
  const std::function<bool(int)> run = [&](int number) {
    const bench::Counted& work = *works[index(number)];
    return cache.run(keys[index(number)], stream(number), [&](cudaStream_t on) { return work.enqueue(on); }).ok();
  };

  std::vector<double> bare_host, bare_wall, run_host, run_wall;
  for (int round = -1; round < rounds; ++round) {  // negative rounds are a warm-up
    const Times of_bare = together(count, streams, bare), of_run = together(count, streams, run);
    if (round < 0) continue;
    bare_host.push_back(of_bare.host);
    bare_wall.push_back(of_bare.wall);
    run_host.push_back(of_run.host);
    run_wall.push_back(of_run.wall);
  }
  const long launches = 2L * (rounds + 1) * kBatches * kBatch * (own ? 1 : count);
  for (const auto& work : works) work->must_have_run(launches);
  const char* keys_axis = own ? "own" : "one";
  report.add({"threads",
              {{"threads", count}, {"keys", keys_axis}, {"time", "host"}},
              "ns",
              bench::median(run_host),
              "cudaGraphLaunch",
              bench::median(bare_host)});
  report.add({"threads",
              {{"threads", count}, {"keys", keys_axis}, {"time", "wall"}},
              "ns",
              bench::median(run_wall),
              "cudaGraphLaunch",
              bench::median(bare_wall)});
  cache.clear();
  for (cudaGraphExec_t exec : execs) CHECK(cudaGraphExecDestroy(exec));
  for (cudaStream_t of_thread : streams) CHECK(cudaStreamDestroy(of_thread));
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 15);
  for (const bool own : {true, false}) {
    for (const int count : {1, 2, 4, 8, 16}) measure(report, count, own, rounds);
  }
  return report.write();
}
