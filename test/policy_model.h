// A model of which executables and templates stay, who rents and who buys.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costs.h"
#include "graphcache/graphcache.h"
#include "policy_sequences.h"

namespace graphcache::test {

// The rules of options.h, stats.h, cache.h and costs.h once more, as plainly as they can be said: rows instead of
// lists, and every question answered by looking at all of them.
class Model {
 public:
  Model(const Options& options, const std::vector<Spec>& specs)
      : options_(options), specs_(specs), rows_(specs.size()) {}

  // The last operation: its outcome, or none of a failure, and how often it called `fn`.
  std::optional<Outcome> outcome;
  int calls = 0;
  bool tidied = false;
  Stats stats;

  void run(std::size_t k, const Values& values) {
    begin(k);
    outcome = do_run(k, values);
    ++rows_[k].outcomes[static_cast<std::size_t>(*outcome)];
    ++stats.outcomes[static_cast<std::size_t>(*outcome)];
    count();
  }

  // True: no error.
  bool warm(std::size_t k, const Values& values) {
    begin(k);
    const bool ok = do_warm(k, values);
    if (!ok) ++stats.failed;
    count();
    return ok;
  }

  bool pin(std::size_t k, bool pinned) {
    Row& row = rows_[k];
    if (!row.known) return false;
    row.pinned = pinned;
    if (pinned) no_spare(k);  // What it has rented it keeps.
    return true;
  }

  bool erase(std::size_t k) {
    const bool known = rows_[k].known;
    no_spare(k);
    rows_[k] = Row();
    count();
    return known;
  }
  void clear() {
    for (std::size_t k = 0; k < rows_.size(); ++k) erase(k);
  }

  bool contains(std::size_t k) const { return rows_[k].recorded; }
  std::size_t pinned_templates() const {
    return number([](const Row& row) { return row.recorded && !row.live && row.pinned; });
  }

  std::vector<EntryInfo> entries() const {
    std::vector<std::size_t> known;
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (rows_[k].known) known.push_back(k);
    }
    std::sort(known.begin(), known.end(), [&](std::size_t a, std::size_t b) { return rows_[a].used > rows_[b].used; });
    std::vector<EntryInfo> infos;
    for (const std::size_t k : known) {
      const Row& row = rows_[k];
      EntryInfo info;
      info.label = specs_[k].name;
      info.key = specs_[k].key.to_string();
      info.outcomes = row.outcomes;
      info.live = row.live;
      info.recorded = row.recorded;
      info.pinned = row.pinned;
      info.family = row.family;
      info.nodes = row.was_recorded ? specs_[k].nodes.size() : 0;
      info.slot_nodes = row.was_recorded ? slot_nodes(k) : 0;
      info.estimated_device_bytes = row.live ? bytes(k) : 0;
      info.last_use_order = infos.size();
      infos.push_back(info);
    }
    return infos;
  }

 private:
  struct Row {
    bool known = false, was_recorded = false;
    bool live = false, recorded = false, pinned = false;
    std::uint64_t used = 0, family = 0;
    std::uint64_t often = 0, period = 0;  // Uses of late, and in which period that was counted.
    Values captured{}, programmed{};      // Of its graph, and of its executable.
    Cost paid = 0;                        // Rent.
    bool seen = false;
    int wait = 0, broken = 0;  // Runs before the next capture, captures that broke.
    EagerReason why = EagerReason::kCaptureAfter;
    std::array<std::uint64_t, kOutcomeCount> outcomes{};
  };
  struct Way {
    bool update;
    Cost cost;
  };
  static constexpr std::size_t kNobody = SIZE_MAX;

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

  void begin(std::size_t k) {
    calls = 0;
    tidied = false;
    Row& row = rows_[k];
    row.known = true;
    row.used = ++uses_;
    row.often = often(row) + 1;
    row.period = uses_ / period();
  }

