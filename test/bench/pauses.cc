// How long the runs of one thread are held up by what another thread asks of the same cache, on hostrt:
// pauses [--json FILE] [KEYS [ROUNDS]].
//
// The figure is the longest run of the first thread, a hit or a miss, while the other one repeats an operation, in us.
// Runs that lost their CPU to the scheduler without waiting for anything do not count. Reference: the longest run while
// the other thread does the same with another cache, which is what else the machine adds. The lowest of the rounds.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "host.h"
#include "report.h"

namespace {

constexpr int kEvicting = 64;  // Executables of the caches that evict.

// Tells whether the scheduler has taken the CPU from this thread since this was made, while it did not wait for
// anything.
class Preemption {
 public:
  bool happened() const {
    const rusage after = now();
    return after.ru_nivcsw != before_.ru_nivcsw && after.ru_nvcsw == before_.ru_nvcsw;
  }

 private:
  static rusage now() {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage;
  }
  const rusage before_ = now();
};

// The longest run of another thread in `cache`, while `operation` is done here.
double longest_run(graphcache::Cache& cache, bool of_hits, const std::function<void()>& operation) {
  std::atomic<bool> ready{false}, over{false};
  double longest = 0;
  std::thread other([&] {
    cudaStream_t stream = bench::new_stream();
    int next = -1;
    const graphcache::Key key = bench::numbered(next);
    bench::run(cache, stream, key);
    ready = true;
    while (!over) {
      const graphcache::Key miss = bench::numbered(--next);
      const Preemption preemption;
      const double ns = bench::nanoseconds([&] { bench::run(cache, stream, of_hits ? key : miss); });
      if (ns > longest && !preemption.happened()) longest = ns;
      if (!of_hits) cache.erase(miss);
    }
  });
  while (!ready) std::this_thread::yield();
  operation();
  over = true;
  other.join();
  return longest / 1000;
}

template <class F>
void repeatedly(F&& operation) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  while (std::chrono::steady_clock::now() < end) operation();
}

struct Operation {
  const char* name;
  int executables;
  std::function<void(graphcache::Cache&)> run;
};

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv, bench::machine());
  const int count = report.argument(0, 100000), rounds = report.argument(1, 3);
  graphcache::hostrt::set_execution(false);
  cudaStream_t stream = bench::new_stream();
  const auto keys = bench::numbered_keys(count);
  const auto insert = [&](graphcache::Cache& cache) {
    for (const auto& key : keys) bench::run(cache, stream, key);
  };
  const Operation operations[] = {
      {"insert", count + 10, insert},
      {"stats", count + 10, [](graphcache::Cache& cache) { repeatedly([&] { (void)cache.stats(); }); }},
      {"entries", count + 10, [](graphcache::Cache& cache) { repeatedly([&] { (void)cache.entries(); }); }},
      {"clear", count + 10, [](graphcache::Cache& cache) { cache.clear(); }},
      {"evict", kEvicting, insert},
  };
  constexpr double kNone = std::numeric_limits<double>::max();
  std::vector<double> with_it(2 * std::size(operations), kNone), with_another = with_it;
  for (int round = 0; round < rounds; ++round) {
    for (const bool of_hits : {true, false}) {
      // The operations follow each other in one pair of caches: what is inserted is asked for, and cleared.
      std::unique_ptr<graphcache::Cache> its, another;
      int executables = 0;
      for (std::size_t i = 0; i < std::size(operations); ++i) {
        const Operation& operation = operations[i];
        if (executables != operation.executables) {
          executables = operation.executables;
          its = std::make_unique<graphcache::Cache>(bench::unshared(executables));
          another = std::make_unique<graphcache::Cache>(bench::unshared(executables));
        }
        const std::size_t at = 2 * i + (of_hits ? 0 : 1);
        with_it[at] = std::min(with_it[at], longest_run(*its, of_hits, [&] { operation.run(*its); }));
        with_another[at] = std::min(with_another[at], longest_run(*its, of_hits, [&] { operation.run(*another); }));
      }
    }
  }
  for (std::size_t i = 0; i < with_it.size(); ++i) {
    report.add({"pauses",
                {{"operation", operations[i / 2].name}, {"of", i % 2 == 0 ? "hits" : "misses"}, {"keys", count}},
                "us",
                with_it[i],
                "another cache",
                with_another[i],
                false});
  }
  return report.write();
}
