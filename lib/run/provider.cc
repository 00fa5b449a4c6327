// The way of an entry that has a template to an executable, and the budgets that it meets there.
#include <absl/cleanup/cleanup.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "run/impl.h"

namespace graphcache {

// A sibling's executable for rent, or one that the entry keeps: by rent or buy (costs.h). One that is bought is the
// least recently used sibling's, if that would have had to leave for it anyhow. One with a table stays the family's.
Cache::Impl::Obtained Cache::Impl::obtain(Held& entry, const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  bool no_room_for_table = false;
  for (;;) {  // Once more after each refusal, in another family or without the table.
    Obtained obtained;
    bool with_table = false;
    if (Held lender(*this, lock_lender(entry.get())); lender.get() != nullptr) {
      const Cost rent = rent_of(entry, lender);
      with_table = !no_room_for_table && wants_table(entry, lender->executable.get(), rent);
      if (!with_table && lender->executable->can_switch() && rents(*entry.get(), rent)) {
        if (take_over(entry, lender, request, /*for_rent=*/true, &obtained)) return obtained;
        continue;
      }
    } else {
      with_table = !no_room_for_table && (wants_table(entry, nullptr, 0) || wants_another_table(*entry.get()));
    }
    Entry* sibling = nullptr;
    if (!reserve(entry.get(), with_table, &sibling)) {
      if (with_table) {
        no_room_for_table = true;
        const std::size_t table_bytes = UpdaterNode::estimated_device_bytes(*entry->content);
        MutexLock lock(mutex_);
        if (entry->device_bytes + table_bytes > options_.max_device_bytes) refuse_table(entry->family);
        continue;
      }
      obtained.why = EagerReason::kBudget;
      return obtained;
    }
    if (sibling == nullptr) {
      buy(entry, with_table, /*may_evict=*/true, &obtained);
      return obtained;
    }
    Held lender(*this, sibling);
    const bool for_rent = lender->executable->table() != nullptr;
    if (take_over(entry, lender, request, for_rent, &obtained)) return obtained;
  }
}

Cost Cache::Impl::rent_of(Held& entry, Held& lender) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (lender->executable->table() != nullptr) return cost_of_row(entry->content->node_count);
  return entry->differences.between(lender->executable->content(), *entry->content).cost;
}

// Where the budget is full, an executable to keep is another key's loss: so the entry gets one only if nobody has used
// the victim since the entry began to pay rent. This keeps keys that come now and then from driving out those in use.
bool Cache::Impl::rents(const Entry& entry, Cost rent) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(mutex_);
  if (entry.pinned) return false;
  if (shares_one()) return true;
  if (!should_buy(entry.rent, rent, costs::buy(entry.content->node_count))) return true;
  if (fits(entry.device_bytes)) return false;
  const Entry* const victim = index_.victim();
  return victim != nullptr && victim->last_use >= entry.rents_from;
}

// Brings the lender's executable over to the entry. False: that cannot be, the lender keeps what it has, and the entry
// is of another family now.
bool Cache::Impl::take_over(Held& entry, Held& lender, const Request& request, bool for_rent,
                            Obtained* obtained) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  LastErrorGuard last_error;
  const bool by_row = lender->executable->table() != nullptr;
  if (by_row && !make_row(entry, lender, request, obtained)) return obtained->result.error != cudaSuccess;
  const Cost rent = rent_of(entry, lender);
  // The lender's graph stays behind as the executable's base. It gets another, since no two threads may use one graph.
  if (lender->graph.empty()) {
    obtained->result = lender->executable->base().clone(&lender->graph);
    if (is_fatal(obtained->result.error)) return true;
    if (std::exchange(obtained->result, {}).error != cudaSuccess) {
      MutexLock lock(mutex_);
      index_.split(entry.get());
      return false;
    }
  }
  bool was_spare = false;
  if (!hand_over(lender.get(), entry.get(), for_rent, &was_spare)) return false;

  absl::Cleanup threw = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {  // What the executable holds, nobody knows.
    MutexLock lock(mutex_);
    index_.set_state(entry.get(), State::kRecorded);
    graveyard_.add(std::move(lender->executable), {});
  };
  const BroughtOver brought =
      by_row ? lender->executable->switch_row(entry->content, request.call)
             : lender->executable->bring_over(
                   lender->graph, entry->graph, entry->content,
                   entry->differences.between(lender->executable->content(), *entry->content), request.call);
  std::move(threw).Cancel();
  run_counts_.add_patched_nodes(brought.patched_nodes);
  const bool done = brought.result.error == cudaSuccess;
  if (!done && !brought.whole) graveyard_.add(std::move(lender->executable), {});
  {
    MutexLock lock(mutex_);
    totals_.updates += brought.updates;
    totals_.row_switches += done && by_row ? 1 : 0;
    if (done && for_rent && entry->rent == 0) entry->rents_from = entry->last_use;
    if (!done) index_.set_state(entry.get(), State::kRecorded);
    if (!done && brought.whole) {
      index_.set_state(lender.get(), State::kLive);
      if (was_spare && lender->family != nullptr && !lender->pinned) lender->family->spare_of = lender.get();
    }
    if (brought.refusal) {
      ++totals_.refused_updates[static_cast<std::size_t>(*brought.refusal)];
      index_.split(entry.get());
    }
  }
  if (done) {
    entry->executable = std::move(lender->executable);
    entry->rent = for_rent ? entry->rent + rent : 0;
    obtained->of_sibling = true;
    return true;
  }
  if (brought.refusal && brought.whole) return false;
  obtained->result = brought.result;
  obtained->why = EagerReason::kRefused;
  return true;
}