  // The smallest power of two of at least eight uses for each executable that there may be.
  std::uint64_t period() const {
    std::uint64_t uses = 8;
    while (uses < 8 * static_cast<std::uint64_t>(options_.max_executables)) uses *= 2;
    return uses;
  }
  std::uint64_t often(const Row& row) const {
    std::uint64_t count = row.often;
    for (std::uint64_t i = row.period; i < uses_ / period(); ++i) count /= 2;
    return count;
  }
  bool is_used_more_often_than_the_oldest(const Row& row) const {
    const std::size_t k = oldest([](const Row& other) { return other.live; });
    return k == kNobody || often(row) > often(rows_[k]);
  }

  void count() {
    std::vector<std::uint64_t> families;
    for (const Row& row : rows_) {
      if (row.family != 0) families.push_back(row.family);
    }
    std::sort(families.begin(), families.end());
    stats.families = static_cast<std::uint64_t>(std::unique(families.begin(), families.end()) - families.begin());
    stats.live_executables = live();
    stats.live_templates = number([](const Row& row) { return row.recorded; });
    stats.estimated_device_bytes = live_bytes();
  }

  Outcome eager(EagerReason why) {
    ++calls;
    ++stats.eager_reasons[static_cast<std::size_t>(why)];
    return Outcome::kEager;
  }

  Outcome do_run(std::size_t k, const Values& values) {
    Row& row = rows_[k];
    if (row.live) return set(k, values) != 0 ? Outcome::kPatched : Outcome::kReplayed;
    if (!std::exchange(row.seen, true)) row.wait = options_.capture_after;
    if (row.wait > 0) {
      --row.wait;
      return eager(row.why);
    }
    const Outcome done = bring(k, values);
    tidy();
    return done;
  }

  Outcome bring(std::size_t k, const Values& values) {
    const bool hit = rows_[k].recorded;
    if (!hit) {
      const std::size_t known = rows_[k].was_recorded ? bytes(k) : 0;
      if (known > options_.max_device_bytes) return eager(EagerReason::kBudget);
      if (!fits(known) && oldest([](const Row& row) { return row.live; }) == kNobody)
        return eager(EagerReason::kBudget);
      if (!record(k, values)) return eager(EagerReason::kCaptureFailed);
    }
    bool sibling = false;
    if (!obtain(k, values, &sibling)) return eager(EagerReason::kBudget);
    rows_[k].broken = 0;
    if (sibling) return hit ? Outcome::kSwitched : Outcome::kUpdated;
    return hit ? Outcome::kRestored : Outcome::kInstantiated;
  }

  bool do_warm(std::size_t k, const Values& values) {
    Row& row = rows_[k];
    if (row.live) return true;
    const bool ok = row.recorded || record(k, values);
    if (ok) {
      row.seen = true;
      row.wait = 0;
      const bool shares = options_.sharing == Sharing::kAlways && executables_of(row.family) != 0;
      if (fits(bytes(k)) && !shares) instantiate(k);
    }
    tidy();
    return ok;
  }

