// The cache outside of runs: construction, reports, erasing.
#include "run/impl.h"

#include <absl/functional/function_ref.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "cuda/errors.h"

namespace graphcache {
namespace {

// Whether an environment variable is set to something other than "0".
bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace

Cache::Impl::Impl(const Options& options, absl::Status invalid)
    : options_(options),
      invalid_(std::move(invalid)),
      observer_(static_cast<std::size_t>(std::max(options.keep_events, 0)), options.nvtx),
      meter_(options_.measure_device_bytes && invalid_.ok(), options_.device),
      policy_({.share = options.share,
               .max_executables = static_cast<std::size_t>(std::max(options.max_executables, 0)),
               .max_device_bytes = options.max_device_bytes,
               .mechanisms = mechanisms_of_new_caches}),
      capture_streams_(options.verify_every == 0 ? cudaStreamNonBlocking : cudaStreamDefault),
      scratch_(options_.device),
      memory_(std::make_shared<DeviceMemory>(options_.device)),
      setter_(options_.device, memory_, options_.capture_mode),
      memory_to_leave_{{options_.device, memory_}},
      graveyard_(options_.device, &meter_) {
  hits_->late_error = &memory_->late_error();
  enabled_ = invalid_.ok() && options_.max_executables > 0 && !is_set("GRAPHCACHE_DISABLE");
  const Hooks& hooks = options_.hooks;
  notifies_ = hooks.on_evict || hooks.on_forget;
  is_usual_ = enabled_ && !options_.inline_in_foreign_capture && options_.verify_every == 0 && !observer_.is_on() &&
              !notifies_ && !hooks.before_launch;
  hits_->sampled_at = options.time_hits ? detail::Hits::kSampleMask : detail::Hits::kNeverSampled;
  logs_to_stderr_ = is_set("GRAPHCACHE_LOG");
  if (enabled_ && (options_.diagnose || is_set("GRAPHCACHE_DIAGNOSE"))) find_diagnoser();
  if (enabled_) start_background();
}

Cache::Impl::~Impl() {
  stop_background();
  clear();
  notify(/*at_end=*/true);
  {
    MutexLock lock(mutex_);
    if (!released_.empty()) memory_->keep(std::move(released_));
  }
  if (active_recording != nullptr || !graveyard_.empty()) graveyard_.leave_behind(std::move(memory_to_leave_));
}

bool Cache::Impl::contains(const Key& key) const {
  MutexLock lock(mutex_);
  for (const Entry* entry = index_.find(key); entry != nullptr; entry = Index::next_of_key(entry)) {
    if (entry->state != State::kCold) return true;
  }
  return false;
}

bool Cache::Impl::pin(const Key& key, bool pinned) {
  MutexLock lock(mutex_);
  Entry* const first = index_.find(key);
  for (Entry* entry = first; entry != nullptr; entry = Index::next_of_key(entry)) {
    entry->pinned = pinned;
    policy_.pinned(entry->id, pinned);
  }
  return first != nullptr;
}

// If a run has the entry, it will see at its end that a wait was announced, and sweep. Until then the executable
// counts, and no other key gets it.
void Cache::Impl::forget(Entry* entry) {
  index_.erase(entry);
  policy_.pinned(entry->id, true);
  entry->lock.announce_wait();
}

bool Cache::Impl::erase(const Key& key) {
  bool found = false;
  {
    MutexLock lock(mutex_);
    while (Entry* entry = index_.find(key)) {
      forget(entry);
      found = true;
    }
    sweep();
  }
  graveyard_.collect_all();
  take_released();
  notify();
  if (!lost_ && active_recording == nullptr) trim();
  return found;
}

// Holds the lock only for a short time at once, because runs that are not hits wait for it. The lock is not fair: they
// get it while this thread sleeps.
void Cache::Impl::clear() {
  constexpr std::chrono::microseconds kHeld(300), kPause(20);
  // Number of buckets between two checks of the time; they contain about half as many entries.
  constexpr int kBuckets = 32;
  const auto forget_it = [this](Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { forget(entry); };
  const absl::FunctionRef<void(Entry*)> forgets = forget_it;
  std::optional<EntryTable::Walk> walk;
  do {
    if (walk) std::this_thread::sleep_for(kPause);
    MutexLock lock(mutex_);
    const auto end = std::chrono::steady_clock::now() + kHeld;
    if (!walk) walk.emplace(index_.walk());
    do {
      for (int i = 0; i < kBuckets && !walk->done(); ++i) walk->step(forgets);
      sweep(/*of_clear=*/true);
    } while (!walk->done() && std::chrono::steady_clock::now() < end);
  } while (!walk->done());
  if (const CallResult lost = graveyard_.collect_all(memory_.get()); lost.error != cudaSuccess) {
    return lose(cuda_failure(lost.call, lost.error));
  }
  take_released();
  notify();
  if (!lost_ && active_recording == nullptr) trim();
}

// Deletes erased entries that are not in use, and returns whether there were any. Drops a few of the surplus cold
// entries: only a few, because runs wait for the lock. Each new entry sweeps once, so their number falls nevertheless.
bool Cache::Impl::sweep(bool of_clear) {
  constexpr int kSurplus = 8;  // Limit for each call.
  for (int i = 0; i < kSurplus; ++i) {
    Entry* const surplus = index_.surplus();
    if (surplus == nullptr) break;
    forget(surplus);  // A run may just have begun to use it.
  }
  bool any = false;
  index_.sweep([&](Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    any = true;
    policy_.erased(entry.id);
    labels_.leave(entry);
    ghosts_.remove(&entry);
    if (entry.signature != nullptr) signatures_.remove(entry.signature);
    graveyard_.add(entry.take_executable(), std::move(entry.graph), entry.stream, /*set_aside=*/of_clear);
    adopted_ -= entry.is_adopted ? 1 : 0;
    if (entry.state != State::kCold) note(entry, /*is_forgotten=*/true);
    released_.splice(released_.end(), entry.owner);
  });
  return any;
}

// After a fatal error all handles are dropped, none is destroyed (fact 32), and every later run returns that error.
void Cache::Impl::lose(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    fatal_.Update(why);
    lost_ = true;
  }
  graveyard_.abandon();
  scratch_.abandon();
  upload_stream_.abandon();
  capture_streams_.abandon();
  updater_.abandon();
  setter_.abandon();
  memory_->abandon();
  clear();
}

void Cache::Impl::log(std::string_view text) const noexcept try {
  if (logs_to_stderr_) std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  if (options_.log) options_.log(text);
} catch (...) {  // The callback threw, or memory ran out.
}

void Cache::Impl::log(const Key& key, std::string_view what) const noexcept try {
  if (!logs_to_stderr_ && !options_.log) return;
  log(message_of(with_key(absl::UnknownError(std::string(what)), key)));
} catch (const std::bad_alloc&) {
}

absl::Status Cache::Impl::status() const {
  if (!invalid_.ok() || !lost_) return invalid_;
  MutexLock lock(mutex_);
  return fatal_;
}

Stats Cache::Impl::stats() const {
  MutexLock lock(mutex_);
  Stats stats = totals_;
  hits_->counts.add_to(stats);
  stats.live_executables = policy_.executables();
  stats.live_templates = index_.templates();
  stats.families = policy_.families();
  stats.estimated_device_bytes = policy_.bytes();
  stats.measured_device_bytes = meter_.bytes();
  return stats;
}

std::vector<LabelStats> Cache::Impl::labels() const try {
  constexpr int kBuckets = 512;  // Limit for each time the lock is held.
  std::vector<LabelStats> of_entries;
  const auto add = [&](const Entry* entry) {
    if (of_entries.size() <= entry->label) of_entries.resize(entry->label + std::size_t{1});
    ++of_entries[entry->label].entries;
    Labels::add(*entry, &of_entries);
  };
  for (std::optional<EntryTable::Walk> walk;;) {
    if (walk) std::this_thread::sleep_for(std::chrono::microseconds(20));  // As in clear().
    MutexLock lock(mutex_);
    if (!walk) walk.emplace(index_.walk());
    for (int i = 0; i < kBuckets && !walk->done(); ++i) walk->step(add);
    if (!walk->done()) continue;
    std::vector<LabelStats> labels = labels_.gone();
    index_.for_each_erased([&](const Entry* entry) { Labels::add(*entry, &labels); });
    for (std::size_t i = 0; i < of_entries.size(); ++i) {
      labels[i].entries = of_entries[i].entries;
      for (std::size_t k = 0; k < kOutcomeCount; ++k) labels[i].outcomes[k] += of_entries[i].outcomes[k];
    }
    return labels;
  }
} catch (const std::bad_alloc&) {
  return {};
}

std::vector<EntryInfo> Cache::Impl::entries() const try {
  struct Found {
    Key key;
    Use last_use;
    EntryInfo info;
  };
  const auto look = [this](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Found found{entry.key, entry.last_use(), {}};
    EntryInfo& info = found.info;
    info.id = entry.number();
    info.outcomes = entry.counts();
    info.live = entry.state == State::kLive;
    info.recorded = entry.state != State::kCold;
    info.pinned = entry.pinned;
    info.adopted = entry.is_adopted;
    info.family = policy_.family(entry.id);
    info.eager_reason = entry.eager_reason;
    if (!entry.error.ok()) info.error = entry.error.ToString();
    info.stale = entry.noted().stale;
    info.stray_work = entry.noted().stray_work;
    info.nodes = entry.nodes.value();
    info.slot_nodes = entry.slot_nodes.value();
    info.estimated_device_bytes = policy_.bytes(entry.id);
    return found;
  };
  std::vector<std::pair<Use, EntryInfo>> all;
  for_each_entry(look, [&](Found& found) {
    found.info.label = std::string(found.key.label());
    found.info.key = found.key.to_string();
    all.emplace_back(found.last_use, std::move(found.info));
  });
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<EntryInfo> infos;
  infos.reserve(all.size());
  for (auto& [last_use, info] : all) {
    info.last_use_order = infos.size();
    infos.push_back(std::move(info));
  }
  return infos;
} catch (const std::bad_alloc&) {
  return {};
}

std::vector<std::pair<Key, std::uint64_t>> Cache::Impl::replayed_keys() const {
  const auto hash = [](const Key& key) { return key.hash(); };
  std::unordered_map<Key, std::uint64_t, decltype(hash)> runs(0, hash);
  const auto look = [](const Entry& entry) {
    const auto counts = entry.counts();
    const bool is_replayed = entry.state != State::kCold && hits_of(counts) != 0;
    return std::pair(entry.key, is_replayed ? runs_of(counts) : 0);
  };
  for_each_entry(look, [&](std::pair<Key, std::uint64_t>& found) {
    if (found.second != 0) runs[found.first] += found.second;
  });
  return {runs.begin(), runs.end()};
}

}  // namespace graphcache
