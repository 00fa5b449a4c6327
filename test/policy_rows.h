// What the model of the cache's policy knows: a row for each key, and the questions that its rules ask of all rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/costs.h"
#include "graphcache/graphcache.h"
#include "policy_sequences.h"

namespace graphcache::test {

// The rules of options.h, stats.h, cache.h and costs.h once more, as plainly as they can be said: rows instead of
// lists, and every question answered by looking at all of them.
class Rows {
 protected:
  Rows(const Options& options, const std::vector<Spec>& specs)
      : options_(options), specs_(specs), rows_(specs.size()) {}

  static constexpr std::size_t kNobody = SIZE_MAX, kOnAny = SIZE_MAX;

  // What an executable has before its other nodes: one that writes slots alone can be no sibling's.
  enum class UpdaterKind { kNone, kSlots, kTable };
  struct Row {
    bool known = false, was_recorded = false;
    bool live = false, recorded = false, pinned = false;
    std::uint64_t used = 0, family = 0;
    Values captured{}, programmed{};  // Of its graph, and of its executable.
    Cost paid = 0;                    // Rent,
    std::uint64_t rents_from = 0;     // and the use at which it began to pay.
    bool seen = false;
    int wait = 0, broken = 0;  // Runs before the next capture, captures that broke.
    EagerReason why = EagerReason::kCaptureAfter;
    std::array<std::uint64_t, kOutcomeCount> outcomes{};
    UpdaterKind updater = UpdaterKind::kNone;
    bool launched = false;         // Its executable: until then the device writes nothing into it.
    std::size_t base = 0;          // Of the table: whose graph it was made from.
    std::uint64_t split_from = 0;  // The family that it was no member of after all.
    std::size_t stream = kOnAny;   // Of its family.
  };
  struct Way {
    bool update;
    Cost cost;
  };

  std::size_t slot_nodes(std::size_t k) const {
    const auto& nodes = specs_[k].nodes;
    return static_cast<std::size_t>(
        std::count_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.has_slot(); }));
  }
  std::size_t bytes(std::size_t k) const { return estimated_device_bytes(specs_[k].nodes.size()); }
  std::string topology(std::size_t k) const {
    std::string text;
    for (const Node& node : specs_[k].nodes) text += node.sets ? 'S' : 'K';
    return text;
  }
  template <class F>
  std::size_t number(F&& is) const {
    return static_cast<std::size_t>(std::count_if(rows_.begin(), rows_.end(), is));
  }
  std::size_t live() const {
    return number([](const Row& row) { return row.live; });
  }
  std::size_t live_bytes() const {
    std::size_t sum = 0;
    for (std::size_t k = 0; k < rows_.size(); ++k) sum += rows_[k].live ? bytes(k) : 0;
    return sum;
  }
  template <class F>
  std::size_t oldest(F&& is) const {
    std::size_t found = kNobody;
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (is(rows_[k]) && !rows_[k].pinned && (found == kNobody || rows_[k].used < rows_[found].used)) found = k;
    }
    return found;
  }

  // Who leaves next for room: what has an updater node is the last.
  template <class F>
  std::size_t victim(F&& is) const {
    const std::size_t early =
        oldest([&](const Row& row) { return row.live && row.updater == UpdaterKind::kNone && is(row); });
    return early != kNobody ? early : oldest([&](const Row& row) { return row.live && is(row); });
  }
  std::size_t updater_nodes() const {
    return number([](const Row& row) { return row.live && row.updater != UpdaterKind::kNone; });
  }
  // Half of the budget is for executables without.
  bool has_room_for_updater_node() const {
    return updater_nodes() < std::max<std::size_t>(options_.max_executables / 2, 1);
  }

  bool has_not_been_used_since(const Row& row) const {
    const std::size_t k = victim([](const Row&) { return true; });
    return k == kNobody || rows_[k].used < row.rents_from;
  }

  std::size_t executables_of(std::uint64_t family) const {
    return family == 0 ? 0 : number([&](const Row& row) { return row.live && row.family == family; });
  }
  std::size_t spare_of(std::uint64_t family) const {
    const auto found = spare_.find(family);
    return family == 0 || found == spare_.end() ? kNobody : found->second;
  }
  void no_spare(std::size_t k) {
    for (auto& [family, spare] : spare_) spare = spare == k ? kNobody : spare;
  }

  // Whether there is room for so many bytes beside the executables, but for those of some keys.
  bool fits(std::size_t needed, const std::vector<std::size_t>& but = {}) const {
    std::size_t less = 0;
    for (const std::size_t k : but) less += bytes(k);
    return needed <= options_.max_device_bytes &&
           live() - but.size() < static_cast<std::size_t>(options_.max_executables) &&
           live_bytes() - less <= options_.max_device_bytes - needed;
  }

  // Captured against captured; a node that holds slots is set anyway, and one that held them is given back its value.
  Change change(std::size_t a, std::size_t b, std::size_t i) const {
    const Node& from = specs_[a].nodes[i];
    const Node& to = specs_[b].nodes[i];
    const Node x = from.with(rows_[a].captured);
    const Node y = to.with(rows_[b].captured);
    if (to.sets) {
      if (to.has_slot()) return Change::kNone;  // It is set anyway.
      return from.has_slot() || !x.same_values(y) ? Change::kOther : Change::kNone;
    }
    if (!x.same_launch(y)) return Change::kLaunch;
    if (x.grid != y.grid) return Change::kGrid;
    if (to.has_slot()) return Change::kNone;
    return from.has_slot() || !x.same_values(y) ? Change::kArguments : Change::kNone;
  }

  Way difference(std::size_t a, std::size_t b) const {
    const std::size_t n = specs_[b].nodes.size();
    Cost update = n * costs::kUpdateReads, patches = 0;
    bool patchable = true;
    const auto cost = [](const Cost(&of)[kChangeCount], Change how) { return of[static_cast<std::size_t>(how)]; };
    for (std::size_t i = 0; i < n; ++i) {
      const auto how = change(a, b, i);
      const Cost value = specs_[b].nodes[i].has_slot() ? cost(costs::kPatch, Change::kArguments) : 0;
      update += cost(costs::kUpdate, how) + value;
      patches += how == Change::kNone ? value : cost(costs::kPatch, how);
      patchable = patchable && how != Change::kOther;
    }
    const bool by_update = !patchable || update < patches;
    return {by_update, costs::kTakeOver + (by_update ? update : patches)};
  }

  const Options options_;
  const std::vector<Spec>& specs_;
  std::vector<Row> rows_;
  std::map<std::uint64_t, std::size_t> spare_;  // Of each family: who has the executable that its members pass on.
  std::uint64_t uses_ = 0;
};

}  // namespace graphcache::test
