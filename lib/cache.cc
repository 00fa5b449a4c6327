// The public interface. The work is done in lib/run.
#include "graphcache/cache.h"

#include <cxxabi.h>

#include <map>
#include <memory>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "cuda/mutex.h"
#include "options.h"
#include "run/impl.h"

// With structure checks, test/structure checks the cache after such a call.
#ifndef GRAPHCACHE_CHECKED
#define GRAPHCACHE_CHECKED(impl) impl
#endif

namespace graphcache {

bool detail::hides_its_code(const std::type_info& type) {
  if (dynamic_cast<const abi::__pbase_type_info*>(&type) != nullptr) return true;
  const std::string_view name = type.name();
  return name.substr(0, 2) == "St" || name.substr(0, 3) == "NSt" || name.substr(0, 6) == "N4absl";
}

Cache::Cache(const Options& options) {
  Options complete = options;
  absl::Status invalid = check(complete);
  impl_ = std::make_unique<Impl>(complete, std::move(invalid));
  hits()->cache = this;
}
Cache::~Cache() { hits()->cache = nullptr; }
const std::shared_ptr<detail::Hits>& Cache::hits() const { return impl_->hits(); }
absl::StatusOr<Outcome> Cache::run_call(const Key& key, cudaStream_t stream, const detail::Call& call) {
  return GRAPHCACHE_CHECKED(impl_)->run(key, stream, call);
}
absl::StatusOr<Outcome> Cache::run_step(detail::Hits& hits, const Key& key, cudaStream_t stream,
                                        const detail::Call& call, detail::Remembered* remembered) {
  Cache* const cache = hits.cache.load(std::memory_order_relaxed);
  if (cache == nullptr) return absl::FailedPreconditionError("the cache of this step has been destroyed");
  cudaError_t error = cudaSuccess;
  detail::HotEntry* const entry = remembered->entry;
  if (entry != nullptr && remembered->site == call.site && hits.are_usual() && entry->lock.try_lock()) {
    const bool is_hit = entry->life == remembered->life && !entry->erased.load(std::memory_order_relaxed) &&
                        entry->is_ready_for(name_of(stream), call.values, call.values_size);
    if (is_hit) error = hits.launch(*entry);
    if (error == cudaSuccess) {
      if (entry->lock.unlock() || entry->erased.load(std::memory_order_relaxed)) cache->impl_->wake();
      if (is_hit) return Outcome::kReplayed;
    }
  }
  return GRAPHCACHE_CHECKED(cache->impl_)->run_step(key, stream, call, remembered, error);
}
absl::Status Cache::warm_call(const Key& key, cudaStream_t stream, const detail::Call& call) {
  return GRAPHCACHE_CHECKED(impl_)->warm(key, stream, call);
}
bool Cache::contains(const Key& key) const { return GRAPHCACHE_CHECKED(impl_)->contains(key); }
bool Cache::pin(const Key& key) { return GRAPHCACHE_CHECKED(impl_)->pin(key, true); }
bool Cache::unpin(const Key& key) { return GRAPHCACHE_CHECKED(impl_)->pin(key, false); }
bool Cache::erase(const Key& key) { return GRAPHCACHE_CHECKED(impl_)->erase(absl::MakeConstSpan(&key, 1)) != 0; }
std::size_t Cache::erase_if(const std::function<bool(const Key&)>& predicate) {
  return GRAPHCACHE_CHECKED(impl_)->erase_if(predicate);
}
void Cache::clear() { GRAPHCACHE_CHECKED(impl_)->clear(); }
Stats Cache::stats() const { return GRAPHCACHE_CHECKED(impl_)->stats(); }
std::vector<EntryInfo> Cache::entries() const { return GRAPHCACHE_CHECKED(impl_)->entries(); }
absl::StatusOr<GraphInfo> Cache::graph(const Key& key) const { return GRAPHCACHE_CHECKED(impl_)->graph(key); }
absl::StatusOr<GraphInfo> Cache::graph(std::uint64_t entry) const { return GRAPHCACHE_CHECKED(impl_)->graph(entry); }
absl::Status Cache::status() const { return impl_->status(); }
const Options& Cache::options() const { return impl_->options(); }
StreamArg Cache::default_stream() const { return impl_->default_stream(); }

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
