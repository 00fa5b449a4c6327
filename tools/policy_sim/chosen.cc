#include "chosen.h"

#include <algorithm>

namespace graphcache {
namespace {

// What the driver takes of the device's memory, once a process, for executables that the device updates.
constexpr std::size_t kDriverBytes = 16'800'000;

// Graphs of fewer nodes cost less to instantiate than a few switches do: their keys never pay rent while there is room.
constexpr std::size_t kSmallGraph = 32;

// A smaller budget is for plain executables: those with an updater node are dear to evict where streams are busy.
constexpr std::size_t kLeastBudgetForSlots = 8;

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / std::max<std::size_t>(b, 1); }

}  // namespace

void Policy::link(KeyId key) {
  Entry& entry = entries_[key];
  Order& order = order_of(entry.kind);
  entry.newer = kNoKey;
  entry.older = order.newest;
  (order.newest != kNoKey ? entries_[order.newest].newer : order.oldest) = key;
  order.newest = key;
}

void Policy::unlink(KeyId key) {
  const Entry& entry = entries_[key];
  Order& order = order_of(entry.kind);
  (entry.newer != kNoKey ? entries_[entry.newer].older : order.newest) = entry.older;
  (entry.older != kNoKey ? entries_[entry.older].newer : order.oldest) = entry.newer;
}

void Policy::used(KeyId key) {
  if (key >= entries_.size()) entries_.resize(key + 1);
  Entry& entry = entries_[key];
  entry.last_use = ++uses_;
  if (entry.kind == Kind::kNone || entry.is_pinned || order_of(entry.kind).newest == key) return;
  unlink(key);
  link(key);
}

void Policy::join(Entry* entry) {
  entry->family = &families_[{entry->facts.signature, entry->facts.stream}];
  entry->of_class = &entry->family->classes[entry->facts.table_class];
  ++entry->of_class->members;
}

void Policy::leave(Entry* entry) {
  Family& family = *entry->family;
  if (--entry->of_class->members == 0) family.classes.erase(entry->facts.table_class);
  if (family.classes.empty()) families_.erase({entry->facts.signature, entry->facts.stream});
  entry->family = nullptr;
  entry->of_class = nullptr;
}

void Policy::captured(KeyId key, const GraphFacts& facts) {
  Entry& entry = entries_[key];
  entry.facts = facts;
  entry.rent = 0;
  ++keys_;
  join(&entry);
}

void Policy::moved(KeyId key, std::uint64_t stream) {
  Entry& entry = entries_[key];
  if (entry.facts.stream == stream) return;
  leave(&entry);
  entry.facts.stream = stream;
  join(&entry);
}

void Policy::forgotten(KeyId key) {
  leave(&entries_[key]);
  --keys_;
}

void Policy::pinned(KeyId key, bool pinned) {
  Entry& entry = entries_[key];
  if (entry.is_pinned == pinned) return;
  entry.is_pinned = pinned;
  if (entry.kind == Kind::kNone) return;
  if (!pinned) return link(key);
  unlink(key);
  if (entry.family->spare == key) entry.family->spare = kNoKey;
}

// What an executable counts against the budget: one, and with a parameter table one more for each executable's worth of
// memory that the table takes.
std::size_t Policy::units(const Entry& entry) const {
  if (entry.kind == Kind::kNone) return 0;
  return entry.kind == Kind::kTable ? units_of_table(entry, entry.of_class->set_bytes) : 1;
}

std::size_t Policy::units_of_table(const Entry& entry, std::size_t set_bytes) const {
  return 1 + divide_up(entry.facts.table_bytes + set_bytes, entry.facts.bytes);
}

std::size_t Policy::units_of_driver(const Entry& entry) const { return divide_up(kDriverBytes, entry.facts.bytes); }

// With a table, the cache takes no more memory than an executable a key does: the driver's part counts where the budget
// is large enough to hold it.
std::size_t Policy::room_beside_tables(const Entry& entry) const {
  if (tables_ == 0) return limits_.max_executables;
  const std::size_t most = std::min(limits_.max_executables, keys_);
  const std::size_t driver = units_of_driver(entry);
  return driver + 2 <= most ? most - driver : most;
}

