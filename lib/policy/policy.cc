#include "policy/policy.h"

#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <utility>

namespace graphcache {
namespace {

// Device memory that the driver takes once a process for device-updated executables.
constexpr std::size_t kDriverBytes = 16'800'000;

// A graph with fewer nodes costs less to instantiate than a few switches do, so its key pays no rent while there is
// room.
constexpr std::size_t kSmallGraph = 32;

// The number of other keys' graphs that one run reads, beside its own.
constexpr std::size_t kReadsAtOnce = 8;

// A smaller budget is for plain executables, because evicting one with an updater node is expensive on busy streams.
constexpr std::size_t kLeastBudgetForSlots = 8;

// The number of sets after which a table has repaid its cost, and by which it may exceed twice its class's members.
constexpr std::size_t kManySets = 64;

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / std::max<std::size_t>(b, 1); }

}  // namespace

void Policy::link(KeyId key) {
  Entry& entry = entries_[key];
  Order& order = order_of(entry.kind);
  entry.newer = kNoKey;
  entry.older = order.newest;
  for (int i = 0; i < kMostPassed && entry.older != kNoKey && entries_[entry.older].last_use > entry.last_use; ++i) {
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

void Policy::used(KeyId key, const Use& use) {
  add(key);
  Entry& entry = entries_[key];
  entry.last_use = std::max(entry.last_use, use);  // Between two runs that are not hits, each thread has its own count.
  latest_ = std::max(latest_, use);
  if (entry.kind == Kind::kNone || entry.is_pinned || order_of(entry.kind).newest == key) return;
  unlink(key);
  link(key);
}

void Policy::join(Entry* entry, const GraphFacts& facts) {
  const auto [at, is_new] = families_.try_emplace(family_of(facts));
  Family& family = at->second;
  absl::Cleanup threw = [&, is_new = is_new, at = at] {
    if (is_new) families_.erase(at);
  };
  Class& of_class = family.classes[facts.table_class];
  std::move(threw).Cancel();
  if (is_new && !is_alone(facts)) {
    family.number = ++last_family_;
    ++families_with_siblings_;
  }
  ++of_class.members;
  entry->family = &family;
  entry->of_class = &of_class;
}

void Policy::leave(const GraphFacts& facts, Family* family) {
  const auto of_class = family->classes.find(facts.table_class);
  if (--of_class->second.members == 0) family->classes.erase(of_class);
  if (!family->classes.empty()) return;
  families_with_siblings_ -= is_alone(facts) ? 0 : 1;
  families_.erase(family_of(facts));
}

// The facts as the policy uses them.
GraphFacts Policy::known(GraphFacts facts) {
  if (!separates_streams(limits_.mechanisms)) facts.stream = 0;
  if (facts.signature == 0 || !shares()) {
    facts.signature = ++last_alone_;
    facts.table_class = 0;
  }
  return facts;
}

void Policy::captured(KeyId key, const GraphFacts& facts) {
  Entry& entry = entries_[key];
  const GraphFacts known = this->known(facts);
  const auto [at, is_new] = shapes_.try_emplace(facts.shape);  // May throw.
  absl::Cleanup threw = [&, is_new = is_new, at = at] {
    if (is_new) shapes_.erase(at);
  };
  Shape& shape = at->second;
  if (facts.signature == 0) shape.unread.insert(key);  // May throw.
  absl::Cleanup unread = [&] { shape.unread.erase(key); };
  join(&entry, known);  // May throw.
  std::move(unread).Cancel();
  std::move(threw).Cancel();
  entry.facts = known;
  entry.rent = 0;
  entry.shape = &shape;
  ++shape.keys;
  ++keys_;
}

void Policy::rejoin(KeyId key, const GraphFacts& facts) {
  Entry& entry = entries_[key];
  Family* const former = entry.family;
  Class* const former_class = entry.of_class;
  const GraphFacts known = this->known(facts);
  join(&entry, known);  // May throw.
  if (is_live(key)) {
    --former_class->executables;
    ++entry.of_class->executables;
    if (former->shared == key) former->shared = kNoKey;
    if (entry.family->shared == kNoKey && !entry.is_pinned) entry.family->shared = key;
  }
  leave(entry.facts, former);
  entry.facts = known;
}

void Policy::described(KeyId key, const GraphFacts& facts) {
  Entry& entry = entries_[key];
  GraphFacts of_key = facts;
  of_key.stream = entry.facts.stream;
  of_key.shape = entry.facts.shape;
  rejoin(key, of_key);
  entry.shape->unread.erase(key);
}

void Policy::moved(KeyId key, std::uint64_t stream) {
  GraphFacts facts = entries_[key].facts;
  if (!separates_streams(limits_.mechanisms) || facts.stream == stream) return;
  facts.stream = stream;
  if (is_alone(facts)) {
    entries_[key].facts = facts;
  } else {
    rejoin(key, facts);
  }
}

void Policy::forgotten(KeyId key) {
  Entry& entry = entries_[key];
  leave(entry.facts, std::exchange(entry.family, nullptr));
  entry.of_class = nullptr;
  Shape* const shape = std::exchange(entry.shape, nullptr);
  shape->unread.erase(key);
  if (--shape->keys == 0) shapes_.erase(entry.facts.shape);
  --keys_;
}

void Policy::pinned(KeyId key, bool pinned) {
  Entry& entry = entries_[key];
  if (entry.is_pinned == pinned) return;
  entry.is_pinned = pinned;
  if (entry.kind == Kind::kNone) return;
  pinned ? withdraw(key) : offer(key);
}

void Policy::lost(KeyId key) {
  if (is_live(key)) set_kind(key, Kind::kNone);
}

void Policy::erased(KeyId key) {
  lost(key);
  if (entries_[key].family != nullptr) forgotten(key);
  entries_[key] = {};
}

void Policy::refuse_siblings(KeyId key) {
  GraphFacts facts = entries_[key].facts;
  facts.signature = 0;
  rejoin(key, facts);
}

void Policy::refuse_sets(KeyId key) {
  GraphFacts facts = entries_[key].facts;
  facts.table_class = 0;
  rejoin(key, facts);
}

void Policy::refuse_table(KeyId key) {
  entries_[key].of_class->refuses_table = true;
  if (has_table(key)) set_kind(key, Kind::kPlain);
}

void Policy::refuse_slots(KeyId key) {
  entries_[key].refuses_slots = true;
  if (entries_[key].kind == Kind::kSlots) set_kind(key, Kind::kPlain);
}

std::uint64_t Policy::family(KeyId key) const {
  const Family* const family = entries_[key].family;
  return family == nullptr ? 0 : family->number;
}

std::size_t Policy::bytes(const Entry& entry) const {
  if (entry.kind == Kind::kNone) return 0;
  return entry.kind == Kind::kTable ? bytes_of_table(entry, entry.of_class->set_bytes) : entry.facts.bytes;
}

std::size_t Policy::bytes_of_table(const Entry& entry, std::size_t set_bytes) const {
  return entry.facts.bytes + entry.facts.table_bytes + set_bytes;
}

// What this much memory counts against the budget: one for each executable's worth of memory, rounded up. A forced
// table counts one.
std::size_t Policy::units(const Entry& entry, std::size_t bytes) const {
  return always_has_table() ? 1 : divide_up(bytes, entry.facts.bytes);
}

bool Policy::fits(std::size_t taken, std::size_t bytes) const {
  return bytes <= limits_.max_device_bytes && taken <= limits_.max_device_bytes - bytes;
}

// A small graph gets its own executable while there is room, so its key needs no siblings until then, except under
// Prefer::kMemory.
std::vector<KeyId> Policy::to_read(KeyId key) const {
  const Entry& entry = entries_[key];
  const Shape& shape = *entry.shape;
  if (!shares() || !shape.unread.contains(key)) return {};
  const bool waits = !lends_to_rent() || (is_small(entry) && limits_.prefer == Prefer::kTotalTime);
  if (!always_has_table() && (shape.keys == 1 || (waits && has_room(entry, room_beside_tables(entry))))) return {};
  std::vector<KeyId> keys;
  for (const KeyId other : shape.unread) {
    if (keys.size() == kReadsAtOnce) break;
    if (other != key) keys.push_back(other);
  }
  keys.push_back(key);
  return keys;
}

bool Policy::is_small(const Entry& entry) const {
  return entry.facts.nodes < kSmallGraph && limits_.mechanisms.sharing == detail::Sharing::kAuto;
}

bool Policy::has_room(KeyId key, const View& view) {
  const Entry& entry = entries_[key];  // Facts of the key's last capture.
  return entry.facts.bytes <= limits_.max_device_bytes && (has_place(entry) || victim(view) != kNoKey);
}

bool Policy::has_to_borrow(KeyId key) const {
  const Entry& entry = entries_[key];
  return shares_one() && (entry.of_class->table != kNoKey || entry.family->shared != kNoKey);
}

// Whether the limits allow a table with a set for each member, or with kManySets. A smaller table would be made again
// and again.
bool Policy::has_room_for_table(const Entry& entry) const {
  const std::size_t sets = std::min(entry.of_class->members - 1, kManySets);
  const std::size_t bytes = bytes_of_table(entry, sets * entry.facts.set_bytes);
  return bytes <= limits_.max_device_bytes && units(entry, bytes) <= limits_.max_executables;
}

// Limits a cache with tables to one executable per key. The driver's memory is included if the budget is large enough
// to hold it.
std::size_t Policy::room_beside_tables(const Entry& entry) const {
  if (tables_ == 0) return limits_.max_executables;
  const std::size_t most = std::min(limits_.max_executables, keys_);
  const std::size_t driver = units(entry, kDriverBytes);
  return driver + 2 <= most ? most - driver : most;
}

void Policy::set_kind(KeyId key, Kind kind) {
  Entry& entry = entries_[key];
  const auto count = [&](std::size_t by) {
    if (entry.kind == Kind::kNone) return;
    executables_ += by;
    bytes_ += by * bytes(entry);
    units_ += by * units(entry, bytes(entry));
    entry.of_class->executables += by;
    with_slots_ += entry.kind == Kind::kSlots ? by : 0;
    tables_ += entry.kind == Kind::kTable ? by : 0;
  };
  count(std::size_t{0} - 1);
  if (entry.kind != Kind::kNone && !entry.is_pinned) withdraw(key);
  if (entry.of_class->table == key) entry.of_class->table = kNoKey;
  entry.kind = kind;
  if (kind == Kind::kTable) entry.of_class->table = key;
  if (kind != Kind::kNone && !entry.is_pinned) offer(key);
  count(+1);
}

// The key's executable may now be evicted. It becomes the shared one of its family if the family has none.
void Policy::offer(KeyId key) {
  link(key);
  KeyId& shared = entries_[key].family->shared;
  if (shared == kNoKey && !has_table(key)) shared = key;
}

void Policy::withdraw(KeyId key) {
  unlink(key);
  KeyId& shared = entries_[key].family->shared;
  if (shared == key) shared = kNoKey;
}

// The executable to evict after this one, or the first one. Plain ones come first, least recently used first.
// Device-updated ones follow, because destroying one waits for work that other streams have in flight.
KeyId Policy::next_victim(KeyId after, const View& view) {
  int moves = 0;
  do {
    after = oldest(after, view, &moves);
  } while (after != kNoKey && !view.idle(after));
  return after;
}

// The next executable in that order. Executables that hits have used since are first moved to their places.
KeyId Policy::oldest(KeyId after, const View& view, int* moves) {
  for (;;) {
    const bool is_plain = after == kNoKey || entries_[after].kind == Kind::kPlain;
    KeyId key = after == kNoKey ? plain_.oldest : entries_[after].newer;
    if (key == kNoKey && is_plain) key = updated_.oldest;
    if (key == kNoKey || *moves == kMostPassed) return key;
    const Use use = view.last_use(key);
    if (use <= entries_[key].last_use) return key;
    ++*moves;
    unlink(key);
    entries_[key].last_use = use;
    link(key);
  }
}

KeyId Policy::candidate(KeyId key, const View& view) const {
  const Entry& entry = entries_[key];
  if (entry.is_pinned || !lends_to_rent()) return kNoKey;
  const auto is_free = [&](KeyId lender) { return can_lend(lender) && view.idle(lender); };
  if (is_free(entry.of_class->table)) return entry.of_class->table;
  const KeyId shared = entry.family->shared;
  const bool can_have = entry.facts.table_class != 0 || shared == kNoKey || entries_[shared].kind == Kind::kPlain;
  return can_have && is_free(shared) ? shared : kNoKey;
}

Plan Policy::borrow(const Entry& entry, const Offer& offer) const {
  const Cost by_set = limits_.prefer == Prefer::kMemory ? 0 : costs::switch_set(entry.facts.nodes);
  const Kind kind = entries_[offer.lender].kind;
  Plan plan;
  plan.action = Plan::Action::kBorrow;
  plan.lender = offer.lender;
  plan.rent = kind == Kind::kTable ? by_set : kind == Kind::kSlots ? costs::buy(entry.facts.nodes) : offer.update;
  plan.adds_set = kind == Kind::kTable && !offer.has_set;
  plan.set_bytes = plan.adds_set ? offer.set_bytes : 0;
  return plan;
}

// Whether the key should get an executable of its own, by the ski-rental rule. If there is no room, it evicts another
// key only if that key has not run since this key began to pay rent.
bool Policy::wants_own(const Entry& entry, Cost rent, const View& view) {
  if (shares_one()) return false;
  if (entry.of_class->table != kNoKey && limits_.prefer == Prefer::kMemory) return false;
  if (!is_small(entry) && !should_buy(entry.rent, rent, costs::buy(entry.facts.nodes))) return false;
  if (has_room(entry, room_beside_tables(entry))) return true;
  const KeyId loser = victim(view);
  return loser != kNoKey && entries_[loser].kind == Kind::kPlain && entries_[loser].last_use < entry.rents_from;
}

bool Policy::may_have_table(const Entry& entry) const {
  const Class& of_class = *entry.of_class;
  return entry.facts.table_class != 0 && !of_class.refuses_table && of_class.table == kNoKey && !entry.is_pinned &&
         has_room_for_table(entry);
}

// Whether the class gets a table: a parameter set must cost less than an update. If the budget is full, the table
// replaces executables of its own class, so that no other family pays for it. Otherwise it must save as much memory as
// the driver takes for it.
bool Policy::wants_table(const Entry& entry, const Plan& borrow) const {
  const Class& of_class = *entry.of_class;
  if (limits_.mechanisms.sharing != detail::Sharing::kAuto) return false;
  if (of_class.members < 2 || !may_have_table(entry)) return false;
  const bool is_full = !has_room(entry, limits_.max_executables);
  if (limits_.prefer == Prefer::kMemory && !is_full) return true;
  if (borrow.rent <= costs::switch_set(entry.facts.nodes)) return false;
  const std::size_t units = this->units(entry, bytes_of_table(entry, 0));
  if (is_full) return of_class.executables >= std::min(units + 1, limits_.max_executables);
  const std::size_t in_place = entries_[borrow.lender].kind == Kind::kPlain ? 1 : 0;
  if (units_ + units > keys_ + in_place) return false;
  return tables_ + with_slots_ != 0 || of_class.members >= this->units(entry, kDriverBytes) + units;
}

// Whether patching the nodes would cost the host more than an updater node costs the device. At most half of the budget
// may have updater nodes for slots.
bool Policy::may_write_slots(const Entry& entry) const {
  const detail::Patching patching = limits_.mechanisms.patching;
  if (entry.refuses_slots || entry.facts.slot_kernels == 0 || patching == detail::Patching::kPerNode) return false;
  if (patching == detail::Patching::kDeviceUpdated) return true;
  return limits_.prefer == Prefer::kTotalTime && costs::is_updater_node_cheaper(entry.facts.slot_kernels) &&
         limits_.max_executables >= kLeastBudgetForSlots && with_slots_ < limits_.max_executables / 2;
}

// Makes room for an executable of this key with this many bytes. If `in_place_of` is not kNoKey, the executable is that
// key's or replaces it.
bool Policy::make_room(const Entry& entry, std::size_t bytes, std::size_t limit, KeyId in_place_of, const View& view,
                       Plan* plan) {
  std::size_t left = units_ + units(entry, bytes), left_bytes = bytes_;
  const auto leaves = [&](const Entry& loser) {
    left -= units(loser, this->bytes(loser));
    left_bytes -= this->bytes(loser);
  };
  if (in_place_of != kNoKey) leaves(entries_[in_place_of]);
  for (KeyId key = kNoKey; left > limit || !fits(left_bytes, bytes);) {
    key = next_victim(key, view);
    if (key == kNoKey) return false;
    if (key == in_place_of) continue;
    leaves(entries_[key]);
    plan->evict.push_back(key);
  }
  return true;
}

// A new table, with only this key's set. It replaces the executable that was lent so far, unless that has slots, and
// other plain executables of its class. A forced table may replace any executable.
Plan Policy::table(KeyId in_place_of, const Entry& entry, const View& view) {
  Plan plan;
  plan.action = Plan::Action::kTable;
  if (in_place_of != kNoKey && entries_[in_place_of].kind == Kind::kSlots) in_place_of = kNoKey;
  if (in_place_of != kNoKey) plan.evict.push_back(in_place_of);
  const auto may_leave = [&](KeyId key) {
    const Entry& other = entries_[key];
    return view.idle(key) && (always_has_table() || (other.of_class == entry.of_class && other.kind == Kind::kPlain));
  };
  const std::size_t bytes = bytes_of_table(entry, 0);
  return make_room(entry, bytes, limits_.max_executables, in_place_of, {may_leave, view.last_use}, &plan) ? plan
                                                                                                          : Plan();
}

// A new executable; or that of a sibling, if it would have to be evicted for this.
Plan Policy::own(const Entry& entry, std::size_t limit, const View& view) {
  Plan plan;
  plan.action = Plan::Action::kOwn;
  plan.writes_slots = may_write_slots(entry);
  if (!make_room(entry, entry.facts.bytes, limit, kNoKey, view, &plan)) return {};
  if (plan.evict.size() != 1) return plan;
  const Entry& loser = entries_[plan.evict.front()];
  if (loser.kind != Kind::kPlain || loser.facts.signature != entry.facts.signature) return plan;
  return {.action = Plan::Action::kBorrow, .lender = plan.evict.front(), .evict = {}};
}

// If nothing can be evicted because everything is pinned or in use, only the number of executables counts, because a
// direct run is worse than more memory.
Plan Policy::beyond_units(const Entry& entry) const {
  Plan plan;
  if (has_place(entry)) plan.action = Plan::Action::kOwn;
  return plan;
}

Plan Policy::plan(KeyId key, const Offer& offer, const View& view) {
  Plan plan = wish_or_own(key, offer, view);
  return plan.action == Plan::Action::kDirect ? beyond_units(entries_[key]) : plan;
}

Plan Policy::plan_ahead(KeyId key) {
  return wish_or_own(key, {}, [](KeyId) { return false; });
}

Plan Policy::wish_or_own(KeyId key, const Offer& offer, const View& view) {
  const Entry& entry = entries_[key];
  Plan plan = wish(entry, offer, view);
  return plan.action == Plan::Action::kDirect ? own(entry, limits_.max_executables, view) : plan;
}

// The preferred plan if there is room for it.
Plan Policy::wish(const Entry& entry, const Offer& offer, const View& view) {
  if (always_has_table() && may_have_table(entry)) return table(kNoKey, entry, view);
  if (!can_lend(offer.lender)) return {};  // It may have been pinned since it was offered.
  Plan plan = borrow(entry, offer);
  if (wants_table(entry, plan)) {
    Plan made = table(offer.lender, entry, view);
    if (made.action != Plan::Action::kDirect) return made;
  }
  if (entries_[offer.lender].kind == Kind::kSlots) return {};
  if (wants_own(entry, plan.rent, view)) {
    const std::size_t limit = std::min(std::max(room_beside_tables(entry), units_), limits_.max_executables);
    Plan made = own(entry, limit, view);
    if (made.action != Plan::Action::kDirect) return made;
  }
  if (plan.set_bytes == 0) return plan;
  const Class& of_class = *entry.of_class;
  const std::size_t grown = bytes_of_table(entry, of_class.set_bytes + plan.set_bytes);
  // Sets of former members are never freed. So a table that has many of them, or no room to grow, is made anew. But if
  // it has none of them and has not served for long, the new table would soon have no room again.
  const bool has_many = of_class.sets >= 2 * of_class.members + kManySets;
  if (!has_many && make_room(entry, grown, limits_.max_executables, offer.lender, view, &plan)) return plan;
  const bool has_some = of_class.sets + 1 >= of_class.members;  // The base has a set, and this key has none.
  const bool has_served = of_class.sets >= kManySets;
  return (has_some || has_served) && has_room_for_table(entry) ? table(offer.lender, entry, view) : Plan();
}

void Policy::hand_over(KeyId from, KeyId to, std::size_t sets, std::size_t set_bytes) {
  const Kind kind = entries_[from].kind;
  set_kind(from, Kind::kNone);
  entries_[to].of_class->sets += sets;
  entries_[to].of_class->set_bytes += set_bytes;
  set_kind(to, kind);
}

void Policy::done(KeyId key, const Plan& plan) {
  Entry& entry = entries_[key];
  for (const KeyId loser : plan.evict) lost(loser);
  switch (plan.action) {
    case Plan::Action::kDirect:
      break;
    case Plan::Action::kOwn:
      entry.rent = 0;
      set_kind(key, plan.writes_slots ? Kind::kSlots : Kind::kPlain);
      break;
    case Plan::Action::kTable:
      entry.of_class->sets = entry.of_class->set_bytes = 0;
      set_kind(key, Kind::kTable);
      break;
    case Plan::Action::kBorrow:
      if (entry.rent == 0 || should_buy(entry.rent, 0, costs::buy(entry.facts.nodes))) {
        entry.rent = 0;
        entry.rents_from = entry.last_use;
      }
      // An evicted sibling's executable is the key's own now.
      entry.rent = plan.rent == 0 ? 0 : entry.rent + plan.rent;
      hand_over(plan.lender, key, plan.adds_set ? 1 : 0, plan.set_bytes);
      break;
  }
}

void Policy::undone(KeyId key, const Plan& plan) { hand_over(key, plan.lender); }

}  // namespace graphcache
