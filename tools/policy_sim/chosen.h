// The policy of the cache: which key has an executable of its own, which keys share one, and which executable leaves
// for another. Plain numbers in, a plan out: no CUDA call, no clock, no lock. Equal calls give equal plans.
// docs/policy.md has the rules and what each is worth.
//
// A run that finds no executable for its key asks in this order:
//
//   used  ->  captured or moved  ->  candidate  ->  plan  ->  done
//
// A cache with several threads calls `plan` and `done` under one lock, and carries the plan out afterwards. If that
// fails, the caller reports `lost`, or `undone` if the lender's executable is still whole. If the runtime has refused
// what was planned, the caller then reports `refused`, and asks again from `candidate` on.
//
// A call takes the same time whatever the number of keys, with two exceptions. A plan passes over executables in use
// and over those that it evicts. A key that gets an executable, or is unpinned, passes over the executables whose keys
// were used after it: few, except for `pinned` and `undone`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../../lib/cuda/costs.h"

namespace graphcache {

using KeyId = std::uint32_t;  // Small numbers: each key that is known costs an entry.
inline constexpr KeyId kNoKey = std::numeric_limits<KeyId>::max();

enum class Prefer : std::uint8_t { kTotalTime, kDeviceTime, kMemory };

struct Limits {
  Prefer prefer = Prefer::kTotalTime;
  std::size_t max_executables = 64;
  std::size_t max_device_bytes = std::numeric_limits<std::size_t>::max();  // Of executables, tables and sets.
};

// Keys of one signature have the same `bytes`. Keys of one class have the same `table_bytes`.
struct GraphFacts {
  std::uint64_t signature = 0;    // Keys of one signature and stream are a family: an update brings one to another.
  std::uint64_t table_class = 0;  // Keys of one family and class can share a parameter table. 0: this key cannot.
  std::uint64_t stream = 0;
  std::size_t nodes = 0;
  std::size_t bytes = 0;        // Device memory of an executable. Never 0.
  std::size_t table_bytes = 0;  // Device memory of a parameter table beyond that, with the first set.
  std::size_t set_bytes = 0;    // Device memory of this key's parameter set.
  bool has_many_slots = false;  // An updater node would bring new values for less than patches do.
};

// What a key could borrow.
struct Offer {
  KeyId lender = kNoKey;
  Cost update = 0;       // The price of an update from the lender's graph.
  bool has_set = false;  // The lender's table has a parameter set of the key.
};

struct Plan {
  enum class Action : std::uint8_t {
    kDirect,  // No executable can be had: `fn` is called directly.
    kOwn,     // A new executable.
    kTable,   // A new executable with a parameter table.
    kBorrow,  // The lender's executable, by a parameter set if it has a table, by an update if not.
  };
  Action action = Action::kDirect;
  bool writes_slots = false;  // Of kOwn: with an updater node for the slots.
  KeyId lender = kNoKey;
  Cost rent = 0;              // The price of the switch.
  std::size_t set_bytes = 0;  // By how much the table grows.
  std::vector<KeyId> evict;   // Before anything is instantiated.
};

class Policy {
 public:
  // Whether nobody uses the key at this moment.
  using IdleFn = std::function<bool(KeyId)>;

  explicit Policy(const Limits& limits) : limits_(limits) {}

  // A run of the key begins. This is the first call for a key.
  void used(KeyId key);
  // The key has a template from now on.
  void captured(KeyId key, const GraphFacts& facts);
  // The key, which has no executable, runs on this stream from now on: it joins the family there.
  void moved(KeyId key, std::uint64_t stream);
  // The key, which has no executable, has lost its template.
  void forgotten(KeyId key);
  // A pinned key keeps its executable, and lends it to nobody.
  void pinned(KeyId key, bool pinned);

  // Whose executable the key could borrow, or kNoKey.
  KeyId candidate(KeyId key, const IdleFn& idle) const;
  Plan plan(KeyId key, const Offer& offer, const IdleFn& idle) const;
  // Whose executable leaves first if the device runs out of memory, or kNoKey. The caller reports it as `lost`.
  KeyId victim(const IdleFn& idle) const { return next_victim(kNoKey, idle); }