  bool record(std::size_t k, const Values& values) {
    Row& row = rows_[k];
    ++calls;
    const auto& nodes = specs_[k].nodes;
    if (std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return node.with(values).size == 0; })) {
      ++stats.capture_failures;
      row.wait = 1 << std::min(row.broken++, 10);
      row.why = EagerReason::kBackoff;
      return false;
    }
    ++stats.captures;
    row.recorded = row.was_recorded = true;
    row.captured = specs_[k].varying ? values : Values{};
    row.paid = 0;
    if (options_.sharing != Sharing::kNever) row.family = family_of(topology(k));
    return true;
  }

  // Families are numbered in the order in which they come up; one that nobody belongs to is over.
  std::uint64_t family_of(const std::string& topology) {
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (rows_[k].family != 0 && this->topology(k) == topology) return rows_[k].family;
    }
    return ++last_family_;
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

  bool obtain(std::size_t k, const Values& values, bool* sibling) {
    Row& row = rows_[k];
    const auto is_sibling = [&](const Row& other) {
      return other.live && row.family != 0 && other.family == row.family;
    };
    *sibling = true;
    std::size_t lender = spare_of(row.family);
    const bool may_buy = options_.sharing == Sharing::kAuto && fits(bytes(k));  // A new spare one.
    if (lender == kNobody && !may_buy) lender = oldest(is_sibling);
    if (lender != kNobody && !row.pinned) {
      const Cost rent = difference(lender, k).cost;
      const Cost price = costs::buy(specs_[k].nodes.size());
      const bool keeps = row.paid + rent > price && (fits(bytes(k)) || is_used_more_often_than_the_oldest(row));
      if (options_.sharing == Sharing::kAlways || !keeps) {
        const std::size_t spare = spare_of(row.family);
        take(lender, k, values);
        row.paid += rent;
        if (spare == lender || spare == kNobody) spare_[row.family] = k;
        return true;
      }
    }
    std::vector<std::size_t> victims;
    while (!fits(bytes(k), victims)) {
      const std::size_t victim = oldest([&](const Row& other) {
        const auto i = static_cast<std::size_t>(&other - rows_.data());
        return other.live && std::find(victims.begin(), victims.end(), i) == victims.end();
      });
      if (victim == kNobody) return false;
      if (is_sibling(rows_[victim])) {
        take(victim, k, values);
        row.paid = 0;
        return true;
      }
      victims.push_back(victim);
    }
    for (const std::size_t victim : victims) {
      lose_executable(victim);
      ++stats.evictions;
    }
    *sibling = false;
    instantiate(k);
    set(k, values);
    return true;
  }

  void instantiate(std::size_t k) {
    Row& row = rows_[k];
    ++stats.instantiations;
    row.live = true;
    row.paid = 0;
    row.programmed = row.captured;
    if (row.family != 0 && spare_of(row.family) == kNobody && !row.pinned) spare_[row.family] = k;
  }
  void lose_executable(std::size_t k) {
    rows_[k].live = false;
    no_spare(k);
  }

  void take(std::size_t lender, std::size_t k, const Values& values) {
    const Way way = difference(lender, k);
    const Values before = rows_[lender].programmed;
    lose_executable(lender);
    Row& row = rows_[k];
    row.live = true;
    if (way.update) {
      ++stats.updates;
      row.programmed = row.captured;
      set(k, values);
      return;
    }
    for (std::size_t i = 0; i < specs_[k].nodes.size(); ++i) {
      const Node& from = specs_[lender].nodes[i];
      const Node& to = specs_[k].nodes[i];
      const Node now = from.with(before);
      const Node then = to.with(values);
      const bool same = to.has_slot()
                            ? from.has_slot() && now.same_launch(then) && now.grid == then.grid && now.same_values(then)
                            : change(lender, k, i) == Change::kNone;
      stats.patched_nodes += same ? 0 : 1;
    }
    row.programmed = values;
  }

  // How many nodes are patched for new values.
  std::size_t set(std::size_t k, const Values& values) {
    if (!specs_[k].varying) return 0;
    Values& programmed = rows_[k].programmed;
    std::size_t patched = 0;
    for (const Node& node : specs_[k].nodes) patched += node.with(programmed).same_values(node.with(values)) ? 0 : 1;
    programmed = values;
    stats.patched_nodes += patched;
    return patched;
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

  // The templates of keys that have an executable count, too, and stay.
  void tidy() {
    tidied = true;
    while (number([](const Row& row) { return row.recorded; }) > static_cast<std::size_t>(options_.max_templates)) {
      const std::size_t k = oldest([](const Row& row) { return row.recorded && !row.live; });
      if (k == kNobody) return;
      rows_[k].recorded = false;
      rows_[k].family = 0;
      ++stats.forgotten;
    }
  }

  const Options options_;
  const std::vector<Spec>& specs_;
  std::vector<Row> rows_;
  std::map<std::uint64_t, std::size_t> spare_;  // Of each family: who has the executable that its members pass on.
  std::uint64_t uses_ = 0, last_family_ = 0;
};

}  // namespace graphcache::test