// The executable counts as the entry's from now on. False if the lender has been pinned meanwhile.
bool Cache::Impl::hand_over(Entry* lender, Entry* entry, bool for_rent, bool* was_spare) {
  MutexLock lock(mutex_);
  if (lender->pinned) return false;
  Family* const family = entry->family;
  *was_spare = lender->family != nullptr && lender->family->spare_of == lender;
  const bool was_familys = *was_spare && lender->family == family;
  index_.set_table_bytes(entry, lender->table_bytes);
  const bool has_updater_node = lender->has_updater_node;
  index_.set_state(lender, State::kRecorded);
  index_.set_state(entry, State::kLive);
  index_.set_updater_node(entry, has_updater_node);
  if (for_rent && family != nullptr && !entry->pinned && (was_familys || family->spare_of == nullptr)) {
    family->spare_of = entry;
  }
  return true;
}

// A new executable for an entry that was reserved one. Out of memory: one more executable leaves, what the device keeps
// for graphs is given back, and it is tried once more.
void Cache::Impl::buy(Held& entry, bool with_table, bool may_evict, Obtained* obtained) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const auto begin = std::chrono::steady_clock::now();
  LastErrorGuard last_error;
  auto threw = demoting(entry);
  CallResult result = instantiate(*entry.get(), with_table);
  if (result.error == cudaErrorMemoryAllocation || result.error == cudaErrorNotSupported) {
    if (result.error == cudaErrorMemoryAllocation && may_evict) {
      MutexLock lock(mutex_);
      if (Entry* victim = index_.lock_victim()) {
        evict(victim);
        (void)victim->lock.unlock();
      }
    }
    // A graph that allocates can have one executable alone, and its last may still wait.
    result = graveyard_.collect_all(memory_.get());
    if (result.error == cudaSuccess) {
      cudaDeviceGraphMemTrim(options_.device);
      result = instantiate(*entry.get(), with_table);
    }
  }
  std::move(threw).Cancel();
  if (result.error == cudaSuccess) {
    with_table = entry->executable->table() != nullptr;
    entry->rent = 0;
    MutexLock lock(mutex_);
    totals_.instantiate_time += std::chrono::steady_clock::now() - begin;
    ++totals_.instantiations;
    index_.set_updater_node(entry.get(), entry->executable->has_updater_node());
    Family* const family = entry->family;
    if (!with_table) index_.set_table_bytes(entry.get(), 0);
    if (family != nullptr && (with_table || family->spare_of == nullptr) && !entry->pinned) {
      family->spare_of = entry.get();
    }
    if (family != nullptr && with_table) family->classes.at(entry->row_class).rent = 0;
    return;
  }
  obtained->result = result;
  obtained->why = result.error == cudaErrorMemoryAllocation ? EagerReason::kOutOfMemory : EagerReason::kRefused;
}

CallResult Cache::Impl::instantiate(Entry& entry, bool with_table) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  RelaxedCaptureMode relaxed;
  if (with_table || (!entry.refuses_updater_node && updates_slots(*entry.content) && may_write_slots())) {
    const CallResult result =
        Executable::instantiate_updated(entry.graph, entry.content, with_table, options_.instantiate_flags, scratch_,
                                        updater_, entry.stream.handle, &entry.executable);
    if (result.error == cudaSuccess || is_fatal(result.error)) return result;
    MutexLock lock(mutex_);
    refuse_table(with_table ? entry.family : nullptr);
  }
  return {kInstantiate,
          Executable::instantiate(entry.graph, entry.content, options_.instantiate_flags, scratch_, &entry.executable)};
}

// Where a family has lost its spare one, a new one is bought while there is room, so that no key is deprived of what it
// has bought. Where the spare one is in use or gone, another with a table is as good.
Entry* Cache::Impl::lock_lender(const Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(mutex_);
  const Family* const family = entry->family;
  if (family == nullptr || family->executables == 0) return nullptr;
  const bool has_spare = family->spare_of != nullptr;
  if (has_spare) {
    if (Entry* const lender = index_.lock_lender(family)) return lender;
  }
  if (Entry* const lender = index_.lock_table(family, entry->row_class)) return lender;
  const bool may_buy = shares() && !shares_one() && fits(entry->device_bytes);
  return has_spare || may_buy ? nullptr : index_.lock_lender(family);
}

