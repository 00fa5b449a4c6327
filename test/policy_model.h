// A model of which executables and templates stay, who rents and who buys.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/costs.h"
#include "graphcache/graphcache.h"
#include "policy_rows.h"
#include "policy_sequences.h"
#include "policy_tables.h"

namespace graphcache::test {

class Model : private Rows {
 public:
  // `refuses_updater`: the driver takes no executable that the device updates.
  Model(const Options& options, const std::vector<Spec>& specs, bool refuses_updater = false)
      : Rows(options, specs), refuses_updater_(refuses_updater) {}

  // The last operation: its outcome, or none of a failure, and how often it called `fn`.
  std::optional<Outcome> outcome;
  int calls = 0;
  bool tidied = false;
  Stats stats;
  std::uint64_t moves = 0, across = 0;  // Of keys to other streams; of executables between these.

  void run(std::size_t k, const Values& values, std::size_t stream) {
    begin(k, stream);
    outcome = do_run(k, values);
    rows_[k].launched = rows_[k].live;
    ++rows_[k].outcomes[static_cast<std::size_t>(*outcome)];
    ++stats.outcomes[static_cast<std::size_t>(*outcome)];
    count();
  }

  // True: no error.
  bool warm(std::size_t k, const Values& values, std::size_t stream) {
    begin(k, stream);
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
    forget_rents();
    count();
    return known;
  }
  void clear() {
    for (std::size_t k = 0; k < rows_.size(); ++k) erase(k);
  }

  bool contains(std::size_t k) const { return rows_[k].recorded; }
  bool has_table() const {
    return number([](const Row& row) { return row.live && row.updater == UpdaterKind::kTable; }) != 0;
  }
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
  void begin(std::size_t k, std::size_t stream) {
    stream_ = stream;
    calls = 0;
    tidied = false;
    Row& row = rows_[k];
    row.known = true;
    row.used = ++uses_;
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
    find_family(k);
    bool sibling = false;
    if (!obtain(k, values, &sibling)) return eager(EagerReason::kBudget);
    rows_[k].broken = 0;
    if (sibling) return hit ? Outcome::kSwitched : Outcome::kUpdated;
    return hit ? Outcome::kRestored : Outcome::kInstantiated;
  }

  bool do_warm(std::size_t k, const Values& values) {
    Row& row = rows_[k];
    if (row.live) return true;
    find_family(k);
    const bool ok = row.recorded || record(k, values);
    if (ok) {
      row.seen = true;
      row.wait = 0;
      const bool shares = is_shared() && executables_of(row.family) != 0;
      if (fits(bytes(k)) && !shares) instantiate(k, wants_table(k, kNobody));
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
    if (options_.mechanisms.sharing == detail::Sharing::kNever) return true;
    row.stream = is_shared() || options_.prefer == Prefer::kMemory ? kOnAny : stream_;
    row.family = family_of(topology(k), row.stream, row.split_from);
    return true;
  }

  // A key without an executable goes where its siblings on the stream are.
  void find_family(std::size_t k) {
    Row& row = rows_[k];
    if (row.family == 0 || row.stream == kOnAny || row.stream == stream_) return;
    ++moves;
    row.stream = stream_;
    row.family = 0;
    row.family = family_of(topology(k), row.stream, row.split_from);
    forget_rents();
  }

  // Families are numbered in the order in which they come up; one that nobody belongs to is over.
  std::uint64_t family_of(const std::string& topology, std::size_t stream, std::uint64_t beyond) {
    std::uint64_t first = 0;
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      const std::uint64_t family = rows_[k].family;
      const bool fits = family > beyond && rows_[k].stream == stream && this->topology(k) == topology;
      if (fits && (first == 0 || family < first)) first = family;
    }
    return first != 0 ? first : ++last_family_;
  }
  void split(std::size_t k) {
    Row& row = rows_[k];
    row.split_from = row.family;
    row.family = family_of(topology(k), row.stream, row.split_from);
    forget_rents();
  }
  bool is_shared() const {
    return options_.mechanisms.sharing == detail::Sharing::kAlways ||
           options_.mechanisms.sharing == detail::Sharing::kTable;
  }

