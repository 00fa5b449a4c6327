#include "store/store.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace graphcache {

// The entries that the policy considers for eviction or borrowing. Each is locked, if it is idle, when the policy first
// queries that, and stays locked until the end of the scope, so that no hit begins to use it. Used within the scope of
// the store's lock.
class Store::Locked {
 public:
  // `held` is an entry that this thread has locked already.
  Locked(Store& store, const Entry* held) : store_(store), held_(held) {}
  ~Locked() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& [entry, is_locked] : seen_) {
      if (is_locked && entry->lock.unlock()) store_.unlocked_.notify_all();
    }
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  bool try_lock(KeyId id) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Entry* const entry = store_.index_.of(id);
    if (entry == held_) return true;
    const auto is_it = [&](const auto& seen) { return seen.first == entry; };
    if (const auto seen = std::find_if(seen_.begin(), seen_.end(), is_it); seen != seen_.end()) return seen->second;
    seen_.emplace_back(entry, false);
    return seen_.back().second = entry->lock.try_lock();
  }
  // Passes the lock of an entry to the caller, unless the caller has held it all along.
  Entry* give(Entry* entry) {
    for (auto& [one, is_locked] : seen_) is_locked = is_locked && one != entry;
    return entry;
  }

 private:
  Store& store_;
  const Entry* const held_;
  absl::InlinedVector<std::pair<Entry*, bool>, 8> seen_;  // And whether this holds its lock.
};

Entry* Store::find_free(const Key& key, const detail::Site& site) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  constexpr int kMostMet = 8;  // Other threads may change the chain meanwhile.
  const std::size_t tag = Entry::tag_of(key, site);
  Entry* entry = index_.chain(key.hash());
  for (int i = 0; i < kMostMet && entry != nullptr; ++i, entry = EntryTable::next(entry)) {
    if (entry->tag.load(std::memory_order_relaxed) != tag) continue;
    entry->prefetch();
    if (!entry->lock.try_lock()) continue;
    if (!entry->erased.load(std::memory_order_relaxed) && entry->key == key && entry->site == site) return entry;
    if (unlock(entry)) return nullptr;  // The run that goes on takes what is gone.
  }
  return nullptr;
}

Entry* Store::find_or_insert(const Key& key, const detail::Site& site) {
  if (Entry* const known = index_.find(key, site); known != nullptr) return known;
  if (site.identity != 0 && site.identity != kManyIdentities) {
    int others = 0;
    for (const Entry* entry = index_.find(key); entry != nullptr; entry = Index::next_of_key(entry)) {
      others += entry->site.is_like(site) ? 1 : 0;
    }
    if (others >= kMostIdentities) {
      detail::Site many = site;
      many.identity = kManyIdentities;
      return find_or_insert(key, many);
    }
  }
  sweep();
  policy_.add(index_.next_id());
  return index_.insert(key, site);
}

Entry* Store::claim(const Key& key, const detail::Site& site, unsigned thread) {
  MutexLock lock(mutex_);
  for (;;) {
    Entry* const entry = find_or_insert(key, site);
    if (entry->holder == thread) return nullptr;
    if (lock_or_wait(entry)) return entry;
  }
}

// Returns false after a wait, in which the entry may have been erased.
bool Store::lock_or_wait(Entry* entry) {
  if (entry->lock.try_lock()) return true;
  entry->lock.announce_wait();
  if (entry->lock.try_lock()) return true;
  // The holder may have unlocked just before it could see the announced wait.
  unlocked_.wait_for(mutex_, std::chrono::milliseconds(1));
  return false;
}

absl::Status Store::claim(std::uint64_t number, Entry** locked, std::uint64_t* family) {
  constexpr std::chrono::milliseconds kMost(100);
  const auto end = std::chrono::steady_clock::now() + kMost;
  MutexLock lock(mutex_);
  do {
    Entry* const entry = index_.of_number(number);
    if (entry == nullptr) return absl::NotFoundError(absl::StrCat("the cache has no entry ", number));
    if (entry->state == State::kCold) return absl::NotFoundError("the entry has no graph");
    if (lock_or_wait(entry)) {
      *locked = entry;
      *family = policy_.family(entry->id);
      return absl::OkStatus();
    }
  } while (std::chrono::steady_clock::now() < end);
  return absl::UnavailableError("the entry is in use by a run");
}

std::uint64_t Store::latest(const Key& key) const {
  MutexLock lock(mutex_);
  const auto rank = [](const Entry* entry) { return std::pair(entry->state != State::kCold, entry->last_use()); };
  const Entry* latest = nullptr;
  for (const Entry* entry = index_.find(key); entry != nullptr; entry = Index::next_of_key(entry)) {
    if (latest == nullptr || rank(latest) < rank(entry)) latest = entry;
  }
  return latest == nullptr ? 0 : latest->number();
}