// Whether an executable could be had now, so that no capture is made in vain. Nothing leaves for a capture that may yet
// fail.
bool Cache::Impl::has_room(const Entry& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(mutex_);
  if (entry.device_bytes > options_.max_device_bytes) return false;  // As its last capture told.
  if (fits(entry.device_bytes)) return true;
  Entry* const victim = index_.lock_oldest(State::kLive);
  if (victim != nullptr) (void)victim->lock.unlock();
  return victim != nullptr;
}

// Whether an executable of so many bytes fits into the budgets beside the others, but for some of these.
bool Cache::Impl::fits(std::size_t bytes, std::size_t but, std::size_t but_bytes) const {
  return bytes <= options_.max_device_bytes &&
         index_.live() - but < static_cast<std::size_t>(options_.max_executables) &&
         index_.live_bytes() - but_bytes <= options_.max_device_bytes - bytes;
}

// Whether the entry may have the victim's executable instead of a new one: also from a family of another stream, if it
// is plain and no update between graphs like theirs has been refused.
bool Cache::Impl::may_take(const Entry& entry, const Entry& victim, bool for_table) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (entry.family == nullptr || victim.family == nullptr) return false;
  const bool has_table = victim.table_bytes != 0;
  if (entry.family != victim.family) {
    return !for_table && !has_table && victim.executable->can_switch() && victim.split_from == 0 &&
           entry.split_from == 0 && victim.family->signature == entry.family->signature;
  }
  if (has_table) return victim.row_class == entry.row_class && !entry.pinned;
  return !for_table && victim.executable->can_switch();
}

// Makes the entry count as one that has an executable; false if no room can be made for it, and then nothing leaves.
// Evicts before anything is instantiated. If a sibling would have to leave, its executable is all that is needed:
// nothing is done, and the sibling is returned, locked.
bool Cache::Impl::reserve(Entry* entry, bool for_table, Entry** sibling) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const std::size_t table_bytes = for_table ? UpdaterNode::estimated_device_bytes(*entry->content) : 0;
  {
    MutexLock lock(mutex_);
    sweep();
    std::vector<Entry*> victims;
    std::size_t bytes = 0;
    const absl::Cleanup unlock_all = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      for (Entry* victim : victims) (void)victim->lock.unlock();  // Idle, so awaited by nobody.
    };
    while (!fits(entry->device_bytes + table_bytes, victims.size(), bytes)) {
      Entry* const victim = index_.lock_victim();
      const bool is_sibling = victim != nullptr && may_take(*entry, *victim, for_table);
      if (victim == nullptr || is_sibling) {
        *sibling = victim;
        return is_sibling;
      }
      absl::Cleanup threw = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { (void)victim->lock.unlock(); };
      victims.push_back(victim);
      std::move(threw).Cancel();
      bytes += victim->device_bytes + victim->table_bytes;
    }
    for (Entry* victim : victims) evict(victim);
    index_.set_table_bytes(entry, table_bytes);
    index_.set_state(entry, State::kLive);
  }
  return true;
}

// The executable of a victim, whose lock is held, leaves; the entry stays, with its template.
void Cache::Impl::evict(Entry* victim) {
  ++totals_.evictions;
  demote(victim);
}

// The entry loses its executable, or the promise of one. Memory of on_device() goes with the executable, and the
// template with it: launches of another executable would write there beside those in flight.
void Cache::Impl::demote(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (entry->executable != nullptr && entry->graph.empty()) entry->graph = entry->executable->take_base();
  graveyard_.add(std::move(entry->executable), {});
  if (entry->content != nullptr && !entry->content->device_values.memory.empty()) {
    forget_template(entry);
  } else {
    index_.set_state(entry, State::kRecorded);
  }
}

// The entry, which has no executable any more, loses its template.
void Cache::Impl::forget_template(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  ++totals_.forgotten;
  graveyard_.add(nullptr, std::move(entry->graph), entry->stream);
  entry->content.reset();
  entry->differences.clear();
  entry->rent = 0;
  index_.leave(entry);
  index_.set_state(entry, State::kCold);
}

// What a run leaves behind: templates beyond the budget, executables that left.
void Cache::Impl::tidy_up(cudaStream_t stream) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (lost_) return;
  {
    MutexLock lock(mutex_);
    while (index_.templates() > static_cast<std::size_t>(options_.max_templates)) {
      Entry* const oldest = index_.lock_oldest(State::kRecorded);
      if (oldest == nullptr) break;
      forget_template(oldest);
      (void)oldest->lock.unlock();
    }
  }
  graveyard_.collect(stream);
}

}  // namespace graphcache