void Policy::set_kind(KeyId key, Kind kind) {
  Entry& entry = entries_[key];
  const auto count = [&](int by) {
    units_ += by * units(entry);
    if (entry.kind == Kind::kNone) return;
    entry.of_class->executables += by;
    with_slots_ += entry.kind == Kind::kSlots ? by : 0;
    tables_ += entry.kind == Kind::kTable ? by : 0;
  };
  count(-1);
  if (entry.kind != Kind::kNone && !entry.is_pinned) unlink(key);
  if (entry.of_class->table == key) entry.of_class->table = kNoKey;
  if (entry.family->spare == key) entry.family->spare = kNoKey;
  entry.kind = kind;
  if (kind == Kind::kTable) entry.of_class->table = key;
  if (kind != Kind::kNone && !entry.is_pinned) link(key);
  count(+1);
}

// The least recently used plain executable, or, if there is none, one that the device updates: to destroy one of these
// waits for what other streams have in flight.
KeyId Policy::victim(const IdleFn& idle, const std::vector<KeyId>& except) const {
  for (const Order* order : {&plain_, &updated_}) {
    for (KeyId key = order->oldest; key != kNoKey; key = entries_[key].newer) {
      if (idle(key) && std::find(except.begin(), except.end(), key) == except.end()) return key;
    }
  }
  return kNoKey;
}

KeyId Policy::candidate(KeyId key, const IdleFn& idle) const {
  const Entry& entry = entries_[key];
  if (limits_.prefer == Prefer::kDeviceTime || entry.is_pinned) return kNoKey;
  if (entry.facts.table_class != 0 && can_lend(entry.of_class->table, idle)) return entry.of_class->table;
  const KeyId spare = entry.family->spare;
  return can_lend(spare, idle) ? spare : kNoKey;
}

Plan Policy::borrow(const Entry& entry, const Offer& offer) const {
  const Cost by_set = limits_.prefer == Prefer::kMemory ? 0 : costs::switch_row(entry.facts.nodes);
  const Kind kind = entries_[offer.lender].kind;
  Plan plan;
  plan.action = Plan::Action::kBorrow;
  plan.lender = offer.lender;
  plan.rent = kind == Kind::kTable ? by_set : kind == Kind::kSlots ? costs::buy(entry.facts.nodes) : offer.update;
  plan.set_bytes = kind == Kind::kTable && !offer.has_set ? entry.facts.set_bytes : 0;
  return plan;
}

// By rent or buy. Where there is no room, somebody loses an executable: only who has not used it for as long as this
// key has paid rent.
bool Policy::wants_own(const Entry& entry, Cost rent, const IdleFn& idle) const {
  const bool has_table = entry.of_class->table != kNoKey && entry.facts.table_class != 0;
  if (has_table && limits_.prefer == Prefer::kMemory) return false;
  const bool is_small = entry.facts.nodes < kSmallGraph;
  if (!is_small && entry.rent + rent <= costs::buy(entry.facts.nodes)) return false;
  if (units_ < room_beside_tables(entry)) return true;
  const KeyId loser = victim(idle, {});
  return loser != kNoKey && entries_[loser].kind == Kind::kPlain && entries_[loser].last_use < entry.rents_from;
}

// Where a parameter set costs less than an update. If the budget is full, the table takes the place of executables of
// its own class, so that no other family pays for it; if not, it has to save as much memory as the driver takes for it.
bool Policy::wants_table(const Entry& entry, const Plan& borrow) const {
  const Class& of_class = *entry.of_class;
  if (entry.facts.table_class == 0 || of_class.refuses_table || of_class.table != kNoKey) return false;
  if (of_class.members < 2) return false;
  if (limits_.prefer == Prefer::kMemory && !is_full()) return true;
  if (borrow.rent <= costs::switch_row(entry.facts.nodes)) return false;
  const std::size_t units = units_of_table(entry, 0);
  if (is_full()) return of_class.executables >= std::min(units + 1, limits_.max_executables);
  const std::size_t in_place = entries_[borrow.lender].kind == Kind::kPlain ? 1 : 0;
  if (units_ + units > keys_ + in_place) return false;
  return tables_ + with_slots_ != 0 || of_class.members >= units_of_driver(entry) + units;
}

// In no more than half of the budget.
bool Policy::may_write_slots(const Entry& entry) const {
  return entry.facts.has_many_slots && limits_.prefer == Prefer::kTotalTime &&
         limits_.max_executables >= kLeastBudgetForSlots && with_slots_ < limits_.max_executables / 2;
}

bool Policy::make_room(std::size_t units, std::size_t limit, std::vector<KeyId> except, const IdleFn& idle,
                       Plan* plan) const {
  std::size_t left = units_;
  for (const KeyId key : plan->evict) left -= this->units(entries_[key]);
  except.insert(except.end(), plan->evict.begin(), plan->evict.end());
  while (left + units > limit) {
    const KeyId key = victim(idle, except);
    if (key == kNoKey) return false;
    left -= this->units(entries_[key]);
    plan->evict.push_back(key);
    except.push_back(key);
  }
  return true;
}