  // The plan is carried out: the key has its executable from now on, and what the plan evicts has none.
  void done(KeyId key, const Plan& plan);
  // The key could not get what it was to borrow, and the lender has it again. What was evicted stays so, and the rent
  // is paid. The table shrinks by the plan's `set_bytes`: the caller sets these to 0 if the set is in the table.
  void undone(KeyId key, const Plan& plan);
  // The key's executable, if it had one, is gone.
  void lost(KeyId key);
  // The key is gone, with all that it had. Its id may be another key's from now on.
  void erased(KeyId key);
  // The runtime has refused what the plan gives the key, which has no executable now. From now on the class gets no
  // table, the key has no siblings, or the key gets no updater node for its slots.
  void refused(KeyId key, const Plan& plan);

 private:
  friend class PolicyChecker;  // The one of policy_test.cc, which counts everything anew.

  enum class Kind : std::uint8_t { kNone, kPlain, kSlots, kTable };

  struct Class {
    std::size_t members = 0;
    std::size_t executables = 0;
    std::size_t set_bytes = 0;  // Of the sets in its table.
    KeyId table = kNoKey;       // Who has the table.
    bool refuses_table = false;
  };
  struct Family {
    KeyId spare = kNoKey;  // Who has the executable, without a table, that its members pass on.
    std::unordered_map<std::uint64_t, Class> classes;
  };
  struct Entry {
    GraphFacts facts;
    Family* family = nullptr;
    Class* of_class = nullptr;
    Kind kind = Kind::kNone;
    bool is_pinned = false;
    bool refuses_slots = false;    // The key gets no updater node for its slots.
    Cost rent = 0;                 // What it has paid for switches since it last had an executable of its own.
    std::uint64_t rents_from = 0;  // The use at which it began to.
    std::uint64_t last_use = 0;
    KeyId older = kNoKey, newer = kNoKey;  // In the order of its kind.
  };
  // Executables in the order of last use. Those of pinned keys are in none.
  struct Order {
    KeyId oldest = kNoKey, newest = kNoKey;
  };
  using FamilyId = std::pair<std::uint64_t, std::uint64_t>;
  struct FamilyHash {
    std::size_t operator()(const FamilyId& id) const { return id.first * 0x9e3779b97f4a7c15 + id.second; }
  };

  Order& order_of(Kind kind) { return kind == Kind::kPlain ? plain_ : updated_; }
  void link(KeyId key);
  void unlink(KeyId key);
  void join(Entry* entry);
  void leave(Entry* entry);
  void set_kind(KeyId key, Kind kind);
  void hand_over(KeyId from, KeyId to, std::size_t set_bytes);

  std::size_t bytes(const Entry& entry) const;
  std::size_t bytes_of_table(const Entry& entry, std::size_t set_bytes) const;
  std::size_t units(const Entry& entry, std::size_t bytes) const;
  std::size_t room_beside_tables(const Entry& entry) const;
  bool fits(std::size_t taken, std::size_t bytes) const;
  bool has_room(const Entry& entry, std::size_t limit) const {
    return units_ < limit && fits(bytes_, entry.facts.bytes);
  }
  bool has_room_for_table(const Entry& entry) const;
  bool can_lend(KeyId key) const {
    return key != kNoKey && entries_[key].kind != Kind::kNone && !entries_[key].is_pinned;
  }

  bool wants_own(const Entry& entry, Cost rent, const IdleFn& idle) const;
  bool wants_table(const Entry& entry, const Plan& borrow) const;
  bool may_write_slots(const Entry& entry) const;
  KeyId next_victim(KeyId after, const IdleFn& idle) const;
  bool make_room(const Entry& entry, std::size_t bytes, std::size_t limit, KeyId in_place_of, const IdleFn& idle,
                 Plan* plan) const;
  Plan borrow(const Entry& entry, const Offer& offer) const;
  Plan table_in_place_of(KeyId lender, const Entry& entry, const IdleFn& idle) const;
  Plan own(const Entry& entry, std::size_t limit, const IdleFn& idle) const;
  Plan wish(const Entry& entry, const Offer& offer, const IdleFn& idle) const;

  const Limits limits_;
  std::vector<Entry> entries_;
  std::unordered_map<FamilyId, Family, FamilyHash> families_;
  Order plain_, updated_;
  std::uint64_t uses_ = 0;
  std::uint64_t refusals_ = 0;
  std::size_t keys_ = 0;        // That have a template.
  std::size_t units_ = 0;       // What the executables count.
  std::size_t bytes_ = 0;       // What they take of the device's memory.
  std::size_t with_slots_ = 0;  // Executables with an updater node for slots.
  std::size_t tables_ = 0;
};

}  // namespace graphcache