  bool obtain(std::size_t k, const Values& values, bool* sibling) {
    for (;;) {  // Once more for who turns out to be no member.
      Row& row = rows_[k];
      const auto is_sibling = [&](const Row& other) {
        return other.live && row.family != 0 && other.family == row.family;
      };
      *sibling = true;
      std::size_t lender = spare_of(row.family);
      const bool may_buy = options_.mechanisms.sharing == detail::Sharing::kAuto && fits(bytes(k));  // A new spare one.
      if (lender == kNobody) {
        lender = oldest([&](const Row& other) {
          return is_sibling(other) && other.updater == UpdaterKind::kTable && class_of(other) == class_of(row);
        });
      }
      if (lender == kNobody && !may_buy) lender = oldest(is_sibling);
      const bool table = wants_table(k, lender);
      if (lender != kNobody && !row.pinned && !table && rows_[lender].updater != UpdaterKind::kSlots) {
        const Cost rent = rent_of(lender, k);
        const Cost price = costs::buy(specs_[k].nodes.size());
        const bool keeps = row.paid + rent > price && (fits(bytes(k)) || has_not_been_used_since(row));
        if (is_shared() || !keeps) {
          if (take_for_rent(lender, k, values, rent)) return true;
          continue;
        }
      }
      std::vector<std::size_t> victims;
      std::size_t leaver = kNobody;  // A sibling, who would have to leave for it.
      while (!fits(bytes(k), victims) && leaver == kNobody) {
        const std::size_t victim = this->victim([&](const Row& other) {
          const auto i = static_cast<std::size_t>(&other - rows_.data());
          return std::find(victims.begin(), victims.end(), i) == victims.end();
        });
        if (victim == kNobody) return false;
        const UpdaterKind updater = rows_[victim].updater;
        const bool can_have = updater == UpdaterKind::kTable ? !row.pinned && class_of(rows_[victim]) == class_of(row)
                                                             : !table && updater != UpdaterKind::kSlots;
        const bool of_other_stream =
            is_of_another_stream(row, rows_[victim]) && updater == UpdaterKind::kNone && !table;
        if ((is_sibling(rows_[victim]) && can_have) || of_other_stream) {
          leaver = victim;
        } else {
          victims.push_back(victim);
        }
      }
      if (leaver != kNobody && rows_[leaver].updater == UpdaterKind::kTable) {  // It stays the family's.
        if (take_for_rent(leaver, k, values, rent_of(leaver, k))) return true;
        continue;
      }
      if (leaver != kNobody) {
        across += rows_[leaver].stream != row.stream ? 1 : 0;
        take(leaver, k, values);
        row.paid = 0;
        return true;
      }
      for (const std::size_t victim : victims) {
        lose_executable(victim);
        ++stats.evictions;
      }
      *sibling = false;
      instantiate(k, table);
      set(k, values);
      return true;
    }
  }

  std::string topology_of(const Row& row) const { return topology(static_cast<std::size_t>(&row - rows_.data())); }
  std::string class_of(const Row& row) const {
    return row_class(specs_[static_cast<std::size_t>(&row - rows_.data())]);
  }
  // They would be siblings, but for their streams.
  bool is_of_another_stream(const Row& a, const Row& b) const {
    return a.family != 0 && b.family != 0 && a.stream != b.stream && a.split_from == 0 && b.split_from == 0 &&
           topology_of(a) == topology_of(b);
  }

  Cost rent_of(std::size_t lender, std::size_t k) const {
    return rows_[lender].updater == UpdaterKind::kTable ? cost_of_row(options_, specs_[k].nodes.size())
                                                        : difference(lender, k).cost;
  }

  // Whether the next executable is to have a table: by rent or buy for all of a class.
  bool wants_table(std::size_t k, std::size_t lender) {
    const Row& row = rows_[k];
    if (row.family == 0 || row.pinned || refuse_tables_.count(row.family) != 0) return false;
    if (lender != kNobody && rows_[lender].updater == UpdaterKind::kTable) return false;
    if (options_.mechanisms.sharing == detail::Sharing::kTable) return true;
    if (options_.mechanisms.sharing != detail::Sharing::kAuto || options_.prefer == Prefer::kDeviceTime ||
        lender == kNobody)
      return false;
    const std::string mine = row_class(specs_[k]);
    if (members_of(row.family, mine) < 2) return false;
    if (options_.prefer == Prefer::kMemory) return true;
    const std::size_t nodes = specs_[k].nodes.size();
    const Cost otherwise =
        rows_[lender].updater == UpdaterKind::kSlots ? costs::buy(nodes) : difference(lender, k).cost;
    const Cost by_row = cost_of_row(options_, nodes);
    Cost& paid = rents_[{row.family, mine}];
    if (otherwise > by_row) paid += otherwise - by_row;
    if (paid <= costs::buy_table(nodes) || !has_room_for_updater_node()) return false;
    const std::size_t of_class =
        number([&](const Row& other) { return other.live && other.family == row.family && class_of(other) == mine; });
    return fits(bytes(k)) || of_class >= static_cast<std::size_t>(std::min(options_.max_executables, 2));
  }
  std::size_t members_of(std::uint64_t family, const std::string& of_class) const {
    std::size_t count = 0;
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      count += rows_[k].family == family && row_class(specs_[k]) == of_class ? 1 : 0;
    }
    return count;
  }
  // A class without members has paid nothing, and a family without members has refused nothing.
  void forget_rents() {
    std::erase_if(rents_, [&](const auto& rent) { return members_of(rent.first.first, rent.first.second) == 0; });
    std::erase_if(refuse_tables_, [&](std::uint64_t family) {
      return std::none_of(rows_.begin(), rows_.end(), [&](const Row& row) { return row.family == family; });
    });
  }

