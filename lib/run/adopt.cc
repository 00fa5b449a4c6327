// Keys with a graph that the program built itself (graphcache/adopt.h).
#include <absl/cleanup/cleanup.h>

#include <memory>
#include <new>
#include <utility>

#include "cuda/errors.h"
#include "graph/adopted.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {

// Whether an entry of the key has a graph. With `only_adopted`, whether one has an adopted graph.
bool Cache::Impl::has_graph(const Key& key, bool only_adopted) const {
  for (const Entry* entry = index_.find(key); entry != nullptr; entry = Index::next_of_key(entry)) {
    if (entry->state != State::kCold && (entry->is_adopted || !only_adopted)) return true;
  }
  return false;
}

absl::Status Cache::Impl::adopt(const Key& key, cudaGraph_t graph, const detail::Call& call,
                                absl::Span<const detail::ValuePlace> places, Adoption adoption) try {
  if (absl::Status lost = status(); !lost.ok()) return with_key(lost, key);
  if (active_recording != nullptr) {
    return with_key(absl::FailedPreconditionError("adopt was called inside a run's fn"), key);
  }
  const LastErrorGuard last_error;
  const DeviceGuard device(options_.device);
  if (!device.status().ok()) return with_key(device.status(), key);
  const auto exists = [&] {
    return with_key(absl::AlreadyExistsError("the key has a graph: erase it first, or use another key"), key);
  };
  const Request request{key, cudaStreamLegacy, nullptr, call};
  Held entry(*this, claim(request));
  {
    MutexLock lock(mutex_);
    if (has_graph(key)) return exists();
    touch(entry.get());
  }
  // The adoption keeps its owner until adopt() has succeeded, so the caller releases it, without a lock held.
  Owners owner(1);
  Template made;
  const absl::Cleanup give_back = [&] {
    if (adoption.take_graph) made.graph.release();
  };
  auto content = std::make_shared<Content>();
  if (absl::Status status = graphcache::adopt(graph, adoption, call, places, &made, content.get()); !status.ok()) {
    if (is_fatal(cuda_error(status))) lose(status);
    return with_key(status, key);
  }
  entry->seen = true;
  entry->direct_left = 0;
  MutexLock lock(mutex_);
  if (has_graph(key)) return exists();  // A run has captured the key in the meantime.
  keep_template(entry.get(), std::move(content), std::move(made));
  ++adopted_;
  if (adoption.owner == nullptr) return absl::OkStatus();
  owner.front() = std::move(adoption.owner);
  entry->owner.swap(owner);
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Replaces a direct run for an adopted key, which has no `fn`: instantiates an executable for one launch. The graph
// stays with the entry.
absl::StatusOr<Outcome> Cache::Impl::run_once(Held& entry, EagerReason reason, const Request& request) {
  LastErrorGuard last_error;
  const DeviceGuard device(options_.device);
  if (!device.status().ok()) return failed(request, device.status());
  std::unique_ptr<Executable> once;
  const auto instantiate = [&]() -> CallResult {
    RelaxedCaptureMode relaxed;
    return {kInstantiate,
            Executable::instantiate(entry->graph, entry->content, options_.instantiate_flags, scratch_, &once)};
  };
  CallResult result = instantiate();
  if (result.error == cudaErrorMemoryAllocation || result.error == cudaErrorNotSupported) {
    // In the same way as buy().
    result = graveyard_.collect_all(memory_.get());
    if (result.error == cudaSuccess) result = instantiate();
  }
  if (result.error == cudaSuccess) {
    const absl::Cleanup give_back = [&] {
      entry->graph = once->take_base();
      graveyard_.add(std::move(once), {});
    };
    {
      MutexLock lock(mutex_);
      ++totals_.instantiations;
    }
    std::size_t patched = 0;
    if (!once->holds(request.call)) result = once->patch(request.call, &patched);
    hits_->counts.add_patched_nodes(patched);
    if (result.error == cudaSuccess) {
      CacheEvent event = event_of(EventKind::kLaunch, *entry.get());
      event.stream = request.given;
      Audience::Span span(*audience_, event, {Audience::Filter::Kind::kLaunches});
      if (!span.refused().ok()) return failed(request, span.refused());
      result = {"cudaGraphLaunch", once->launch(request.stream)};
      if (result.error != cudaSuccess) span.event.status = cuda_failure(result.call, result.error);
    }
  }
  last_error.settle();
  if (result.error != cudaSuccess) return failed(request, cuda_failure(result.call, result.error));
  MutexLock lock(mutex_);
  return count_eager(entry.get(), reason);
}

// Returns the owners of erased keys once nothing is in flight. The caller releases them without a lock, because they
// may run any code. The keys' own executables do not show which launches are in flight, because a sibling may have
// taken one over.
Owners Cache::Impl::take_released() {
  Owners released;
  if (active_recording != nullptr) return released;  // A later call does this.
  {
    MutexLock lock(mutex_);
    released.swap(released_);
  }
  if (released.empty() || lost_) return released;
  CallResult waited = memory_->wait();
  if (waited.error == cudaSuccess) waited = graveyard_.collect_all(memory_.get());
  if (is_fatal(waited.error)) {
    lose(cuda_failure(waited.call, waited.error));
  } else if (waited.error != cudaSuccess && waited.error != cudaErrorCudartUnloading) {
    MutexLock lock(mutex_);
    released_.splice(released_.end(), released);
  }
  return released;
}

}  // namespace graphcache
