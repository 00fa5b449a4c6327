// Gets an executable for an entry that has a template, by carrying out the policy's plan.
#include <absl/cleanup/cleanup.h>
#include <absl/container/inlined_vector.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "cuda/errors.h"
#include "graph/node_names.h"
#include "run/impl.h"

namespace graphcache {

namespace {

const char* sentence(UpdateRefusal refusal) {
  switch (refusal) {
    case UpdateRefusal::kTopology:
      return "nodes or edges differ";
    case UpdateRefusal::kNodeType:
      return "the type of the node differs";
    case UpdateRefusal::kFunction:
      return "the kernel cannot take the other one's place";
    case UpdateRefusal::kParameters:
      return "a parameter differs that an update cannot change";
    case UpdateRefusal::kAttributes:
      return "a launch attribute differs that an update cannot change";
    case UpdateRefusal::kNotSupported:
      return "the runtime does not support this update";
    case UpdateRefusal::kOther:
      break;
  }
  return "the runtime gave no reason";
}

// "node 12, kernel add(float*): the type of the node differs".
std::string text_of_refusal(const Content& content, const BroughtOver& brought) {
  const char* const why = sentence(*brought.refusal);
  if (!brought.refused_node || *brought.refused_node >= content.nodes.size()) return why;
  return absl::StrCat("node ", *brought.refused_node, ", ", kind_of(content.nodes[*brought.refused_node]), ": ", why);
}

}  // namespace

// The entries that the policy considers for eviction or borrowing. Each is locked when the policy queries whether it is
// idle, and stays locked until the end of the scope, so that no hit begins to use it. Used within the scope of the
// cache's lock.
class Cache::Impl::Locked {
 public:
  // `held` is an entry that this thread has locked already.
  Locked(Impl& impl, const Entry* held) : impl_(impl), held_(held) {}
  ~Locked() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (Entry* entry : entries_) impl_.unlock_under_mutex(entry);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  bool try_lock(KeyId id) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Entry* const entry = impl_.index_.of(id);
    if (entry == held_ || std::find(entries_.begin(), entries_.end(), entry) != entries_.end()) return true;
    entries_.reserve(entries_.size() + 1);
    if (!Index::try_lock_idle(entry)) return false;
    entries_.push_back(entry);
    return true;
  }
  // Passes the locks of evicted entries on, if this has locked them.
  void give(absl::Span<const KeyId> evicted, Losers* losers) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const KeyId id : evicted) {
      const auto found = std::find(entries_.begin(), entries_.end(), impl_.index_.of(id));
      if (found == entries_.end()) continue;
      losers->locked.push_back(*found);
      entries_.erase(found);
    }
  }
  // Passes the entry's lock to the caller.
  Entry* take(KeyId id) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Entry* const entry = impl_.index_.of(id);
    entries_.erase(std::find(entries_.begin(), entries_.end(), entry));
    return entry;
  }

 private:
  Impl& impl_;
  const Entry* const held_;
  absl::InlinedVector<Entry*, 8> entries_;
};

Cache::Impl::Obtained Cache::Impl::obtain(Held& entry, const Request& request) {
  for (;;) {  // Repeats after each refusal.
    Held lender(*this, nullptr);
    Offer offer;
    Plan plan;
    if (!decide(entry, lender, offer, &plan)) {
      const bool is_offered = lender.get() != nullptr && find_offer(entry, lender, &offer);
      if (!is_offered || !decide(entry, lender, offer, &plan)) continue;
    }
    switch (plan.action) {
      case Plan::Action::kDirect:
        return {};
      case Plan::Action::kOwn:
      case Plan::Action::kTable:
        lender.release();
        return buy(entry, plan, /*may_evict=*/true, request.stream);
      case Plan::Action::kBorrow:
        if (std::optional<Obtained> obtained = take_over(entry, lender, plan, request)) return *obtained;
    }
  }
}

// An entry whose executable could be borrowed, locked, or null.
Entry* Cache::Impl::lock_candidate(const Entry* entry) {
  const auto is_idle = [this](KeyId key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return this->is_idle(key); };
  const KeyId id = policy_.candidate(entry->id, {is_idle, last_use_of()});
  if (id == kNoKey) return nullptr;
  Entry* const lender = index_.of(id);
  return lender->lock.try_lock() ? lender : nullptr;
}

// Fills in what the entry could borrow. Returns false if the table cannot hold the entry's parameter set.
bool Cache::Impl::find_offer(Held& entry, Held& lender, Offer* offer) {
  offer->lender = lender->id;
  Executable& executable = *lender->executable;
  if (ParameterTable* const table = executable.table(); table != nullptr) {
    if (!table->can_hold(*entry->content)) {
      refuse(*entry.get(), Refused::kSets);
      return false;
    }
    offer->has_set = table->has(*entry->content);
    offer->set_bytes = table->growth_for(*entry->content);
  } else if (executable.can_switch()) {
    offer->update = entry->differences.between(executable.content(), *entry->content).cost;
  }
  return true;
}