  void instantiate(std::size_t k, bool table) {
    Row& row = rows_[k];
    ++stats.instantiations;
    row.live = true;
    row.updater = UpdaterKind::kNone;
    row.paid = 0;
    row.programmed = row.captured;
    const bool may_have_updater_node = options_.mechanisms.patching != detail::Patching::kAuto ||
                                       (options_.max_executables >= 8 && has_room_for_updater_node());
    const bool writes_slots = may_have_updater_node && device_writes_slots(options_, specs_[k]);
    row.updater = table ? UpdaterKind::kTable : writes_slots ? UpdaterKind::kSlots : UpdaterKind::kNone;
    row.launched = false;
    row.base = k;
    if (row.updater != UpdaterKind::kNone && refuses_updater_) {
      row.updater = UpdaterKind::kNone;
      ++stats.refused_device_updates;
      if (table) refuse_tables_.insert(row.family);
    }
    const bool has_table = row.updater == UpdaterKind::kTable;
    if (row.family != 0 && (has_table || spare_of(row.family) == kNobody) && !row.pinned) spare_[row.family] = k;
    if (has_table) rents_.erase({row.family, row_class(specs_[k])});
  }
  void lose_executable(std::size_t k) {
    rows_[k].live = false;
    no_spare(k);
  }

  // False: the table cannot hold it.
  bool take_for_rent(std::size_t lender, std::size_t k, const Values& values, Cost rent) {
    Row& row = rows_[k];
    const bool by_row = rows_[lender].updater == UpdaterKind::kTable;
    if (by_row && row_class(specs_[rows_[lender].base]) != row_class(specs_[k])) {
      split(k);
      return false;
    }
    if (by_row && !rows_[lender].launched) {  // It gives way.
      lose_executable(lender);
      return false;
    }
    const std::size_t spare = spare_of(row.family);
    by_row ? switch_row(lender, k, values) : take(lender, k, values);
    if (row.paid == 0) row.rents_from = row.used;
    row.paid += rent;
    if ((spare == lender || spare == kNobody) && !row.pinned) spare_[row.family] = k;
    return true;
  }

  void switch_row(std::size_t lender, std::size_t k, const Values& values) {
    const Spec& spec = specs_[k];
    const Values before = rows_[lender].programmed;
    const std::size_t base = rows_[lender].base;
    lose_executable(lender);
    Row& row = rows_[k];
    row.live = true;
    row.updater = UpdaterKind::kTable;
    row.base = base;
    row.programmed = values;
    ++stats.row_switches;
    bool changed = false;
    for (std::size_t i = 0; i < spec.nodes.size(); ++i) {
      const Node from = specs_[lender].nodes[i].with(before), to = spec.nodes[i].with(values);
      if (!spec.nodes[i].has_slot()) continue;
      if (to.sets) stats.patched_nodes += from.same_values(to) ? 0 : 1;
      if (!to.sets) changed = changed || from.value != to.value;
    }
    stats.patched_nodes += (changed ? kernels_with_slots(spec) : 0) + differing_from_base(specs_[base], spec);
  }

  void take(std::size_t lender, std::size_t k, const Values& values) {
    const Way way = difference(lender, k);
    const Values before = rows_[lender].programmed;
    lose_executable(lender);
    Row& row = rows_[k];
    row.live = true;
    row.updater = UpdaterKind::kNone;
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
    bool by_device = false;
    for (const Node& node : specs_[k].nodes) {
      const bool same = node.with(programmed).same_values(node.with(values));
      const bool by_host = node.sets || rows_[k].updater == UpdaterKind::kNone || !rows_[k].launched;
      patched += !same && by_host ? 1 : 0;
      by_device = by_device || (!same && !by_host);
    }
    if (by_device) patched += kernels_with_slots(specs_[k]);  // With one of them, all.
    programmed = values;
    stats.patched_nodes += patched;
    return patched;
  }

  // The templates of keys that have an executable count, too, and stay.
  void tidy() {
    tidied = true;
    while (number([](const Row& row) { return row.recorded; }) > static_cast<std::size_t>(options_.max_templates)) {
      const std::size_t k = oldest([](const Row& row) { return row.recorded && !row.live; });
      if (k == kNobody) return;
      rows_[k].recorded = false;
      rows_[k].family = 0;
      forget_rents();
      ++stats.forgotten;
    }
  }

  const bool refuses_updater_;
  std::size_t stream_ = 0;                                       // Of the operation.
  std::map<std::pair<std::uint64_t, std::string>, Cost> rents_;  // Of each family's classes, beyond those of a table.
  std::set<std::uint64_t> refuse_tables_;                        // Families that do without.
  std::uint64_t last_family_ = 0;
};

}  // namespace graphcache::test
