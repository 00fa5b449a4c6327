// Keys whose graph somebody else made (graphcache/adopt.h).
#include <absl/cleanup/cleanup.h>

#include <memory>
#include <new>
#include <utility>

#include "cuda/errors.h"
#include "graph/adopted.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {

absl::Status Cache::Impl::adopt(const Key& key, cudaGraph_t graph, const detail::Call& call,
                                absl::Span<const detail::ValuePlace> places, Adoption adoption) try {
  if (absl::Status lost = status(); !lost.ok()) return with_key(lost, key);
  if (active_recording != nullptr) {
    return with_key(absl::FailedPreconditionError("adopt was called inside a run's fn"), key);
  }
  const LastErrorGuard last_error;
  const DeviceGuard device(options_.device);
  if (!device.status().ok()) return with_key(device.status(), key);
  const Request request{key, cudaStreamLegacy, nullptr, call};
  Entry* in_background = nullptr;
  Held entry(*this, claim(request, &in_background));
  const User user(*this, in_background);
  {
    MutexLock lock(mutex_);
    for (const Entry* other = index_.find(key); other != nullptr; other = Index::next_of_key(other)) {
      if (other->state == State::kCold) continue;
      return with_key(absl::AlreadyExistsError("the key has a graph: erase it first, or use another key"), key);
    }
    touch(entry.get());
  }
  Owners owner;
  owner.push_back(std::move(adoption.owner));
  Template made;
  auto content = std::make_shared<Content>();
  if (absl::Status status = graphcache::adopt(graph, adoption, call, places, &made, content.get()); !status.ok()) {
    if (is_fatal(cuda_error(status))) lose(status);
    return with_key(status, key);
  }
  entry->seen = true;
  entry->direct_left = 0;
  MutexLock lock(mutex_);
  keep_template(entry.get(), std::move(content), std::move(made));
  if (owner.front() != nullptr) entry->owner.swap(owner);
  ++totals_.captures;
  ++adopted_;
  return absl::OkStatus();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

bool Cache::Impl::has_adopted(const Key& key) const {
  MutexLock lock(mutex_);
  for (const Entry* entry = index_.find(key); entry != nullptr; entry = Index::next_of_key(entry)) {
    if (entry->is_adopted) return true;
  }
  return false;
}

// In the place of a direct call of `fn`, which an adopted key has not: an executable for one launch. The graph stays
// the entry's.
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
    // As buy() does it.
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
    if (result.error == cudaSuccess && options_.hooks.before_launch) {
      if (absl::Status why = options_.hooks.before_launch(request.key, request.given); !why.ok()) {
        return failed(request, std::move(why));
      }
    }
    if (result.error == cudaSuccess) result = {"cudaGraphLaunch", once->launch(request.stream)};
  }
  last_error.settle();
  if (result.error != cudaSuccess) return failed(request, cuda_failure(result.call, result.error));
  MutexLock lock(mutex_);
  return count_eager(entry.get(), reason);
}

// Lets go what erased keys were given to keep, once nothing is in flight any more. Not under a lock: owners may do what
// they like.
void Cache::Impl::release_owners() {
  if (active_recording != nullptr) return;  // A later call does.
  Owners released;
  {
    MutexLock lock(mutex_);
    released.swap(released_);
  }
  if (released.empty()) return;
  const CallResult waited = graveyard_.collect_all(memory_.get());
  if (is_fatal(waited.error)) lose(cuda_failure(waited.call, waited.error));
}

}  // namespace graphcache
