// A seed of the stress test from begin to end, and the checks when all its threads are done.
#include "stress_world.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "structure/checks.h"
#include "support.h"

namespace graphcache::test::stress {

void World::run() {
  std::vector<std::thread> threads;
  std::atomic<int> missing{kThreads};
  for (auto& lane : lanes) {
    threads.emplace_back([&] {
      --missing;
      while (missing > 0) std::this_thread::yield();
      lane->work();
      lane->finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  hostrt::clear_failures();
  if (stopped) return;
  check_counters();
  check_what_is_left();
}

void World::check_counters() {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::uint64_t failed = 0, captures = 0;
  for (const auto& lane : lanes) {
    for (std::size_t i = 0; i < outcomes.size(); ++i) outcomes[i] += lane->outcomes[i];
    failed += lane->failed;
    captures += lane->captures_begun;
  }
  const Stats stats = cache.stats();
  if (stats.outcomes != outcomes) fail("the outcomes are not those that the runs returned");
  if (stats.failed != failed) fail("the failed runs are not those that failed");
  if (plan.injects) return;
  if (stats.captures + stats.capture_failures != captures) fail("captures are not the calls of fn under capture");
  if (!plan.gentle) return;
  // A table replaces the executable that was lent before.
  const bool may_have_tables = plan.options.share != Share::kNever;
  if (stats.capture_failures != 0 || (stats.evictions != 0 && !may_have_tables) || stats.forgotten != 0) {
    fail("something left or failed, though there was room for everything");
  }
  std::uint64_t wanted = 0;
  for_each_key([&](const KeyState& state) {
    wanted += static_cast<std::uint64_t>(state.captures);
    if (state.captures > 1) fail("a key was captured twice: " + state.key.to_string());
  });
  if (stats.captures != wanted) fail("captures are not those of keys");
}

// Checks the cache and the runtime's objects after everything is done.
void World::check_what_is_left() {
  if (const std::string fault = StructureChecker::find_fault(cache); !fault.empty()) fail(fault);
  if (dying) return;  // handles are dropped
  for_each_key([&](const KeyState& state) { cache.unpin(state.key); });
  const Stream stream;
  (void)cache.run(key("last"), stream, [](cudaStream_t) {});
  (void)cache.warm(key("last of all"), stream, [](cudaStream_t) {});
  (void)cache.erase(key("last of all"));  // records events for what may be in flight
  (void)cudaDeviceSynchronize();
  (void)cache.erase(key("last of all"));  // destroys what waits and frees memory
  const Stats stats = cache.stats();
  if (stats.live_templates > std::max<std::uint64_t>(stats.live_executables, plan.options.max_templates)) {
    fail("more templates are kept than the options allow");
  }
  const hostrt::Ledger ledger = hostrt::ledger();
  if (ledger.executables != stats.live_executables) fail("executables are alive that the cache does not know");
  if (ledger.graphs < stats.live_templates || ledger.graphs > stats.live_templates + stats.live_executables) {
    fail("graphs are alive without an owner");
  }
  cache.clear();
  if (kept_objects != 0) fail("a cleared cache keeps objects");
  const hostrt::Ledger after = hostrt::ledger();
  if (after.executables + after.graphs + after.captures != 0) fail("the cache left something behind");
  if (cache.stats().live_templates + cache.stats().families != 0) fail("a cleared cache holds something");
}

}  // namespace graphcache::test::stress