// Makes all waiters look again, each for its own entry.
void Store::wake() {
  {
    MutexLock lock(mutex_);
    sweep();
  }
  unlocked_.notify_all();
}

void Store::recycle(Entry* gone) {
  MutexLock lock(mutex_);
  index_.recycle(gone);
}

bool Store::begin(Entry* locked, bool captures) {
  MutexLock lock(mutex_);
  index_.touch(locked);
  policy_.used(locked->id, locked->last_use());
  epoch_.store(epoch_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if ((locked->graphs != nullptr && !captures) || locked->retry.left > 0) return true;
  sweep();
  // Nothing is evicted for this, because the capture may still fail.
  const auto is_idle = [&](KeyId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return index_.of(id)->lock.is_free(); };
  return policy_.has_room(locked->id, is_idle);
}

void Store::captured(Entry* locked, const GraphFacts& facts, std::size_t nodes, std::size_t slot_nodes,
                     std::vector<ValueInfo> values) {
  MutexLock lock(mutex_);
  if (locked->state == State::kCold) {
    policy_.captured(locked->id, facts);
    index_.set_state(locked, State::kRecorded);
    has_surplus_ = index_.templates() > max_templates_;
  } else {
    locked->info.template_lost = Loss::kValues;
    count(&Stats::forgotten);
  }
  locked->info.values = std::move(values);
  locked->info.nodes = nodes;
  locked->info.slot_nodes = slot_nodes;
  locked->error = absl::OkStatus();
  locked->broke = false;
  count(&Stats::captures);
}

void Store::capture_failed(Entry* locked, absl::Status why, bool broke) {
  MutexLock lock(mutex_);
  locked->error = std::move(why);
  locked->broke = locked->broke || broke;
}

// Launches of one executable follow each other (fact 15), so an executable shared by keys of several streams would keep
// these from running concurrently.
Store::ToRead Store::join_family(Entry* locked, std::uint64_t stream) {
  MutexLock lock(mutex_);
  if (locked->erased) return {};  // Other keys cannot get what an erased entry gets.
  policy_.moved(locked->id, stream);
  const Policy::ToRead to_read = policy_.to_read(locked->id);
  Entry* const other = to_read.other == kNoKey ? nullptr : index_.of(to_read.other);
  return {to_read.itself, other != nullptr && other->lock.try_lock() ? other : nullptr};
}

void Store::described(Entry* locked, GraphFacts facts, const std::optional<std::string>& signature) {
  MutexLock lock(mutex_);
  if (signature) {
    locked->signature = &*signatures_.try_emplace(*signature).first;
    ++locked->signature->second;
    facts.signature = reinterpret_cast<std::uintptr_t>(locked->signature);  // A number that no other one has.
  }
  absl::Cleanup threw = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { forget_signature(locked); };
  policy_.described(locked->id, facts);
  std::move(threw).Cancel();
}

Store::Decision Store::decide(Entry* entry, Entry* lender, std::size_t set_bytes, bool may_evict) {
  MutexLock lock(mutex_);
  sweep();
  Locked locked(*this, lender);
  const auto lock_idle = [&](KeyId id) { return locked.try_lock(id); };
  const auto lock_victim = [&](KeyId id) { return may_evict && locked.try_lock(id); };
  Decision made{std::nullopt, lender, {}};
  if (lender == nullptr) {
    const KeyId found = policy_.candidate(entry->id, lock_idle);
    if (found != kNoKey) {
      made.lender = locked.give(index_.of(found));
      return made;
    }
  }
  const Offer offer{lender == nullptr ? kNoKey : lender->id, set_bytes};
  const Plan& plan = made.plan.emplace(policy_.plan(entry->id, offer, lock_victim));
  made.victims.reserve(plan.evict.size());  // Nothing below throws.
  policy_.done(entry->id, plan);
  for (const KeyId id : plan.evict) {
    made.victims.push_back(locked.give(index_.of(id)));
    count_eviction(made.victims.back());
  }
  if (plan.action == Plan::Action::kBorrow) {
    made.lender = locked.give(index_.of(plan.lender));
    index_.set_state(made.lender, State::kRecorded);
    made.lender->info.executable_lost = Loss::kLent;
  }
  if (plan.action == Plan::Action::kDirect) return made;
  entry->info.rule = plan.rule;
  index_.set_state(entry, State::kLive);
  return made;
}

void Store::undone(Entry* locked, Entry* lender, const Plan& plan) {
  MutexLock lock(mutex_);
  policy_.undone(locked->id, plan);
  index_.set_state(locked, State::kRecorded);
  index_.set_state(lender, State::kLive);
}

Entry* Store::evict_one(const Entry* in_favour_of) {
  MutexLock lock(mutex_);
  Locked locked(*this, nullptr);
  const auto lock_idle = [&](KeyId id) { return locked.try_lock(id); };
  const KeyId id = policy_.victim(in_favour_of->id, lock_idle);
  if (id == kNoKey) return nullptr;
  Entry* const victim = locked.give(index_.of(id));
  count_eviction(victim);
  return victim;
}

// Without device updates, the class gets no table, or the key no updater node for its slots.
void Store::refuse(Entry* locked, void (Policy::*what)(KeyId), const std::string& why) {
  MutexLock lock(mutex_);
  if (what == &Policy::refuse_device_updates) count(&Stats::refused_device_updates);
  (policy_.*what)(locked->id);
  if (!why.empty()) locked->info.refusal = why;
}

void Store::lose(Entry* locked, Loss why, bool had_executable, bool and_template, absl::Status error) {
  MutexLock lock(mutex_);
  if (!error.ok()) locked->error = std::move(error);
  if (locked->state == State::kLive || had_executable) lose_executable(locked, why);
  if (and_template && locked->state != State::kCold) lose_template(locked, why);
}

// Another key needs the room.
void Store::count_eviction(Entry* victim) {
  count(&Stats::evictions);
  victim->info.others = policy_.executables();
  lose_executable(victim, Loss::kEvicted);
}

// The entry keeps its template.
void Store::lose_executable(Entry* locked, Loss why) {
  locked->info.executable_lost = why;
  policy_.lost(locked->id);
  index_.set_state(locked, State::kRecorded);
}

void Store::lose_template(Entry* locked, Loss why) {
  locked->info.template_lost = why;
  count(&Stats::forgotten);
  policy_.forgotten(locked->id);
  forget_signature(locked);
  index_.set_state(locked, State::kCold);
}

void Store::forget_signature(Entry* entry) {
  Signatures::value_type* const known = std::exchange(entry->signature, nullptr);
  if (known != nullptr && --known->second == 0) signatures_.erase(signatures_.find(known->first));
}

Entry* Store::drop_surplus() {
  if (!has_surplus_) return nullptr;
  MutexLock lock(mutex_);
  has_surplus_ = index_.templates() > max_templates_;
  if (!has_surplus_) return nullptr;
  Entry* const oldest = index_.oldest_recorded(policy_);
  if (oldest == nullptr || !oldest->lock.try_lock()) return nullptr;  // A hit may have just begun.
  lose_template(oldest, Loss::kTemplates);
  return oldest;
}

bool Store::note(Entry* locked, std::vector<Counted> EntryInfo::*kind, const std::string& text,
                 absl::FunctionRef<bool(const std::string&)> is_same) {
  constexpr std::size_t kMost = 32;  // The texts contain handles and values, so their number has no other limit.
  MutexLock lock(mutex_);
  std::vector<Counted>& known = locked->info.*kind;
  for (Counted& one : known) {
    if (!is_same(one.text)) continue;
    one.text = text;
    ++one.count;
    return false;
  }
  if (known.size() == kMost) return false;
  known.push_back({text, 1});
  return true;
}

void Store::count_direct(std::uint64_t number, EagerReason reason) {
  ++eager_reasons_[static_cast<std::size_t>(reason)];
  if (number == 0) return;
  MutexLock lock(mutex_);
  Entry* const entry = index_.of_number(number);
  if (entry == nullptr) return;
  entry->outcomes[static_cast<int>(Outcome::kEager)].add(1);
  entry->info.eager_reason = reason;
}

// The entry can no longer be found. If a run has it, that run will see at its end that it is erased, and sweep. Until
// then the executable counts, and no other key gets it.
void Store::erase(Entry* entry) {
  index_.erase(entry);
  policy_.pinned(entry->id, true);
}

// Takes out erased entries that are not in use. Erases a few of the surplus cold entries: only a few, because runs wait
// for the lock. Each new entry sweeps once, so their number falls nevertheless.
void Store::sweep() {
  constexpr int kSurplus = 8;  // Limit for each call.
  for (int i = 0; i < kSurplus; ++i) {
    Entry* const surplus = index_.surplus(policy_);
    if (surplus == nullptr) break;
    erase(surplus);  // A run may just have begun to use it.
  }
  index_.sweep([&](Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    policy_.erased(entry->id);
    forget_signature(entry);
    entry->older = gone_;  // Other threads take the list without the lock.
    while (!gone_.compare_exchange_weak(entry->older, entry)) {
    }
  });
}

}  // namespace graphcache