// Without a lender it first looks for one, and if there is one returns false with it. Else the plan counts from here
// on, and what it evicts is gone. If it borrows from another lender, that one is locked instead. Returns false without
// a lender if one has become available in the meantime.
bool Cache::Impl::decide(Held& entry, Held& lender, const Offer& offer, Plan* made) {
  Plan& plan = *made;
  Entry* other = nullptr;
  Losers losers;
  {
    MutexLock lock(mutex_);
    if (lender.get() == nullptr) {
      lender.reset(lock_candidate(entry.get()));
      if (lender.get() != nullptr) return false;
    }
    sweep();
    Locked locked(*this, lender.get());
    const auto lock_idle = [&](KeyId id) { return locked.try_lock(id); };
    plan = policy_.plan(entry->id, offer, {lock_idle, last_use_of()});
    // Runs end without the cache's lock, so a lender may have become idle.
    const bool somebody_loses = !plan.evict.empty() || plan.action == Plan::Action::kBorrow;
    if (lender.get() == nullptr && somebody_loses &&
        policy_.candidate(entry->id, {lock_idle, last_use_of()}) != kNoKey) {
      return false;
    }
    losers.reserve(plan.evict.size() + 1);
    begin(entry.get(), plan, &losers);
    locked.give(plan.evict, &losers);
    if (plan.action == Plan::Action::kBorrow && plan.lender != offer.lender) other = locked.take(plan.lender);
  }
  report(losers);
  if (other != nullptr) lender.reset(other);
  return true;
}

// `losers` must have room.
void Cache::Impl::begin(Entry* entry, const Plan& plan, Losers* losers) {
  policy_.done(entry->id, plan);
  for (const KeyId id : plan.evict) evict(index_.of(id), Loss::kEvicted, losers);
  if (plan.action == Plan::Action::kBorrow) {
    losers->what.emplace_back(index_.of(plan.lender)->content, EventKind::kLend);
    index_.set_state(index_.of(plan.lender), State::kRecorded);
    index_.of(plan.lender)->executable_lost = Loss::kLent;
  }
  if (plan.action == Plan::Action::kDirect) return;
  entry->rule = plan.rule;
  index_.set_state(entry, State::kLive);
}

void Cache::Impl::report(const Losers& losers) {
  for (const auto& [content, kind] : losers.what) {
    audience_->mark({.kind = kind,
                     .key = content->key,
                     .entry = content->entry,
                     .graph = content->id,
                     .loss = kind == EventKind::kEvict ? Loss::kEvicted : Loss::kLent});
  }
  for (Entry* const entry : losers.locked) unlock(entry);
}

// Brings the lender's executable over to the entry. Returns nothing if that is impossible, after telling the policy
// why.
std::optional<Cache::Impl::Obtained> Cache::Impl::take_over(Held& entry, Held& lender, const Plan& plan,
                                                            const Request& request) {
  LastErrorGuard last_error;
  const auto begin = std::chrono::steady_clock::now();
  const absl::Cleanup timed = [&] { Totals::add(totals_.update_time, begin); };
  Audience::Span span(*audience_, event_of(EventKind::kUpdate, *entry.get()));
  span.event.loss = entry->executable_lost;
  span.event.status = absl::CancelledError("");  // Until it is done.
  lender->exec = nullptr;
  const bool by_set = lender->executable->table() != nullptr;
  // The state of the executable is unknown, or it cannot be used any more.
  absl::Cleanup drop = [&]() {
    give_up(*lender.get(), Loss::kFailed);
    give_up(*entry.get(), Loss::kFailed);
  };
  const auto undo = [&]() {
    std::move(drop).Cancel();
    MutexLock lock(mutex_);
    policy_.undone(entry->id, plan);
    index_.set_state(entry.get(), State::kRecorded);
    index_.set_state(lender.get(), State::kLive);
  };
  BroughtOver brought;
  if (by_set) {
    // No other set can be written to a table whose first launch failed, so it is made anew.
    if (!lender->executable->device_may_write()) return std::nullopt;
    if (plan.adds_set) brought.result = add_set(entry, lender, request);
    if (brought.result.error != cudaSuccess && !is_fatal(brought.result.error)) {
      refuse(*entry.get(), Refused::kDeviceUpdates);
      return std::nullopt;
    }
    if (brought.result.error == cudaSuccess) brought = lender->executable->switch_set(entry->content, request.call);
  } else {
    // The lender's graph stays the executable's base, and the lender gets a clone, because two threads may not use one
    // graph.
    if (lender->graph.empty()) brought.result = lender->executable->base().clone(&lender->graph);
    if (brought.result.error != cudaSuccess) {
      undo();
      if (is_fatal(brought.result.error)) return Obtained{.result = brought.result};
      refuse(*entry.get(), Refused::kSiblings);
      return std::nullopt;
    }
    brought = lender->executable->bring_over(lender->graph, entry->graph, entry->content,
                                             entry->differences.between(lender->executable->content(), *entry->content),
                                             request.call);
  }
  hits_->counts.add_patched_nodes(brought.patched_nodes);
  const bool done = brought.result.error == cudaSuccess;
  if (done) {
    std::move(drop).Cancel();
    entry->executable = lender->take_executable();
    span.event.status = absl::OkStatus();
  } else if (brought.whole) {
    undo();
  } else {
    std::move(drop).Invoke();
  }
  std::string refusal;
  if (!done && brought.refusal) refusal = text_of_refusal(*entry->content, brought);
  totals_.updates += static_cast<std::uint64_t>(brought.updates);
  totals_.set_switches += done && by_set ? 1 : 0;
  if (done) return Obtained{.of_sibling = true, .result = {}};
  if (brought.refusal) {
    ++totals_.refused_updates[static_cast<std::size_t>(*brought.refusal)];
    refuse(*entry.get(), Refused::kSiblings, refusal);
    log(request.key, absl::StrCat("the runtime refused an update between two graphs that look alike: the key shares no "
                                  "executables; ",
                                  refusal));
    if (brought.whole) return std::nullopt;
  }
  span.event.status = cuda_failure(brought.result.call, brought.result.error);
  return Obtained{.result = brought.result, .why = EagerReason::kRefused};
}