// Makes room for the table to grow.
bool Policy::add_set(const Entry& entry, const IdleFn& idle, Plan* plan) const {
  const Entry& lender = entries_[plan->lender];
  const std::size_t grown = units_of_table(lender, entry.of_class->set_bytes + plan->set_bytes);
  return make_room(grown - units(lender), limits_.max_executables, {plan->lender}, idle, plan);
}

// A new table, with this key's set alone. It takes the place of what was lent so far; but an executable with slots is
// the lender's own.
Plan Policy::table_in_place_of(KeyId lender, const Entry& entry, const IdleFn& idle) const {
  Plan plan;
  plan.action = Plan::Action::kTable;
  if (entries_[lender].kind != Kind::kSlots) plan.evict.push_back(lender);
  return make_room(units_of_table(entry, 0), limits_.max_executables, {}, idle, &plan) ? plan : Plan();
}

// A new executable, or a sibling's that would have to leave for it.
Plan Policy::own(const Entry& entry, std::size_t limit, const IdleFn& idle) const {
  Plan plan;
  plan.action = Plan::Action::kOwn;
  plan.writes_slots = may_write_slots(entry);
  if (!make_room(1, limit, {}, idle, &plan)) return {};
  if (plan.evict.size() != 1) return plan;
  const Entry& loser = entries_[plan.evict.front()];
  if (loser.kind != Kind::kPlain || loser.facts.signature != entry.facts.signature) return plan;
  plan.action = Plan::Action::kBorrow;
  plan.lender = plan.evict.front();
  plan.evict.clear();
  return plan;
}

Plan Policy::plan(KeyId key, const Offer& offer, const IdleFn& idle) const {
  const Entry& entry = entries_[key];
  Plan plan = wish(entry, offer, idle);
  if (plan.action == Plan::Action::kDirect) plan = own(entry, limits_.max_executables, idle);
  return plan;
}

// What is best, if there is a place for it.
Plan Policy::wish(const Entry& entry, const Offer& offer, const IdleFn& idle) const {
  if (offer.lender == kNoKey) return {};
  Plan plan = borrow(entry, offer);
  if (wants_table(entry, plan)) return table_in_place_of(offer.lender, entry, idle);
  if (entries_[offer.lender].kind == Kind::kSlots) return {};
  if (wants_own(entry, plan.rent, idle)) return own(entry, std::max(room_beside_tables(entry), units_), idle);
  return plan.set_bytes == 0 || add_set(entry, idle, &plan) ? plan : table_in_place_of(offer.lender, entry, idle);
}

void Policy::done(KeyId key, const Plan& plan) {
  Entry& entry = entries_[key];
  for (const KeyId loser : plan.evict) set_kind(loser, Kind::kNone);
  bool is_spare = false;
  switch (plan.action) {
    case Plan::Action::kDirect:
      return;
    case Plan::Action::kOwn:
      is_spare = entry.family->spare == kNoKey;
      entry.rent = 0;
      set_kind(key, plan.writes_slots ? Kind::kSlots : Kind::kPlain);
      break;
    case Plan::Action::kTable:
      entry.of_class->set_bytes = 0;
      set_kind(key, Kind::kTable);
      break;
    case Plan::Action::kBorrow: {
      const KeyId spare = entry.family->spare;
      const Kind kind = entries_[plan.lender].kind;
      is_spare = kind == Kind::kPlain && (spare == plan.lender || spare == kNoKey);
      set_kind(plan.lender, Kind::kNone);
      entry.of_class->set_bytes += plan.set_bytes;
      if (entry.rent == 0) entry.rents_from = entry.last_use;
      entry.rent = plan.rent == 0 ? 0 : entry.rent + plan.rent;  // A loser's is the key's own.
      set_kind(key, kind);
      break;
    }
  }
  if (is_spare && !entry.is_pinned) entry.family->spare = key;
}

void Policy::refused(KeyId key, const Plan& plan) {
  Entry& entry = entries_[key];
  if (plan.action == Plan::Action::kTable) entry.of_class->refuses_table = true;
  if (plan.action != Plan::Action::kBorrow) return;
  leave(&entry);
  entry.facts.signature = ~refusals_++;
  join(&entry);
}

}  // namespace graphcache
