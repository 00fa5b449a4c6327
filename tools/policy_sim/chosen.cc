#include "chosen.h"

#include <algorithm>
#include <utility>

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
  while (entry.older != kNoKey && entries_[entry.older].last_use > entry.last_use) {
    entry.newer = std::exchange(entry.older, entries_[entry.older].older);
  }
  (entry.newer != kNoKey ? entries_[entry.newer].older : order.newest) = key;
  (entry.older != kNoKey ? entries_[entry.older].newer : order.oldest) = key;
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

void Policy::lost(KeyId key) {
  if (entries_[key].kind != Kind::kNone) set_kind(key, Kind::kNone);
}

void Policy::erased(KeyId key) {
  lost(key);
  if (entries_[key].family != nullptr) forgotten(key);
  entries_[key] = {};
}

std::size_t Policy::bytes(const Entry& entry) const {
  if (entry.kind == Kind::kNone) return 0;
  return entry.kind == Kind::kTable ? bytes_of_table(entry, entry.of_class->set_bytes) : entry.facts.bytes;
}

std::size_t Policy::bytes_of_table(const Entry& entry, std::size_t set_bytes) const {
  return entry.facts.bytes + entry.facts.table_bytes + set_bytes;
}

// What so many bytes count against the budget: one for each executable's worth of memory that they begin.
std::size_t Policy::units(const Entry& entry, std::size_t bytes) const { return divide_up(bytes, entry.facts.bytes); }

bool Policy::fits(std::size_t taken, std::size_t bytes) const {
  return bytes <= limits_.max_device_bytes && taken <= limits_.max_device_bytes - bytes;
}

// Whether `max_device_bytes` allows a table with a set for each member. A smaller table would be made again and again.
bool Policy::has_room_for_table(const Entry& entry) const {
  return bytes_of_table(entry, (entry.of_class->members - 1) * entry.facts.set_bytes) <= limits_.max_device_bytes;
}

// With a table, the cache takes no more memory than an executable a key does: the driver's part counts where the budget
// is large enough to hold it.
std::size_t Policy::room_beside_tables(const Entry& entry) const {
  if (tables_ == 0) return limits_.max_executables;
  const std::size_t most = std::min(limits_.max_executables, keys_);
  const std::size_t driver = units(entry, kDriverBytes);
  return driver + 2 <= most ? most - driver : most;
}

