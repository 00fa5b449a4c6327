// How long another thread's operations on the same cache delay the runs of a thread, on hostrt: pauses [--json FILE]
// [KEYS [ROUNDS]].
//
// The figure is the longest run of the first thread, a hit or a miss, while the other thread repeats an operation, in
// us. A miss is the run of a new key and its erase(), so that the first thread always needs the cache. The reference is
// the longest run while the other thread does the same with another cache. Both are the lowest of the rounds. Three
// delays do not belong to the cache and do not count:
//
//   the scheduler  A thread that has lost its CPU to another program continues some 4 ms later, and so does a thread
//                  that waits for its lock. The kernel counts for how long a thread has had a CPU, and for how long it
//                  has waited for one. The figure is the time that the run worked, and that it was blocked while
//                  neither thread waited for a CPU.
//   hostrt         It has one lock for all calls. The time for which a run waits for that lock does not count.
//   malloc         glibc keeps small free blocks apart, and merges all of them at once in some call of free(): in 10 to
//                  200 ms after 100,000 keys. Or it gives much memory back at once. Both are turned off.
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host.h"
#include "report.h"

namespace {

constexpr int kEvicting = 64;  // executables of the caches that evict

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::int64_t{1000000000} * time.tv_sec + time.tv_nsec;
}

// How long a thread has had a CPU so far, and how long it has waited for one, in ns.
class CpuTimes {
 public:
  // Of the calling thread.
  CpuTimes() : file_(open(("/proc/self/task/" + std::to_string(gettid()) + "/schedstat").c_str(), O_RDONLY)) {
    pthread_getcpuclockid(pthread_self(), &clock_);
  }
  ~CpuTimes() {
    if (file_ >= 0) close(file_);
  }
  CpuTimes(const CpuTimes&) = delete;
  CpuTimes& operator=(const CpuTimes&) = delete;

  std::int64_t had() const { return nanoseconds_of(clock_); }
  // 0 if the kernel does not report it.
  std::int64_t waited() const {
    char text[96];
    const ssize_t size = pread(file_, text, sizeof(text) - 1, 0);
    if (size <= 0) return 0;
    text[size] = '\0';
    long long had = 0, waited = 0;
    return std::sscanf(text, "%lld %lld", &had, &waited) == 2 ? waited : 0;
  }

 private:
  const int file_;
  clockid_t clock_{};
};

// A span of time of the running thread, in ns.
struct Span {
  std::int64_t wall = 0, own_cpu = 0, own_wait = 0;
  std::int64_t other_cpu = 0, other_wait = 0;  // of the operating thread

  friend Span operator-(const Span& a, const Span& b) {
    return {a.wall - b.wall, a.own_cpu - b.own_cpu, a.own_wait - b.own_wait, a.other_cpu - b.other_cpu,
            a.other_wait - b.other_wait};
  }
  // The time that this thread worked, and the time that it was blocked while the other one worked or slept, without
  // time in which one of them waited for a CPU. Only a bound can be computed: the first figure below is too small if
  // the other thread began to wait before the span, the second one if both waited at the same time.
  std::int64_t undisturbed() const {
    const std::int64_t blocked = wall - own_cpu - own_wait;
    return own_cpu + std::max({std::int64_t{0}, blocked - other_wait, other_cpu - own_cpu - own_wait});
  }
};

// Measures the running thread.
class Stopwatch {
 public:
  explicit Stopwatch(const CpuTimes& other) : other_(other) { of_thread = this; }
  ~Stopwatch() { of_thread = nullptr; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // The time of f(), without that of what leave_out() does meanwhile.
  template <class F>
  Span time(F&& f) {
    begin_ = now();
    f();
    return now() - begin_;
  }
  template <class F>
  void leave_out(F&& f) {
    const Span before = now() - begin_;
    f();
    begin_ = now() - before;
  }
  // The calling thread's stopwatch, or null.
  static inline thread_local Stopwatch* of_thread = nullptr;

 private:
  // All of them at one moment, as far as possible: reads again if the scheduler interfered.
  Span now() const {
    constexpr std::int64_t kMoment = 20000;
    for (;;) {
      const std::int64_t begin = nanoseconds_of(CLOCK_MONOTONIC);
      const Span span{begin, own_.had(), own_.waited(), other_.had(), other_.waited()};
      if (nanoseconds_of(CLOCK_MONOTONIC) - begin < kMoment) return span;
    }
  }

  const CpuTimes own_;
  const CpuTimes& other_;
  Span begin_;
};

// The lock that this thread took last, and hostrt's lock.
thread_local const pthread_mutex_t* taken = nullptr;
const pthread_mutex_t* of_hostrt = nullptr;

}  // namespace

// The program is linked with --wrap=pthread_mutex_lock.
extern "C" int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
extern "C" int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  taken = mutex;
  Stopwatch* const watch = Stopwatch::of_thread;
  if (watch == nullptr || mutex != of_hostrt) return __real_pthread_mutex_lock(mutex);
  if (pthread_mutex_trylock(mutex) == 0) return 0;
  int error = 0;
  watch->leave_out([&] { error = __real_pthread_mutex_lock(mutex); });
  return error;
}

namespace {

// The longest run of another thread in `cache` while `operation` is repeated here, in us.
double longest_run(graphcache::Cache& cache, bool of_hits, const std::function<void()>& operation) {
  const CpuTimes operating;
  std::atomic<bool> ready{false}, over{false};
  std::int64_t longest = 0;
  std::thread other([&] {
    cudaStream_t stream = bench::new_stream();
    int next = -1;
    const graphcache::Key key = bench::numbered(next);
    bench::run(cache, stream, key);
    Stopwatch watch(operating);
    ready = true;
    while (!over) {
      const graphcache::Key miss = bench::numbered(--next);
      const Span span = watch.time([&] {
        bench::run(cache, stream, of_hits ? key : miss);
        if (!of_hits) cache.erase(miss);
      });
      longest = std::max(longest, span.undisturbed());
    }
  });
  while (!ready) std::this_thread::yield();
  operation();
  over = true;
  other.join();
  return static_cast<double>(longest) / 1000;
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
  mallopt(M_MXFAST, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  bench::Report report(argc, argv, bench::machine());
  const int count = report.argument(0, 100000), rounds = report.argument(1, 3);
  graphcache::hostrt::set_execution(false);
  cudaStream_t stream = bench::new_stream();
  bench::check(cudaStreamQuery(stream));
  of_hostrt = taken;
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
      // The operations follow each other in one pair of caches: insertions, queries, and clear().
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
