#include "policy/policy.h"

#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <utility>

namespace graphcache {
namespace {

// A table that must be made anew after fewer sets does not repay its cost.
constexpr std::size_t kManySets = 64;

// From this number of kernels with slots on, patching them takes the host longer than an updater node takes the device
// (test/bench/results/2026-11-22-keys.md): 146 ns for each, beside 2.7 us and 35 ns for each.
constexpr std::size_t kManySlots = 25;

// A smaller budget is for executables without updater nodes, because destroying one that has such a node waits for work
// that other streams have in flight.
constexpr std::size_t kLeastBudgetForSlots = 8;

}  // namespace

// The key's executable may now be evicted and lent.
void Policy::link(KeyId key) {
  Entry& entry = entries_[key];
  entry.newer = kNoKey;
  entry.older = newest_;
  for (int i = 0; i < kMostPassed && entry.older != kNoKey && entries_[entry.older].last_use > entry.last_use; ++i) {
    entry.newer = std::exchange(entry.older, entries_[entry.older].older);
  }
  (entry.newer != kNoKey ? entries_[entry.newer].older : newest_) = key;
  (entry.older != kNoKey ? entries_[entry.older].newer : oldest_) = key;
}

void Policy::unlink(KeyId key) {
  const Entry& entry = entries_[key];
  (entry.newer != kNoKey ? entries_[entry.newer].older : newest_) = entry.older;
  (entry.older != kNoKey ? entries_[entry.older].newer : oldest_) = entry.newer;
}

void Policy::used(KeyId key, const Use& use) {
  add(key);
  Entry& entry = entries_[key];
  entry.last_use = std::max(entry.last_use, use);  // Between two runs that are not hits, each thread has its own count.
  if (entry.kind == Kind::kNone || entry.is_pinned || newest_ == key) return;
  unlink(key);
  link(key);
}

// The key joins the family and the class of these facts, and then leaves the former ones.
void Policy::set_facts(KeyId key, GraphFacts facts) {
  Family* family = nullptr;
  Class* of_class = nullptr;
  if (facts.signature == 0) {
    facts.table_class = 0;
  } else {
    const auto [at, is_new] = families_.try_emplace({facts.signature, facts.stream});
    absl::Cleanup threw = [&, is_new = is_new, at = at] {
      if (is_new) families_.erase(at);
    };
    family = &at->second;
    of_class = &family->classes[facts.table_class];
    std::move(threw).Cancel();
    if (is_new) family->number = ++last_family_;
    ++of_class->members;
  }
  Entry& entry = entries_[key];
  const Entry former = entry;
  entry.facts = facts;
  entry.family = family;
  entry.of_class = of_class;
  if (former.family == nullptr) return;
  if (--former.of_class->members == 0) former.family->classes.erase(former.facts.table_class);
  if (former.family->classes.empty()) families_.erase({former.facts.signature, former.facts.stream});
}

void Policy::captured(KeyId key, const GraphFacts& facts) {
  set_facts(key, facts);  // May throw.
  entries_[key].is_unread = facts.signature == 0;
}

void Policy::described(KeyId key, GraphFacts facts) {
  facts.stream = entries_[key].facts.stream;
  facts.shape = entries_[key].facts.shape;
  set_facts(key, facts);  // May throw.
  unread_ -= is_live(key) && entries_[key].is_unread ? 1 : 0;
  entries_[key].is_unread = false;
}

void Policy::set_fact(KeyId key, std::uint64_t GraphFacts::*which, std::uint64_t value) {
  GraphFacts facts = entries_[key].facts;
  facts.*which = value;
  set_facts(key, facts);
}

void Policy::moved(KeyId key, std::uint64_t stream) {
  if (entries_[key].facts.stream == stream || limits_.mechanisms.across_streams) return;
  set_fact(key, &GraphFacts::stream, stream);
}

void Policy::pinned(KeyId key, bool pinned) {
  Entry& entry = entries_[key];
  if (entry.is_pinned == pinned) return;
  entry.is_pinned = pinned;
  if (entry.kind != Kind::kNone) pinned ? unlink(key) : link(key);
}

void Policy::erased(KeyId key) {
  lost(key);
  forgotten(key);
  entries_[key] = {};
}

void Policy::refuse_device_updates(KeyId key) {
  Entry& entry = entries_[key];
  if (entry.of_class != nullptr) entry.of_class->refuses_table = true;
  entry.refuses_slots = true;
  if (is_device_updated(key)) set_kind(key, Kind::kPlain);
}

std::size_t Policy::bytes(KeyId key) const {
  const Entry& entry = entries_[key];
  if (!is_live(key)) return 0;
  return entry.facts.bytes + (has_table(key) ? entry.facts.table_bytes + entry.of_class->set_bytes : 0);
}

void Policy::set_kind(KeyId key, Kind kind) {
  Entry& entry = entries_[key];
  const auto count = [&](std::size_t by) {
    if (entry.kind == Kind::kNone) return;
    executables_ += by;
    bytes_ += by * bytes(key);
    with_slots_ += entry.kind == Kind::kSlots ? by : 0;
    unread_ += entry.is_unread ? by : 0;
  };
  count(std::size_t{0} - 1);
  if (entry.kind != Kind::kNone && !entry.is_pinned) unlink(key);
  if (entry.kind == Kind::kTable) entry.of_class->table = kNoKey;
  entry.kind = kind;
  if (kind == Kind::kTable) entry.of_class->table = key;
  if (kind != Kind::kNone && !entry.is_pinned) link(key);
  count(+1);
}

// The least recently used executable that suits. Those that hits have used since their last report are first moved to
// their places.
KeyId Policy::find_oldest(absl::FunctionRef<bool(KeyId)> suits) {
  int moves = 0;
  for (KeyId before = kNoKey;;) {
    const KeyId key = before == kNoKey ? oldest_ : entries_[before].newer;
    if (key == kNoKey) return key;
    const Use use = last_use_ ? last_use_(key) : Use();
    if (use > entries_[key].last_use && ++moves <= kMostPassed) {
      used(key, use);
    } else if (suits(key)) {
      return key;
    } else {
      before = key;
    }
  }
}

// The executable to evict beside those of the plan. A device-updated one is only evicted if there is no plain one, not
// even one in use, because destroying it waits for work that other streams have in flight.
KeyId Policy::victim(Idle idle, const Plan& plan) {
  const auto stays = [&](KeyId key) {
    return key != plan.lender && std::find(plan.evict.begin(), plan.evict.end(), key) == plan.evict.end();
  };
  bool has_plain = false;
  const KeyId plain = find_oldest([&](KeyId key) {
    if (is_device_updated(key) || !stays(key)) return false;
    has_plain = true;
    return idle(key);
  });
  return has_plain ? plain : find_oldest([&](KeyId key) { return stays(key) && idle(key); });
}

// The graphs of others are read one at a time, that of the executable that would be lent or evicted first.
Policy::ToRead Policy::to_read(KeyId key) {
  const Entry& entry = entries_[key];
  const bool always_has_table = limits_.mechanisms.tables == Mechanisms::Tables::kAlways;
  if (!limits_.mechanisms.reads || (limits_.share != Share::kAlways && has_room(entry))) return {};
  const auto is_like = [&](KeyId other) { return entries_[other].facts.shape == entry.facts.shape; };
  const auto is_unread = [&](KeyId other) {
    return is_like(other) && entries_[other].is_unread && !is_device_updated(other);
  };
  return {entry.is_unread && (always_has_table || find_oldest(is_like) != kNoKey),
          unread_ != 0 ? find_oldest(is_unread) : kNoKey};
}

KeyId Policy::candidate(KeyId key, Idle idle) {
  const Entry& entry = entries_[key];
  if (limits_.share == Share::kNever || entry.is_pinned || entry.family == nullptr) return kNoKey;
  if (limits_.share == Share::kWhenFull && has_room(entry)) return kNoKey;
  const KeyId table = entry.of_class->table;
  if (can_lend(table) && idle(table)) return table;
  if (limits_.share == Share::kWhenFull) return kNoKey;
  return find_oldest(
      [&](KeyId other) { return entries_[other].family == entry.family && !is_device_updated(other) && idle(other); });
}

// Whether the key's class can have a table with a set for each member, or kManySets, in the place of these
// executables.
bool Policy::has_room_for_table(const Entry& entry, const std::vector<KeyId>& in_place_of) const {
  const Class* const of_class = entry.of_class;
  if (entry.facts.table_class == 0 || entry.is_pinned) return false;
  if (of_class->refuses_table || of_class->table != kNoKey) return false;
  const std::size_t sets = entry.facts.set_bytes * std::min(of_class->members, kManySets);
  if (sets / entry.facts.bytes >= limits_.max_executables) return false;
  std::size_t given_up = 0;
  for (const KeyId key : in_place_of) given_up += bytes(key);
  return limits_.mechanisms.tables != Mechanisms::Tables::kNever &&
         fits(bytes_ - given_up, entry.facts.bytes + entry.facts.table_bytes + sets);
}

// While there is room, up to half of the executables have an updater node, because the others are evicted first.
bool Policy::wants_slots(const Entry& entry) const {
  const Mechanisms::Patching patching = limits_.mechanisms.patching;
  if (entry.refuses_slots || entry.facts.slot_kernels == 0 || patching == Mechanisms::Patching::kPerNode) return false;
  if (patching == Mechanisms::Patching::kDeviceUpdated) return true;
  return limits_.share == Share::kWhenFull && has_room(entry) && entry.facts.slot_kernels >= kManySlots &&
         limits_.max_executables >= kLeastBudgetForSlots && with_slots_ < limits_.max_executables / 2;
}

// Adds to the plan what has to be evicted so that this is within the limits.
bool Policy::make_room(std::size_t executables, std::size_t bytes, Idle idle, Plan* plan) {
  while (executables > limits_.max_executables || !fits(bytes, 0)) {
    const KeyId key = victim(idle, *plan);
    if (key == kNoKey) return false;
    --executables;
    bytes -= this->bytes(key);
    plan->evict.push_back(key);
  }
  return true;
}

// Rule 2.
Plan Policy::borrow(const Entry& entry, const Offer& offer, Idle idle) {
  const Plan table{.action = Plan::Action::kTable, .rule = Rule::kSibling, .evict = {offer.lender}};
  Plan plan{.action = Plan::Action::kBorrow, .rule = Rule::kSibling, .lender = offer.lender, .evict = {}};
  if (!has_table(offer.lender)) {
    const bool wants_table = limits_.share == Share::kAlways && entry.of_class->members > 1;
    return wants_table && has_room_for_table(entry, {offer.lender}) ? table : plan;
  }
  if (offer.set_bytes == 0) return plan;
  // Sets are never freed, so a table is made anew before they take more memory than the executables may.
  const std::size_t sets = entries_[offer.lender].of_class->set_bytes + offer.set_bytes;
  if (sets / entry.facts.bytes >= limits_.max_executables) return table;
  plan.set_bytes = offer.set_bytes;
  return make_room(executables_, bytes_ + plan.set_bytes, idle, &plan) ? plan : Plan();
}

// Rule 3. A sibling's executable that would have to be evicted is brought over instead, or gives way to a table if the
// class has another one: the table serves both keys.
Plan Policy::evict(const Entry& entry, Idle idle) {
  Plan plan{.action = Plan::Action::kOwn, .rule = Rule::kEviction, .writes_slots = wants_slots(entry), .evict = {}};
  if (!make_room(executables_ + 1, bytes_ + entry.facts.bytes, idle, &plan)) return {};
  if (entry.family == nullptr) return plan;
  const KeyId loser = plan.evict.front();
  if (entries_[loser].kind != Kind::kPlain || entries_[loser].facts.signature != entry.facts.signature) return plan;
  const auto is_of_class = [&](KeyId key) {
    return entries_[key].of_class == entry.of_class && !is_device_updated(key);
  };
  const auto is_another = [&](KeyId key) { return key != loser && is_of_class(key); };
  if (limits_.share != Share::kNever && is_of_class(loser) && has_room_for_table(entry, plan.evict) &&
      find_oldest(is_another) != kNoKey) {
    return {.action = Plan::Action::kTable, .rule = Rule::kEviction, .evict = {loser}};
  }
  return {.action = Plan::Action::kBorrow, .rule = Rule::kEviction, .lender = loser, .evict = {}};
}

Plan Policy::plan(KeyId key, const Offer& offer, Idle idle) {
  const Entry& entry = entries_[key];
  const bool has_room = this->has_room(entry);
  if (can_lend(offer.lender) && (limits_.share == Share::kAlways || (!has_room && has_table(offer.lender)))) {
    Plan plan = borrow(entry, offer, idle);
    if (plan.action != Plan::Action::kDirect) return plan;
  }
  Plan plan{.action = Plan::Action::kOwn, .rule = Rule::kRoom, .writes_slots = wants_slots(entry), .evict = {}};
  if (!has_room) plan = evict(entry, idle);
  const bool forces_table = limits_.mechanisms.tables == Mechanisms::Tables::kAlways;
  if (forces_table && plan.action == Plan::Action::kOwn && has_room_for_table(entry, plan.evict)) {
    plan.action = Plan::Action::kTable;
  }
  return plan;
}

void Policy::hand_over(KeyId from, KeyId to) {
  const Kind kind = entries_[from].kind;
  set_kind(from, Kind::kNone);
  set_kind(to, kind);
}

void Policy::done(KeyId key, const Plan& plan) {
  for (const KeyId loser : plan.evict) lost(loser);
  if (plan.action == Plan::Action::kOwn) set_kind(key, plan.writes_slots ? Kind::kSlots : Kind::kPlain);
  if (plan.action == Plan::Action::kTable) {
    entries_[key].of_class->set_bytes = 0;
    set_kind(key, Kind::kTable);
  }
  if (plan.action == Plan::Action::kBorrow) {
    if (plan.set_bytes != 0) {
      entries_[plan.lender].of_class->set_bytes += plan.set_bytes;
      bytes_ += plan.set_bytes;
    }
    hand_over(plan.lender, key);
  }
}

}  // namespace graphcache
