// Two threads that hit one cache on hostrt, each with its own key: threads [--json FILE] [ROUNDS]. The figure is the
// time for each hit of the program; the reference is one thread alone. With two idle CPUs the ratio can be 0.5.
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "host.h"
#include "report.h"

namespace {

constexpr int kHits = 20000;  // shorter than a time slice of the scheduler

double together(graphcache::Cache& cache, const std::vector<cudaStream_t>& streams, int count, bool by_step) {
  std::atomic<int> waiting{count};
  const auto work = [&](int number) {
    cudaStream_t stream = streams[static_cast<std::size_t>(number)];
    const graphcache::Key key = bench::numbered(number);
    auto step = cache.prepare(key, bench::Work<>());
    bench::must_be_hit(step.run(stream));
    --waiting;
    while (waiting != 0) {
    }
    if (by_step) {
      for (int i = 0; i < kHits; ++i) bench::must_be_hit(step.run(stream));
    } else {
      for (int i = 0; i < kHits; ++i) bench::must_hit(cache, stream, key);
    }
  };
  std::vector<std::thread> threads;
  for (int number = 1; number < count; ++number) threads.emplace_back(work, number);
  while (waiting != 1) {
  }
  const double ns = bench::nanoseconds([&] {
    work(0);
    for (std::thread& thread : threads) thread.join();
  });
  return ns / kHits / count;
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int rounds = report.argument(0, 500);
  graphcache::hostrt::set_execution(false);
  graphcache::Cache cache(bench::unshared(64));
  std::vector<cudaStream_t> streams;
  for (int i = 0; i < 2; ++i) {
    streams.push_back(bench::new_stream());
    bench::run(cache, streams.back(), bench::numbered(i));
  }
  for (const bool by_step : {false, true}) {
    const auto ns = bench::lowest_in_turns(rounds, {[&] { return together(cache, streams, 1, by_step); },
                                                    [&] { return together(cache, streams, 2, by_step); }});
    report.add({"threads",
                {{"way", by_step ? "step" : "run"}, {"threads", 2}, {"keys", "own"}},
                "ns",
                ns[1],
                "one thread",
                ns[0]});
  }
  return report.write();
}