// Adds the entry's parameter set to the lender's table.
CallResult Cache::Impl::add_set(Held& entry, Held& lender, const Request& request) {
  RelaxedCaptureMode relaxed;
  const CallResult added = lender->executable->table()->add(*entry->content, request.stream);
  return added.error == cudaSuccess ? lender->executable->mark_ready(request.stream) : added;
}

// Instantiates the executable that the policy has promised to the entry. If memory runs out, evicts one more
// executable, returns the memory that the device keeps for graphs, and tries once more. Copies are enqueued on the
// stream.
Cache::Impl::Obtained Cache::Impl::buy(Held& entry, Plan& plan, bool may_evict, cudaStream_t stream) {
  const auto begin = std::chrono::steady_clock::now();
  const absl::Cleanup timed = [&] { Totals::add(totals_.instantiate_time, begin); };
  Audience::Span span(*audience_, event_of(EventKind::kInstantiate, *entry.get()));
  span.event.loss = entry->executable_lost;
  span.event.status = absl::CancelledError("");  // Until it is done.
  LastErrorGuard last_error;
  auto threw = evicting(entry);
  CallResult result = instantiate(*entry.get(), plan, stream);
  if (result.error == cudaErrorMemoryAllocation || result.error == cudaErrorNotSupported) {
    Losers losers;
    losers.reserve(1);
    if (result.error == cudaErrorMemoryAllocation && may_evict) {
      MutexLock lock(mutex_);
      Locked locked(*this, nullptr);
      const auto lock_idle = [&](KeyId id) { return locked.try_lock(id); };
      const KeyId victim = policy_.victim(entry->id, {lock_idle, last_use_of()});
      if (victim != kNoKey) {
        evict(index_.of(victim), Loss::kEvicted, &losers);
        locked.give({victim}, &losers);
      }
    }
    report(losers);
    // A graph that allocates memory can have only one executable, and its last one may still wait for destruction.
    result = device_->graveyard.collect_all(device_->memory.get());
    if (result.error == cudaSuccess) {
      cudaDeviceGraphMemTrim(options_.device);
      result = instantiate(*entry.get(), plan, stream);
    }
  }
  std::move(threw).Cancel();
  if (result.error == cudaSuccess) {
    span.event.status = absl::OkStatus();
    ++totals_.instantiations;
    return {};
  }
  span.event.status = cuda_failure(result.call, result.error);
  const bool is_of_memory = result.error == cudaErrorMemoryAllocation;
  return {.result = result,
          .why = is_of_memory ? EagerReason::kOutOfMemory : EagerReason::kRefused,
          .is_unfit = !is_of_memory};
}

