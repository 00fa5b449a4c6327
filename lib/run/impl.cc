// The cache outside of runs: construction, reports, erasing.
#include "run/impl.h"

#include <absl/functional/function_ref.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "cuda/errors.h"
#include "graphcache/status.h"

namespace graphcache {
namespace {

// Whether an environment variable is set to something other than "0".
bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

// EntryInfo::place.
const void* place_of(const detail::Site& site) {
  const auto number = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  return reinterpret_cast<const void*>(number(site.type) + 3 * number(site.target));
}

}  // namespace

Cache::Impl::Impl(const Options& options, absl::Status invalid)
    : asked_(options),
      invalid_(std::move(invalid)),
      enabled_(invalid_.ok() && options.max_executables > 0 && !is_set("GRAPHCACHE_DISABLE")),
      logs_to_stderr_(is_set("GRAPHCACHE_LOG")),
      options_(options),
      audience_(std::make_shared<const Audience>(options.listeners)),
      policy_({.share = options.share,
               .max_executables = static_cast<std::size_t>(std::max(options.max_executables, 0)),
               .max_device_bytes = options.max_device_bytes,
               .mechanisms = mechanisms_of_new_caches}) {
  options_.diagnose = options_.diagnose || is_set("GRAPHCACHE_DIAGNOSE");
  hits_->hits_skipped = ~audience_->hits_mask();
}

Cache::Impl::~Impl() {
  clear();
  if (device_ == nullptr) return;
  if (active_recording != nullptr || !device_->graveyard.empty()) {
    device_->graveyard.leave_behind(std::move(device_->memory_to_leave));
  }
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

// The entry can no longer be found. If a run has it, that run will see at its end that a wait was announced, and sweep.
// Until then the executable counts, and no other key gets it.
void Cache::Impl::erase(Entry* entry) {
  index_.erase(entry);
  policy_.pinned(entry->id, true);
  entry->lock.announce_wait();
}

std::size_t Cache::Impl::erase(absl::Span<const Key> keys) {
  constexpr std::size_t kAtOnce = 64;  // Limit for each time the lock is held.
  std::size_t found = 0;
  for (std::size_t i = 0; i < keys.size(); i += kAtOnce) {
    MutexLock lock(mutex_);
    for (const Key& key : keys.subspan(i, kAtOnce)) {
      found += index_.find(key) != nullptr ? 1 : 0;
      while (Entry* entry = index_.find(key)) erase(entry);
    }
    sweep();
  }
  if (!has_begun()) return found;
  device_->graveyard.collect_all(nullptr, /*is_patient=*/true);
  if (!lost_ && active_recording == nullptr) trim();
  return found;
}

std::size_t Cache::Impl::erase_if(const std::function<bool(const Key&)>& predicate) {
  std::vector<Key> keys;
  for_each_entry([](const Entry& entry) { return entry.key; },
                 [&](Key& key) {
                   if (predicate(key)) keys.push_back(std::move(key));
                 });
  return erase(keys);
}

// Holds the lock only for a short time at once, because runs that are not hits wait for it. The lock is not fair: they
// get it while this thread sleeps.
void Cache::Impl::clear() {
  constexpr std::chrono::microseconds kHeld(300), kPause(20);
  // Number of buckets between two checks of the time; they contain about half as many entries.
  constexpr int kBuckets = 32;
  const auto erase_it = [this](Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { erase(entry); };
  const absl::FunctionRef<void(Entry*)> erases = erase_it;
  std::optional<EntryTable::Walk> walk;
  do {
    if (walk) std::this_thread::sleep_for(kPause);
    MutexLock lock(mutex_);
    const auto end = std::chrono::steady_clock::now() + kHeld;
    if (!walk) walk.emplace(index_.walk());
    do {
      for (int i = 0; i < kBuckets && !walk->done(); ++i) walk->step(erases);
      sweep(/*of_clear=*/true);
    } while (!walk->done() && std::chrono::steady_clock::now() < end);
  } while (!walk->done());
  if (!has_begun()) return;
  if (const CallResult lost = device_->graveyard.collect_all(device_->memory.get()); lost.error != cudaSuccess) {
    return lose(cuda_failure(lost.call, lost.error));
  }
  if (!lost_ && active_recording == nullptr) trim();
}

// Deletes erased entries that are not in use, and returns whether there were any. Drops a few of the surplus cold
// entries: only a few, because runs wait for the lock. Each new entry sweeps once, so their number falls nevertheless.
bool Cache::Impl::sweep(bool of_clear) {
  constexpr int kSurplus = 8;  // Limit for each call.
  for (int i = 0; i < kSurplus; ++i) {
    Entry* const surplus = index_.surplus();
    if (surplus == nullptr) break;
    erase(surplus);  // A run may just have begun to use it.
  }
  bool any = false;
  index_.sweep([&](Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    any = true;
    policy_.erased(entry.id);
    if (entry.signature != nullptr) signatures_.remove(entry.signature);
    Epitaph epitaph = epitaph_of(entry, Loss::kErased, /*drops_graph=*/entry.content != nullptr);
    epitaph.erased = last_of(entry);
    device_->graveyard.add(entry.take_executable(), std::move(entry.graph), entry.stream, std::move(epitaph),
                           /*set_aside=*/of_clear);
    device_->graveyard.drop(std::move(entry.kept));
  });
  return any;
}

std::unique_ptr<const Epitaph::Erased> Cache::Impl::last_of(const Entry& entry) const noexcept try {
  if (audience_->empty()) return nullptr;
  return std::make_unique<Epitaph::Erased>(Epitaph::Erased{entry.key, entry.number(), entry.counts()});
} catch (const std::bad_alloc&) {
  return nullptr;
}

absl::Status Cache::Impl::failed(const Request& request, absl::Status why) {
  if (has_begun() && is_fatal(cuda_error(why))) {
    log(request.key, message_of(why));
    lose(why);
  }
  ++totals_.failed;
  return with_key(why, request.key);
}

// After a fatal error all handles are dropped, none is destroyed (fact 32), and every later run returns that error.
void Cache::Impl::lose(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    fatal_.Update(why);
    lost_ = true;
  }
  device_->abandon();
  clear();
}

void Cache::Impl::log(std::string_view text) const noexcept {
  if (logs_to_stderr_) std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  audience_->message(text);
}

void Cache::Impl::log(const Key& key, std::string_view what) const noexcept try {
  if (!logs_to_stderr_ && audience_->empty()) return;
  log(message_of(with_key(absl::UnknownError(std::string(what)), key)));
} catch (const std::bad_alloc&) {
}

absl::Status Cache::Impl::status() const {
  if (!invalid_.ok()) return invalid_;
  if (!has_begun()) {
    MutexLock lock(begin_mutex_);
    return not_begun_;
  }
  if (!lost_) return absl::OkStatus();
  MutexLock lock(mutex_);
  return fatal_;
}

Stats Cache::Impl::stats() const {
  Stats stats;
  hits_->counts.add_to(stats);  // First, because runs count their outcome last.
  totals_.add_to(stats);
  MutexLock lock(mutex_);
  stats.live_executables = policy_.executables();
  stats.live_templates = index_.templates();
  stats.families = policy_.families();
  stats.estimated_device_bytes = policy_.bytes();
  return stats;
}

std::vector<EntryInfo> Cache::Impl::entries() const try {
  struct Found {
    Use last_use;
    EntryInfo info;
  };
  const auto look = [this](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Found found{entry.last_use(), {}};
    EntryInfo& info = found.info;
    info.id = entry.number();
    info.key = entry.key;
    info.place = place_of(entry.site);
    info.outcomes = entry.counts();
    info.live = entry.state == State::kLive;
    info.recorded = entry.state != State::kCold;
    info.pinned = entry.pinned;
    info.rule = entry.rule;
    info.executable_lost = entry.executable_lost;
    info.template_lost = entry.template_lost;
    info.others = entry.others;
    info.eager_reason = entry.eager_reason;
    info.error = std::string(message_of(entry.error));
    if (info.error.empty() && !entry.error.ok()) info.error = entry.error.ToString();
    info.refusal = entry.noted().refusal;
    info.stale = entry.noted().stale;
    info.stray_work = entry.noted().stray_work;
    info.family = policy_.family(entry.id);
    info.looked_for_siblings = policy_.is_read(entry.id);
    info.nodes = entry.nodes.value();
    info.slot_nodes = entry.slot_nodes.value();
    info.estimated_device_bytes = policy_.bytes(entry.id);
    return found;
  };
  std::vector<Found> all;
  for_each_entry(look, [&](Found& found) {
    found.info.label = std::string(found.info.key.label());
    all.push_back(std::move(found));
  });
  std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) { return a.last_use > b.last_use; });
  std::vector<EntryInfo> infos;
  infos.reserve(all.size());
  for (Found& found : all) {
    found.info.last_use_order = infos.size();
    infos.push_back(std::move(found.info));
  }
  return infos;
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace graphcache
