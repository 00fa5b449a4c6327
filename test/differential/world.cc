#include "world.h"

#include <absl/strings/str_cat.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "any_lane.h"
#include "forced_ways.h"
#include "memory.h"
#include "runtime.h"

namespace graphcache::test::differential {

namespace {

// Checks that each begin has its end in the same thread, and that each graph that was kept is destroyed once.
class Balance final : public Listener {
 public:
  Wants wants() const override { return {.hits = 3, .launches = true}; }
  absl::Status begin(const CacheEvent& event) override {
    open_.push_back(event.kind);
    return absl::OkStatus();
  }
  void end(const CacheEvent& event) override {
    if (has_duration(event.kind)) {
      if (open_.empty() || open_.back() != event.kind)
        return fault(std::string("unexpected end of ") + to_string(event.kind));
      open_.pop_back();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    ++events_;
    if (event.kind == EventKind::kCapture && event.graph != 0 && !graphs_.insert(event.graph).second)
      fault_ = "kept twice";
    if (event.kind == EventKind::kDestroyGraph && graphs_.erase(event.graph) == 0) fault_ = "destroyed twice";
  }
  // What is wrong, or an empty text. Call it when all caches have ended.
  std::string fault(bool is_enabled) const {
    if (!fault_.empty()) return "events: " + fault_;
    if (!graphs_.empty()) return absl::StrCat("events: ", graphs_.size(), " graphs were not destroyed");
    return is_enabled && events_ == 0 ? "events: none came" : "";
  }

 private:
  void fault(std::string what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fault_ = std::move(what);
  }

  static inline thread_local std::vector<EventKind> open_;
  std::mutex mutex_;
  std::set<std::uint64_t> graphs_;
  std::string fault_;
  std::uint64_t events_ = 0;
};

}  // namespace

Settings::Settings(std::uint64_t the_seed, const Limits& limits) : seed(the_seed) {
  Random random(seed, 0, 0);
  constexpr int kThreads[] = {1, 1, 2, 4, 8};
  threads = std::min(std::max(random.of(kThreads), limits.least_threads), limits.threads);
  constexpr int kExecutables[] = {1, 2, 3, 4, 8, 16, 64, 64};
  options.max_executables = random.one_in(50) ? 0 : std::min(random.of(kExecutables), limits.executables);
  constexpr int kTemplates[] = {0, 2, 8, 32, 512, 512};
  options.max_templates = random.of(kTemplates);
  constexpr std::size_t kBytes[] = {SIZE_MAX, SIZE_MAX, SIZE_MAX, 700'000, 260'000};
  options.max_device_bytes = random.of(kBytes);
  constexpr Sharing kSharings[] = {Sharing::kAuto,    Sharing::kAuto,          Sharing::kNever,
                                   Sharing::kUpdates, Sharing::kUpdatesAcross, Sharing::kTable};
  force(&options, random.of(kSharings));
  constexpr Patching kPatchings[] = {Patching::kAuto, Patching::kPerNode, Patching::kDeviceUpdated};
  force(random.of(kPatchings));
  if (random.one_in(4)) options.share = Share::kAlways;
  // While another thread's capture in global mode is active, synchronizations fail.
  constexpr cudaStreamCaptureMode kModes[] = {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed,
                                              cudaStreamCaptureModeGlobal};
  options.capture_mode = kModes[random.below(threads == 1 ? 3 : 2)];
  constexpr unsigned long long kFlags[] = {0, 0, cudaGraphInstantiateFlagUseNodePriority};
  options.instantiate_flags = random.of(kFlags);
  constexpr int kAfter[] = {0, 0, 0, 1, 3};
  options.capture_after = random.of(kAfter);

  flavor = {random.one_in(3),
            random.one_in(4),
            random.one_in(4),
            random.one_in(2),
            Random(seed, 4, 0).one_in(4),
            Random(seed, 6, 0).one_in(4)};
  priorities = random.one_in(2);
  bad_values = random.one_in(3);
  spins = random.one_in(2);
  synchronizes = random.one_in(3);
  // Verify mode captures such runs on a blocking stream, and meanwhile other threads must not use the default stream.
  const bool verifies = std::getenv("GRAPHCACHE_VERIFY") != nullptr;
  default_stream = Random(seed, 2, 0).one_in(3) && !(verifies && threads > 1);
  // Only in other worlds, because the per-thread stream is a blocking one.
  Random of_lanes(seed, 5, 0);
  per_thread = of_lanes.one_in(4) && !default_stream ? 1 + of_lanes.below(threads) : 0;
  steps = Random(seed, 7, 0).one_in(4);
  listens = Random(seed, 8, 0).one_in(3);
  registers = Random(seed, 9, 0).one_in(4) && !verifies;
  constexpr int kToCompare[] = {1, 8, 24, 24};
  runs_to_compare = random.of(kToCompare);
  if (limits.compare_each) runs_to_compare = 1;
  runs = 60 + random.below(240);
  if (limits.runs > 0) runs = limits.runs;
  const int count = 4 + random.below(24);
  for (int i = 0; i < count; ++i) programs.push_back(random_program(random, programs, flavor));
}

std::string Settings::text() const {
  const auto number = [](auto value) { return static_cast<int>(value); };
  return absl::StrCat(
      "world ", seed, " (threads ", threads, ", programs ", programs.size(), ", executables ", options.max_executables,
      ", templates ", options.max_templates, ", bytes ",
      options.max_device_bytes == SIZE_MAX ? "any" : absl::StrCat(options.max_device_bytes), ", share ",
      number(options.share), ", tables ", number(mechanisms_of_new_caches.tables), ", patching ",
      number(mechanisms_of_new_caches.patching), ", mode ", number(options.capture_mode), ", flags ",
      options.instantiate_flags, ", after ", options.capture_after, priorities ? ", priorities" : "",
      default_stream ? ", default stream" : "", per_thread > 0 ? absl::StrCat(", per thread ", per_thread) : "",
      steps ? ", steps" : "", listens ? ", listens" : "", registers ? ", registers" : "",
      bad_values ? ", bad values" : "", spins ? ", spins" : "", synchronizes ? ", synchronizes" : "",
      flavor.tiny ? ", tiny" : "", flavor.allocates ? ", allocates" : "", flavor.breaks ? ", breaks" : "",
      flavor.related ? ", related" : "", flavor.pageable ? ", pageable" : "", flavor.refuses ? ", refuses" : "", ")");
}

void Tally::add(const Tally& other) {
  const auto add = [](auto& to, const auto& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  runs += other.runs;
  failed += other.failed;
  alike += other.alike;
  per_thread += other.per_thread;
  steps += other.steps;
  add(outcomes, other.outcomes);
  add(eager_reasons, other.eager_reasons);
  add(kinds, other.kinds);
  add(changes, other.changes);
}

void World::fault(const std::string& what) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (fault_.empty()) fault_ = what;
  stopped = true;
}

void World::check_stats(const Cache& cache, const Stats& stats, const Tally& tally) {
  const auto reasons = std::accumulate(stats.eager_reasons.begin(), stats.eager_reasons.end(), std::uint64_t{0});
  if (reasons != stats.outcome(Outcome::kEager)) fault("the reasons of eager runs do not add up");
  if (stats.outcomes != tally.outcomes) fault("the counted outcomes are not those returned");
  if (stats.failed != tally.failed) fault("the counted failures are not those returned");
  if (stats.live_executables > static_cast<std::uint64_t>(settings.options.max_executables)) {
    fault(absl::StrCat(stats.live_executables, " executables are alive"));
  }
  if (stats.estimated_device_bytes > settings.options.max_device_bytes) {
    fault(absl::StrCat("executables take ", stats.estimated_device_bytes, " bytes"));
  }
  if (!cache.status().ok()) fault("the cache's status is " + cache.status().ToString());
}

std::string World::run(Tally* tally) {
  set_world_in_flight(settings.text());
  begin_world(settings.seed);
  const auto balance = std::make_shared<Balance>();
  {
    Options options = settings.options;
    if (settings.listens) options.listeners = {balance};
    auto cache = std::make_unique<Cache>(options);
    std::vector<std::unique_ptr<AnyLane>> lanes;
    for (int i = 0; i < settings.threads; ++i) {
      lanes.push_back((i < settings.per_thread ? make_per_thread_lane : make_plain_lane)(*this, *cache, i));
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<std::thread> threads;
    for (const auto& lane : lanes) threads.emplace_back([&lane] { lane->work(); });
    for (std::thread& thread : threads) thread.join();
    Tally sum;
    for (const auto& lane : lanes) sum.add(lane->tally());
    const Stats stats = cache->stats();
    check_stats(*cache, stats, sum);
    sum.eager_reasons = stats.eager_reasons;
    sum.changes = {stats.captures,      stats.instantiations, stats.updates,         stats.set_switches,
                   stats.patched_nodes, stats.evictions,      stats.refused_updates, stats.refused_device_updates};
    tally->add(sum);
    // Entries must be destroyed before the memory that they use. Streams may be destroyed before the cache.
    settings.seed % 3 == 0 ? cache->clear() : cache.reset();
    lanes.clear();
  }
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaDeviceGraphMemTrim(0), "cudaDeviceGraphMemTrim");
  if (const std::string left = left_by_world(); !left.empty()) fault(left);
  if (const std::string unbalanced = balance->fault(settings.options.max_executables > 0);
      settings.listens && !unbalanced.empty())
    fault(unbalanced);
  return fault_;
}

}  // namespace graphcache::test::differential