// Instantiates a plain executable, and plans one, if the device cannot update this one.
CallResult Cache::Impl::instantiate(Entry& entry, Plan& plan, cudaStream_t stream) {
  RelaxedCaptureMode relaxed;
  const bool with_table = plan.action == Plan::Action::kTable;
  if (with_table || plan.writes_slots) {
    const CallResult result =
        Executable::instantiate_updated(entry.graph, entry.content, with_table, options_.instantiate_flags,
                                        device_->scratch, device_->updater, stream, &entry.executable);
    if (result.error == cudaSuccess || is_fatal(result.error)) return result;
    plan.action = Plan::Action::kOwn;
    plan.writes_slots = false;
    refuse(entry, Refused::kDeviceUpdates);
  }
  return {"cudaGraphInstantiate", Executable::instantiate(entry.graph, entry.content, options_.instantiate_flags,
                                                          device_->scratch, &entry.executable)};
}

// Without device updates, the class gets no table, or the key no updater node for its slots.
void Cache::Impl::refuse(Entry& entry, Refused what, const std::string& why) {
  MutexLock lock(mutex_);
  if (what == Refused::kDeviceUpdates) {
    ++totals_.refused_device_updates;
    policy_.refuse_device_updates(entry.id);
  } else if (what == Refused::kSets) {
    policy_.refuse_sets(entry.id);
  } else {
    policy_.refuse_siblings(entry.id);
  }
  if (!why.empty()) entry.note().refusal = why;
}

void Cache::Impl::give_up(Entry& entry, Loss why, bool and_template, absl::Status error) {
  MutexLock lock(mutex_);
  if (!error.ok()) entry.error = std::move(error);
  if (entry.state == State::kLive || entry.executable != nullptr) evict(&entry, why);
  if (and_template && entry.state != State::kCold) drop(&entry, why);
}

// Nothing is evicted for this, because the capture may still fail.
bool Cache::Impl::has_room(const Entry& entry) {
  sweep();
  const auto is_idle = [this](KeyId key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return this->is_idle(key); };
  return policy_.has_room(entry.id, {is_idle, last_use_of()});
}

// The entry loses its executable or the promise of one, and keeps its template. With `losers` it is a victim, which is
// idle or locked by this thread: another key needs the room.
void Cache::Impl::evict(Entry* entry, Loss why, Losers* losers) {
  if (losers != nullptr) {
    ++totals_.evictions;
    losers->what.emplace_back(entry->content, EventKind::kEvict);
    entry->others = policy_.executables();
  }
  entry->executable_lost = why;
  if (entry->executable != nullptr && entry->graph.empty()) entry->graph = entry->executable->take_base();
  device_->graveyard.add(entry->take_executable(), {}, {}, epitaph_of(*entry, why, /*drops_graph=*/false));
  policy_.lost(entry->id);
  index_.set_state(entry, State::kRecorded);
}

// The entry, which no longer has an executable, loses its template.
void Cache::Impl::drop(Entry* entry, Loss why) {
  entry->template_lost = why;
  ++totals_.forgotten;
  device_->graveyard.add(nullptr, std::move(entry->graph), entry->stream,
                         epitaph_of(*entry, why, /*drops_graph=*/true));
  device_->graveyard.drop(std::move(entry->kept));
  entry->content.reset();
  entry->differences.clear();
  policy_.forgotten(entry->id);
  if (entry->signature != nullptr) signatures_.remove(std::exchange(entry->signature, nullptr));
  index_.set_state(entry, State::kCold);
}

// Cleans up after a run: surplus templates and evicted executables.
void Cache::Impl::tidy_up(cudaStream_t stream) {
  if (lost_) return;
  const std::uint64_t evictions = totals_.evictions;
  std::uint64_t storm = next_storm_;
  if (evictions >= storm && next_storm_.compare_exchange_strong(storm, 2 * evictions)) log_evictions(evictions);
  if (has_surplus_) {
    MutexLock lock(mutex_);
    while (index_.templates() > static_cast<std::size_t>(options_.max_templates)) {
      Entry* const oldest = index_.oldest_recorded();
      if (oldest == nullptr || !Index::try_lock_idle(oldest)) break;  // A hit may have just begun.
      drop(oldest, Loss::kTemplates);
      unlock_under_mutex(oldest);
    }
    has_surplus_ = index_.templates() > static_cast<std::size_t>(options_.max_templates);
  }
  device_->graveyard.collect(stream);
}

// Logs evictions if there are many for the number of runs.
void Cache::Impl::log_evictions(std::uint64_t evictions) const noexcept try {
  constexpr std::uint64_t kRunsEach = 8;
  const Stats now = stats();
  const std::uint64_t runs = std::accumulate(now.outcomes.begin(), now.outcomes.end(), now.failed);
  if (evictions * kRunsEach < runs) return;
  log(absl::StrCat("graphcache: ", evictions, " executables were evicted in ", runs,
                   " runs: Options::max_executables or Options::max_device_bytes is too small for these keys"));
} catch (const std::bad_alloc&) {
}

}  // namespace graphcache