void Policy::set_kind(KeyId key, Kind kind) {
  Entry& entry = entries_[key];
  const auto count = [&](int by) {
    bytes_ += by * bytes(entry);
    units_ += by * units(entry, bytes(entry));
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

// The executable that leaves next after this one, or first: the least recently used plain ones, then those that the
// device updates. To destroy one of these waits for what other streams have in flight.
KeyId Policy::next_victim(KeyId after, const IdleFn& idle) const {
  do {
    const bool is_plain = after == kNoKey || entries_[after].kind == Kind::kPlain;
    after = after == kNoKey ? plain_.oldest : entries_[after].newer;
    if (after == kNoKey && is_plain) after = updated_.oldest;
  } while (after != kNoKey && !idle(after));
  return after;
}

KeyId Policy::candidate(KeyId key, const IdleFn& idle) const {
  const Entry& entry = entries_[key];
  if (limits_.prefer == Prefer::kDeviceTime || entry.is_pinned) return kNoKey;
  const auto is_free = [&](KeyId lender) { return can_lend(lender) && idle(lender); };
  if (entry.facts.table_class != 0 && is_free(entry.of_class->table)) return entry.of_class->table;
  return is_free(entry.family->spare) ? entry.family->spare : kNoKey;
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
  if (has_room(entry, room_beside_tables(entry))) return true;
  const KeyId loser = victim(idle);
  return loser != kNoKey && entries_[loser].kind == Kind::kPlain && entries_[loser].last_use < entry.rents_from;
}

// Where a parameter set costs less than an update. If the budget is full, the table takes the place of executables of
// its own class, so that no other family pays for it; if not, it has to save as much memory as the driver takes for it.
bool Policy::wants_table(const Entry& entry, const Plan& borrow) const {
  const Class& of_class = *entry.of_class;
  if (entry.facts.table_class == 0 || of_class.refuses_table || of_class.table != kNoKey) return false;
  if (of_class.members < 2 || !has_room_for_table(entry)) return false;
  const bool is_full = !has_room(entry, limits_.max_executables);
  if (limits_.prefer == Prefer::kMemory && !is_full) return true;
  if (borrow.rent <= costs::switch_row(entry.facts.nodes)) return false;
  const std::size_t units = this->units(entry, bytes_of_table(entry, 0));
  if (is_full) return of_class.executables >= std::min(units + 1, limits_.max_executables);
  const std::size_t in_place = entries_[borrow.lender].kind == Kind::kPlain ? 1 : 0;
  if (units_ + units > keys_ + in_place) return false;
  return tables_ + with_slots_ != 0 || of_class.members >= this->units(entry, kDriverBytes) + units;
}

// In no more than half of the budget.
bool Policy::may_write_slots(const Entry& entry) const {
  return entry.facts.has_many_slots && !entry.refuses_slots && limits_.prefer == Prefer::kTotalTime &&
         limits_.max_executables >= kLeastBudgetForSlots && with_slots_ < limits_.max_executables / 2;
}

// Makes room for an executable of so many bytes for this key. It is the executable of `in_place_of`, or replaces it,
// unless that is kNoKey.
bool Policy::make_room(const Entry& entry, std::size_t bytes, std::size_t limit, KeyId in_place_of, const IdleFn& idle,
                       Plan* plan) const {
  std::size_t left = units_ + units(entry, bytes), left_bytes = bytes_;
  const auto leaves = [&](const Entry& loser) {
    left -= units(loser, this->bytes(loser));
    left_bytes -= this->bytes(loser);
  };
  if (in_place_of != kNoKey) leaves(entries_[in_place_of]);
  for (KeyId key = kNoKey; left > limit || !fits(left_bytes, bytes);) {
    key = next_victim(key, idle);
    if (key == kNoKey) return false;
    if (key == in_place_of) continue;
    leaves(entries_[key]);
    plan->evict.push_back(key);
  }
  return true;
}

// A new table, with this key's set alone. It takes the place of what was lent so far; but an executable with slots is
// the lender's own.
Plan Policy::table_in_place_of(KeyId lender, const Entry& entry, const IdleFn& idle) const {
  Plan plan;
  plan.action = Plan::Action::kTable;
  if (entries_[lender].kind == Kind::kSlots) lender = kNoKey;
  if (lender != kNoKey) plan.evict.push_back(lender);
  return make_room(entry, bytes_of_table(entry, 0), limits_.max_executables, lender, idle, &plan) ? plan : Plan();
}

// A new executable, or a sibling's that would have to leave for it.
Plan Policy::own(const Entry& entry, std::size_t limit, const IdleFn& idle) const {
  Plan plan;
  plan.action = Plan::Action::kOwn;
  plan.writes_slots = may_write_slots(entry);
  if (!make_room(entry, entry.facts.bytes, limit, kNoKey, idle, &plan)) return {};
  if (plan.evict.size() != 1) return plan;
  const Entry& loser = entries_[plan.evict.front()];
  if (loser.kind != Kind::kPlain || loser.facts.signature != entry.facts.signature) return plan;
  return {.action = Plan::Action::kBorrow, .lender = plan.evict.front(), .evict = {}};
}

Plan Policy::plan(KeyId key, const Offer& offer, const IdleFn& idle) const {
  const Entry& entry = entries_[key];
  Plan plan = wish(entry, offer, idle);
  if (plan.action == Plan::Action::kDirect) plan = own(entry, limits_.max_executables, idle);
  return plan;
}

// What is best, if there is a place for it.
Plan Policy::wish(const Entry& entry, const Offer& offer, const IdleFn& idle) const {
  if (!can_lend(offer.lender)) return {};  // It may have been pinned since it was asked for.
  Plan plan = borrow(entry, offer);
  if (wants_table(entry, plan)) return table_in_place_of(offer.lender, entry, idle);
  if (entries_[offer.lender].kind == Kind::kSlots) return {};
  if (wants_own(entry, plan.rent, idle)) return own(entry, std::max(room_beside_tables(entry), units_), idle);
  if (plan.set_bytes == 0) return plan;
  const std::size_t grown = bytes_of_table(entry, entry.of_class->set_bytes + plan.set_bytes);
  if (make_room(entry, grown, limits_.max_executables, offer.lender, idle, &plan)) return plan;
  return has_room_for_table(entry) ? table_in_place_of(offer.lender, entry, idle) : Plan();
}

// A plain executable is the spare of the receiver's family if it was that, or if this family has none.
void Policy::hand_over(KeyId from, KeyId to, std::size_t set_bytes) {
  const Entry& entry = entries_[to];
  const Kind kind = entries_[from].kind;
  const KeyId spare = entry.family->spare;
  set_kind(from, Kind::kNone);
  entry.of_class->set_bytes += set_bytes;
  set_kind(to, kind);
  if (kind == Kind::kPlain && (spare == from || spare == kNoKey) && !entry.is_pinned) entry.family->spare = to;
}

void Policy::done(KeyId key, const Plan& plan) {
  Entry& entry = entries_[key];
  for (const KeyId loser : plan.evict) set_kind(loser, Kind::kNone);
  switch (plan.action) {
    case Plan::Action::kDirect:
      break;
    case Plan::Action::kOwn:
      entry.rent = 0;
      set_kind(key, plan.writes_slots ? Kind::kSlots : Kind::kPlain);
      if (entry.family->spare == kNoKey && !entry.is_pinned) entry.family->spare = key;
      break;
    case Plan::Action::kTable:
      entry.of_class->set_bytes = 0;
      set_kind(key, Kind::kTable);
      break;
    case Plan::Action::kBorrow:
      if (entry.rent == 0) entry.rents_from = entry.last_use;
      entry.rent = plan.rent == 0 ? 0 : entry.rent + plan.rent;  // A loser's is the key's own.
      hand_over(plan.lender, key, plan.set_bytes);
      break;
  }
}

void Policy::undone(KeyId key, const Plan& plan) { hand_over(key, plan.lender, -plan.set_bytes); }

void Policy::refused(KeyId key, const Plan& plan) {
  Entry& entry = entries_[key];
  entry.refuses_slots |= plan.writes_slots;
  if (plan.action == Plan::Action::kTable) entry.of_class->refuses_table = true;
  if (plan.action != Plan::Action::kBorrow) return;
  leave(&entry);
  entry.facts.signature = ~refusals_++;
  join(&entry);
}

}  // namespace graphcache
