// The public interface. The work is done in lib/run.
#include "graphcache/cache.h"

#include <cxxabi.h>

#include <map>
#include <memory>
#include <new>
#include <string_view>
#include <typeinfo>

#include "cuda/errors.h"
#include "cuda/mutex.h"
#include "cuda/this_thread.h"
#include "run/run.h"

// With structure checks, test/structure checks the cache after such a call.
#ifndef GRAPHCACHE_CHECKED
#define GRAPHCACHE_CHECKED(core) core
#endif

namespace graphcache {

bool detail::hides_its_code(const std::type_info& type) {
  if (dynamic_cast<const abi::__pbase_type_info*>(&type) != nullptr) return true;
  const std::string_view name = type.name();
  return name.substr(0, 2) == "St" || name.substr(0, 3) == "NSt" || name.substr(0, 6) == "N4absl";
}

Cache::Cache(const Options& options) : core_(std::make_unique<Core>(options)) { hits()->cache = this; }
Cache::~Cache() {
  const detail::NotCancelled not_cancelled;
  hits()->cache = nullptr;
  core_.reset();
}
const std::shared_ptr<detail::Hits>& Cache::hits() const { return core_->hits; }
absl::StatusOr<Outcome> Cache::run_call(const Key& key, cudaStream_t stream, const detail::Call& call) {
  return graphcache::run(*GRAPHCACHE_CHECKED(core_), key, stream, call);
}
absl::StatusOr<Outcome> Cache::run_step(detail::Hits& hits, const Key& key, cudaStream_t stream,
                                        const detail::Call& call, detail::Remembered* remembered) {
  Cache* const cache = hits.cache.load(std::memory_order_relaxed);
  if (cache == nullptr)
    return with_key(absl::FailedPreconditionError("the cache of this step has been destroyed"), key);
  detail::HotEntry* const entry = remembered->entry;
  if (entry != nullptr && remembered->site == call.site && hits.are_usual() && entry->lock.try_lock()) {
    const bool is_hit = entry->life == remembered->life && !entry->erased.load(std::memory_order_relaxed) &&
                        entry->is_ready_for(name_of(stream), call.values, call.values_size);
    const cudaError_t error = is_hit ? hits.launch(*entry) : cudaSuccess;
    if (error != cudaSuccess) {
      return Run(*GRAPHCACHE_CHECKED(cache->core_), key, stream, call, remembered, static_cast<Entry*>(entry))
          .run(error);
    }
    cache->core_->unlock(static_cast<Entry*>(entry));
    if (is_hit) return Outcome::kReplayed;
  }
  return graphcache::run(*GRAPHCACHE_CHECKED(cache->core_), key, stream, call, remembered);
}
absl::Status Cache::warm_call(const Key& key, cudaStream_t stream, const detail::Call& call) {
  return Run(*GRAPHCACHE_CHECKED(core_), key, stream, call).warm();
}
bool Cache::contains(const Key& key) const { return GRAPHCACHE_CHECKED(core_)->store.contains(key); }
bool Cache::pin(const Key& key) { return GRAPHCACHE_CHECKED(core_)->store.pin(key, true); }
bool Cache::unpin(const Key& key) { return GRAPHCACHE_CHECKED(core_)->store.pin(key, false); }
bool Cache::erase(const Key& key) { return GRAPHCACHE_CHECKED(core_)->erase(absl::MakeConstSpan(&key, 1)) != 0; }
std::size_t Cache::erase_if(const std::function<bool(const Key&)>& predicate) {
  return GRAPHCACHE_CHECKED(core_)->erase(core_->store.matching(predicate));
}
void Cache::clear() { GRAPHCACHE_CHECKED(core_)->clear(); }
Stats Cache::stats() const { return GRAPHCACHE_CHECKED(core_)->store.stats(); }
std::vector<EntryInfo> Cache::entries() const try {
  return GRAPHCACHE_CHECKED(core_)->store.entries();
} catch (const std::bad_alloc&) {
  return {};
}
absl::StatusOr<GraphInfo> Cache::graph(const Key& key) const try {
  if (const std::uint64_t entry = core_->store.latest(key); entry != 0) return graph(entry);
  const absl::Status lost = status();
  return with_key(lost.ok() ? absl::NotFoundError("no run of this key is known") : lost, key);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}
absl::StatusOr<GraphInfo> Cache::graph(std::uint64_t entry) const try {
  return GRAPHCACHE_CHECKED(core_)->graph(entry);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}
absl::Status Cache::status() const { return core_->status(); }
const Options& Cache::options() const { return core_->has_begun() ? core_->options : core_->asked; }
StreamArg Cache::default_stream() const { return core_->asked.stream; }

Cache& cache_for(int device) {
  static Mutex mutex;
  // Never destroyed, because the runtime may be unloaded first.
  static auto& caches = *new std::map<int, std::unique_ptr<Cache>>;
  MutexLock lock(mutex);
  std::unique_ptr<Cache>& cache = caches[device];
  if (cache == nullptr) {
    Options options;
    options.device = device == Options::kCurrentDevice ? kMinusOne : device;
    cache = std::make_unique<Cache>(options);
  }
  return *cache;
}

}  // namespace graphcache
