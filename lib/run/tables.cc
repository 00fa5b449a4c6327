// Executables that the device updates: when a key, or a whole family, is to have one.
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <utility>

#include "cuda/errors.h"
#include "run/impl.h"

namespace graphcache {

// Whether the slots are many enough for an updater node: per node the host would pay more than the updater node takes
// of the device's time.
bool Cache::Impl::updates_slots(const Content& content) const {
  const std::size_t nodes = UpdaterNode::writable_nodes(content.slots);
  const detail::Patching patching = options_.mechanisms.patching;
  if (patching == detail::Patching::kDeviceUpdated) return nodes != 0;
  if (patching == detail::Patching::kPerNode || options_.prefer == Prefer::kDeviceTime) return false;
  const Cost by_host = nodes * costs::kPatch[static_cast<std::size_t>(Change::kArguments)];
  return by_host > costs::kPatchUpdaterNode + costs::kUpdaterNode + nodes * costs::kCell;
}

// In no more than half of the budget: to destroy such an executable is dear where streams are busy (Index::victim).
bool Cache::Impl::has_room_for_updater_node() const {
  return index_.updater_nodes() < std::max<std::size_t>(options_.max_executables / 2, 1);
}

bool Cache::Impl::may_write_slots() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kLeastBudget = 8;  // A smaller one is for plain executables.
  if (options_.mechanisms.patching != detail::Patching::kAuto) return true;
  MutexLock lock(mutex_);
  return options_.max_executables >= kLeastBudget && has_room_for_updater_node();
}

Cost Cache::Impl::cost_of_row(std::size_t nodes) const {
  return options_.prefer == Prefer::kMemory ? 0 : costs::switch_row(nodes);
}

// Whether an executable for the entry is to have a table: by rent or buy, once more. The rent is what the members of
// its class pay more than a switch to a row would cost them; of one that can have no executable but its own, the price
// of that. `lender` is a sibling's executable that the entry could have instead at the cost `by_lender`, or null.
bool Cache::Impl::wants_table(const Held& entry, const Executable* lender,
                              Cost by_lender) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!shares() || options_.mechanisms.sharing == detail::Sharing::kAlways) return false;
  if (lender != nullptr && lender->table() != nullptr) return false;
  const Content& content = *entry->content;
  MutexLock lock(mutex_);
  Family* const family = entry->family;
  if (family == nullptr || family->refuses_table || entry->pinned) return false;
  if (options_.mechanisms.sharing == detail::Sharing::kTable) return ParameterTable::is_of_use(content);
  Family::Class& of_class = family->classes.at(entry->row_class);
  if (lender == nullptr || of_class.members < 2 || options_.prefer == Prefer::kDeviceTime) return false;
  if (options_.prefer == Prefer::kMemory) return true;
  const Cost paid = lender->can_switch() ? by_lender : costs::buy(content.node_count);
  const Cost by_row = cost_of_row(content.node_count);
  of_class.rent += paid > by_row ? paid - by_row : 0;
  if (of_class.rent <= costs::buy_table(content.node_count) || !has_room_for_updater_node()) return false;
  // Where the budget is full, its class must have something to give up for it.
  const auto budget = static_cast<std::size_t>(options_.max_executables);
  return fits(entry->device_bytes) || of_class.executables >= std::min<std::size_t>(budget, 2);
}

// Whether other threads' runs use all tables of the family, which one more would let all members go on by.
bool Cache::Impl::wants_another_table(const Entry& entry) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MutexLock lock(mutex_);
  const Family* const family = entry.family;
  if (family == nullptr || family->refuses_table || entry.pinned) return false;
  const Entry* const spare_of = family->spare_of;
  return spare_of != nullptr && spare_of->table_bytes != 0 && spare_of->row_class == entry.row_class;
}

// Gives the entry a row in the lender's table. False: it has none, since the entry is of another family now, or the
// table is gone, or, if the result says so, since everything is lost.
bool Cache::Impl::make_row(Held& entry, Held& lender, const Request& request,
                           Obtained* obtained) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // Rows of what members have been captured as before, or of members that are gone, are never given back: a table that
  // holds too many, or has no room to grow, is made anew when it is wanted again.
  constexpr std::size_t kSpareRows = 64;
  const Content& content = *entry->content;
  ParameterTable& table = *lender->executable->table();
  if (!table.can_hold(content)) {
    MutexLock lock(mutex_);
    index_.split(entry.get());
    return false;
  }
  // A table that was never launched (Cache::warm) can have no other row written. It goes, and the entry makes another.
  if (!lender->executable->device_may_write()) {
    MutexLock lock(mutex_);
    if (!lender->pinned) demote(lender.get());
    return false;
  }
  if (table.has(content)) return true;
  const std::size_t growth = table.growth_for(content);
  {
    MutexLock lock(mutex_);
    Family* const family = entry->family;
    // Unless it is asked for, a table takes no more memory than an executable.
    const bool is_wanted = options_.prefer == Prefer::kMemory || options_.mechanisms.sharing == detail::Sharing::kTable;
    const std::size_t most = is_wanted ? SIZE_MAX : lender->device_bytes;
    const bool stale = (family != nullptr && table.rows() >= 2 * family->members + kSpareRows) ||
                       lender->table_bytes > most - std::min(growth, most);
    const bool has_room = growth <= options_.max_device_bytes - index_.live_bytes();
    if (growth != 0 && (stale || !has_room)) {
      const bool is_too_small_anew = UpdaterNode::estimated_device_bytes(content) + growth > most;
      if (!stale || is_too_small_anew) refuse_table(family);
      demote(lender.get());
      return false;
    }
    index_.set_table_bytes(lender.get(), lender->table_bytes + growth);
  }
  RelaxedCaptureMode relaxed;
  absl::Cleanup threw = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    MutexLock lock(mutex_);
    index_.set_table_bytes(lender.get(), lender->table_bytes - growth);
  };
  CallResult added = table.add(content, request.stream);
  std::move(threw).Cancel();
  if (added.error == cudaSuccess) added = lender->executable->mark_ready(request.stream);
  if (added.error == cudaSuccess) return true;
  if (is_fatal(added.error)) {
    obtained->result = added;
    return false;
  }
  MutexLock lock(mutex_);
  refuse_table(entry->family);
  demote(lender.get());
  return false;
}

// The family does without from now on.
void Cache::Impl::refuse_table(Family* family) {
  ++totals_.refused_device_updates;
  if (family != nullptr) family->refuses_table = true;
}

}  // namespace graphcache
