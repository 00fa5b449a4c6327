#include "run/index.h"

#include <memory>
#include <utility>

namespace graphcache {
namespace {

// True, with the entry's lock taken, if nobody uses it.
bool lock_if_idle(Entry* entry) ABSL_NO_THREAD_SAFETY_ANALYSIS { return entry->users == 0 && entry->lock.try_lock(); }

bool is_with_table(const Entry* entry, const Family* family, std::uint64_t row_class) {
  return entry->family == family && entry->table_bytes != 0 && entry->row_class == row_class;
}

}  // namespace

Index::~Index() {
  for_each([](Entry* entry) { delete entry; });
}

Entry* Index::insert(const Key& key, const detail::Site& site) {
  auto owned = std::make_unique<Entry>(key, site);
  table_.insert(owned.get());
  Entry* const entry = owned.release();
  link(order_of(entry), entry);
  count(entry, +1);
  return entry;
}

// What the entry counts for where it stands.
void Index::count(const Entry* entry, int by) {
  const auto plus = [by](std::size_t& number, std::size_t amount) { by > 0 ? number += amount : number -= amount; };
  if (entry->erased) plus(erased_of_[static_cast<std::size_t>(entry->state)], 1);
  if (entry->state == State::kCold && !entry->erased) plus(cold_key_bytes_, entry->key.size());
  if (entry->state != State::kLive) return;
  plus(live_bytes_, entry->device_bytes + entry->table_bytes);
  plus(updater_nodes_, entry->has_updater_node ? 1 : 0);
  if (entry->family == nullptr) return;
  plus(entry->family->executables, 1);
  plus(entry->family->classes.at(entry->row_class).executables, 1);
  if (by < 0 && entry->family->spare_of == entry) entry->family->spare_of = nullptr;
}

void Index::set_state(Entry* entry, State state) {
  if (entry->state == state) return;
  count(entry, -1);
  if (!entry->erased) unlink(order_of(entry), entry);
  entry->state = state;
  if (state != State::kLive) {
    entry->table_bytes = 0;
    entry->has_updater_node = false;
  }
  if (!entry->erased) insert_by_use(order_of(entry), entry);
  count(entry, +1);
}

void Index::set_table_bytes(Entry* entry, std::size_t bytes) {
  if (entry->state == State::kLive) live_bytes_ = live_bytes_ - entry->table_bytes + bytes;
  entry->table_bytes = bytes;
}

// Of a live entry.
void Index::set_updater_node(Entry* entry, bool has_updater_node) {
  updater_nodes_ = updater_nodes_ - (entry->has_updater_node ? 1 : 0) + (has_updater_node ? 1 : 0);
  entry->has_updater_node = has_updater_node;
}

const Entry* Index::victim() const {
  const Entry* oldest = nullptr;
  for (const Entry* entry = orders_[static_cast<std::size_t>(State::kLive)].oldest; entry != nullptr;
       entry = entry->newer) {
    if (entry->pinned) continue;
    if (!entry->has_updater_node) return entry;
    if (oldest == nullptr) oldest = entry;
  }
  return oldest;
}

template <class F>
Entry* Index::lock_oldest_of(State state, F&& wanted) {
  for (Entry* entry = orders_[static_cast<std::size_t>(state)].oldest; entry != nullptr; entry = entry->newer) {
    if (!entry->pinned && wanted(entry) && lock_if_idle(entry)) return entry;
  }
  return nullptr;
}

Entry* Index::lock_victim() {
  Entry* const victim = lock_oldest_of(State::kLive, [](const Entry* entry) { return !entry->has_updater_node; });
  return victim != nullptr ? victim : lock_oldest(State::kLive);
}

Entry* Index::lock_oldest(State state, const Family* family) {
  return lock_oldest_of(state, [family](const Entry* entry) { return family == nullptr || entry->family == family; });
}

Entry* Index::lock_table(const Family* family, std::uint64_t row_class) {
  return lock_oldest_of(State::kLive, [=](const Entry* entry) { return is_with_table(entry, family, row_class); });
}

Entry* Index::lock_lender(const Family* family) {
  if (family == nullptr || family->executables == 0) return nullptr;
  Entry* const spare_of = family->spare_of;
  if (spare_of == nullptr) return lock_oldest(State::kLive, family);
  return lock_if_idle(spare_of) ? spare_of : nullptr;
}

Entry* Index::lock_surplus() {
  const Order& cold = orders_[static_cast<std::size_t>(State::kCold)];
  if (cold.size <= kMaxColdEntries && cold_key_bytes_ <= kMaxColdKeyBytes) return nullptr;
  return lock_oldest_of(State::kCold, [&cold](const Entry* entry) { return entry != cold.newest; });
}

void Index::join(Entry* entry, const Signature& signature, std::uint64_t stream, std::uint64_t row_class) {
  Family* const family = families_.join(signature, stream, row_class, entry->split_from);  // May throw.
  count(entry, -1);
  entry->row_class = row_class;
  entry->family = family;
  count(entry, +1);
}

// To one that it was joined to.
void Index::change_family(Entry* entry, Family* family) {
  count(entry, -1);
  families_.leave(std::exchange(entry->family, family), entry->row_class);
  count(entry, +1);
}

void Index::split(Entry* entry) {
  if (entry->family == nullptr) return;
  const Family& last = *entry->family;
  Family* const family = families_.join(*last.signature, last.stream, entry->row_class, last.id);  // May throw.
  entry->split_from = last.id;
  change_family(entry, family);
}

void Index::move(Entry* entry, std::uint64_t stream) {
  if (entry->family == nullptr || entry->family->stream == stream) return;
  change_family(entry, families_.join(*entry->family->signature, stream, entry->row_class, entry->split_from));
}

void Index::leave(Entry* entry) {
  if (entry->family == nullptr) return;
  count(entry, -1);
  families_.leave(std::exchange(entry->family, nullptr), entry->row_class);
  count(entry, +1);
}

void Index::erase(Entry* entry) {
  if (entry->erased) return;
  table_.erase(entry);
  leave(entry);
  unlink(order_of(entry), entry);
  count(entry, -1);
  entry->erased = true;
  count(entry, +1);
  link(erased_, entry);
}

void Index::sweep(absl::FunctionRef<void(Entry&)> last_look) {
  for (Entry* next = erased_.oldest; next != nullptr;) {
    Entry* const entry = std::exchange(next, next->newer);
    if (!lock_if_idle(entry)) continue;
    last_look(*entry);
    count(entry, -1);
    unlink(erased_, entry);
    delete entry;  // Locked by us, waited for by nobody: waiters find an erased entry no more.
  }
}

Entry* Index::any() const {
  for (const Order& order : orders_) {
    if (order.newest != nullptr) return order.newest;
  }
  return nullptr;
}

void Index::link(Order& order, Entry* entry) {
  entry->newer = nullptr;
  entry->older = order.newest;
  (order.newest != nullptr ? order.newest->newer : order.oldest) = entry;
  order.newest = entry;
  ++order.size;
}

void Index::unlink(Order& order, Entry* entry) {
  (entry->newer != nullptr ? entry->newer->older : order.newest) = entry->older;
  (entry->older != nullptr ? entry->older->newer : order.oldest) = entry->newer;
  --order.size;
}

void Index::insert_by_use(Order& order, Entry* entry) {
  Entry* newer = nullptr;
  Entry* older = order.newest;
  while (older != nullptr && older->last_use > entry->last_use) newer = std::exchange(older, older->older);
  entry->newer = newer;
  entry->older = older;
  (newer != nullptr ? newer->older : order.newest) = entry;
  (older != nullptr ? older->newer : order.oldest) = entry;
  ++order.size;
}

void Index::move_to_front(Order& order, Entry* entry) {
  unlink(order, entry);
  link(order, entry);
}

}  // namespace graphcache
