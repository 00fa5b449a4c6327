// Random operations of many threads on one cache, with failures, against a model that accepts only results that some
// order of the operations explains. On hostrt.
//
// Each thread has a lane: a stream, and memory that only its own work uses. Keys and executables are shared, and reach
// the lanes' memory by slots, or as siblings. So whatever the threads do to each other, a lane's memory must be the
// result of its own runs, each done once, in order, with its own values. This is compared after every run. Outcomes,
// counters and calls of `fn` are checked against each other, and against the times of erasures.
//
// A seed decides the cache's options and every operation of every thread, but not the timing of the threads.
//   GRAPHCACHE_STRESS_SEED=n   that seed alone, as a failure says
//   GRAPHCACHE_STRESS_SEEDS=n  so many seeds, from that one or from 1
//   GRAPHCACHE_FULL=1          10,000 seeds of 3200 operations
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "graphcache/hostrt.h"
#include "seeds.h"
#include "size.h"
#include "stress_world.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define GRAPHCACHE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define GRAPHCACHE_SANITIZED 1
#endif
#endif

namespace graphcache::test::stress {
namespace {

void add(Stats* all, const Stats& stats) {
  for (std::size_t i = 0; i < stats.outcomes.size(); ++i) all->outcomes[i] += stats.outcomes[i];
  for (std::size_t i = 0; i < stats.eager_reasons.size(); ++i) all->eager_reasons[i] += stats.eager_reasons[i];
  for (const auto counter :
       {&Stats::failed, &Stats::captures, &Stats::capture_failures, &Stats::instantiations, &Stats::updates,
        &Stats::set_switches, &Stats::refused_updates, &Stats::refused_device_updates, &Stats::patched_nodes,
        &Stats::evictions, &Stats::forgotten}) {
    all->*counter += stats.*counter;
  }
  all->capture_time += stats.capture_time;
  all->instantiate_time += stats.instantiate_time;
}

TEST(StressTest, EveryResultIsExplainedByAnOrder) {
#if defined(GRAPHCACHE_SANITIZED)
  constexpr std::uint64_t kSeeds = 60;
#else
  constexpr std::uint64_t kSeeds = 500;
#endif
  const std::uint64_t first = number_of("GRAPHCACHE_STRESS_SEED", 1);
  std::uint64_t count = by_size<std::uint64_t>(kSeeds / 3, kSeeds, 10'000);
  if (std::getenv("GRAPHCACHE_STRESS_SEED") != nullptr) count = 1;
  count = number_of("GRAPHCACHE_STRESS_SEEDS", count);
  watch_seeds("GRAPHCACHE_STRESS_SEED");
#if !defined(GRAPHCACHE_SANITIZED)
  std::signal(SIGSEGV, say_seed_and_die);
#endif
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t operations = 0, failures = 0;
  Stats all;
  std::uint64_t seed = first;
  for (; seed < first + count && !HasFailure(); ++seed) {
    begin_seed(seed);
    hostrt::reset();
    hostrt::set_device_count(2);
    const Plan plan(seed);
    if (plan.defers) hostrt::defer(seed);
    {
      World world(plan);
      world.run();
      for (const std::string& fault : world.faults()) ADD_FAILURE() << fault;
      for (const auto& lane : world.lanes) operations += lane->operations;
      const Stats stats = world.cache.stats();
      add(&all, stats);
    }
    EXPECT_EQ(kept_objects, 0) << "objects that graphs keep";
    failures += hostrt::failures_injected();
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    cudaGetLastError();
    if (HasFailure())
      std::printf("seed %llu, to replay: GRAPHCACHE_STRESS_SEED=%llu\n", static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(seed));
  }
  end_seeds();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%llu seeds, %llu operations in %.1f s, %llu failures injected\n%s\n",
              static_cast<unsigned long long>(seed - first), static_cast<unsigned long long>(operations), took.count(),
              static_cast<unsigned long long>(failures), to_string(all).c_str());
  if (count < 100 || HasFailure()) return;
  EXPECT_GT(all.set_switches, all.runs() / 100);  // otherwise the tables were hardly tested
}

}  // namespace
}  // namespace graphcache::test::stress
