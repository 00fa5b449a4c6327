// The policy of the cache: which key has an executable of its own, which keys share one, and which executable leaves
// for another. Plain numbers in, a plan out: no CUDA call, no clock, no lock. Equal calls give equal plans, and a call
// takes the same time whatever the number of keys, except for keys in use that it has to pass over. docs/policy.md has
// the rules and what each is worth.
//
// A run that finds no executable for its key asks in this order, and begins again after `refused`:
//
//   captured or moved  ->  candidate  ->  plan  ->  (evict, instantiate, bring over)  ->  done or refused
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
};

struct GraphFacts {
  std::uint64_t signature = 0;    // Keys of one signature and stream are a family: an update brings one to another.
  std::uint64_t table_class = 0;  // Keys of one family and class can share a parameter table. 0: this key cannot.
  std::uint64_t stream = 0;
  std::size_t nodes = 0;
  std::size_t bytes = 0;        // Device memory of an executable,
  std::size_t table_bytes = 0;  // of a parameter table beyond that,
  std::size_t set_bytes = 0;    // and of this key's parameter set.
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

  // A run of the key begins.
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
  // The plan has been carried out.
  void done(KeyId key, const Plan& plan);
  // The runtime has refused the plan's table or update: the class has no table, or the key no siblings, from now on.
  // What was to be evicted has not been.
  void refused(KeyId key, const Plan& plan);

 private:
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
    Cost rent = 0;                 // What it has paid for switches since it last had an executable of its own.
    std::uint64_t rents_from = 0;  // The use at which it began to.
    std::uint64_t last_use = 0;
    KeyId older = kNoKey, newer = kNoKey;  // In the order of its kind.
  };
  // Executables in the order of use. Those of pinned keys are in none.
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

  std::size_t units(const Entry& entry) const;
  std::size_t units_of_table(const Entry& entry, std::size_t set_bytes) const;
  std::size_t units_of_driver(const Entry& entry) const;
  std::size_t room_beside_tables(const Entry& entry) const;
  bool is_full() const { return units_ >= limits_.max_executables; }
  bool can_lend(KeyId key, const IdleFn& idle) const { return key != kNoKey && !entries_[key].is_pinned && idle(key); }

  bool wants_own(const Entry& entry, Cost rent, const IdleFn& idle) const;
  bool wants_table(const Entry& entry, const Plan& borrow) const;
  bool may_write_slots(const Entry& entry) const;
  KeyId victim(const IdleFn& idle, const std::vector<KeyId>& except) const;
  bool make_room(std::size_t units, std::size_t limit, std::vector<KeyId> except, const IdleFn& idle, Plan* plan) const;
  Plan borrow(const Entry& entry, const Offer& offer) const;
  bool add_set(const Entry& entry, const IdleFn& idle, Plan* plan) const;
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
  std::size_t with_slots_ = 0;  // Executables with an updater node for slots.
  std::size_t tables_ = 0;
};

}  // namespace graphcache
