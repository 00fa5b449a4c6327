// The policy of the cache: which key has an executable of its own, which keys share one, and which executable is
// evicted for another. It takes plain numbers and returns a plan, without CUDA calls, clocks or locks. Equal calls give
// equal plans. docs/policy.md has the rules and what each is worth.
//
// A run that finds no executable for its key asks in this order:
//
//   used  ->  captured, described or moved  ->  candidate  ->  plan  ->  done
//
// A cache with several threads calls `plan` and `done` under one lock, and carries the plan out afterwards. If that
// fails, the caller reports `lost`, or `undone` if the lender's executable is still whole. If the runtime has refused
// what was planned, the caller then reports that by a call of refuse_siblings() and the like, and asks again from
// `candidate` on.
//
// Hits are not reported to the policy. A search for an executable to evict queries when the key of the least recently
// used one was last used, and moves that executable to its place in the order, until it finds one that has not been
// used since. So the order is exact where it matters: at its old end.
//
// A call takes the same time whatever the number of keys, with two exceptions. A plan passes over executables in use
// and over those that it evicts; where a table takes the place of others, over those of other classes. What moves in
// the order of use passes over the executables whose keys were used after it, but over kMostPassed at most; and one
// search for a victim moves as many at most. So with more executables the order is not quite exact.
#pragma once

#include <absl/functional/function_ref.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graphcache/detail/mechanisms.h"
#include "graphcache/prefer.h"
#include "policy/costs.h"

namespace graphcache {

// When a key was used: later ones are greater. Runs of one thread are in their order. Runs of several threads are in
// their order as far as a run that is no hit lies between them.
struct Use {
  std::uint64_t epoch = 0;  // How many runs were no hits until then.
  std::uint64_t tick = 0;   // How many runs the thread has made.
  friend auto operator<=>(const Use&, const Use&) = default;
};

using KeyId = std::uint32_t;  // Small numbers: each key that is known costs an entry.
inline constexpr KeyId kNoKey = std::numeric_limits<KeyId>::max();

// After Options.
struct Limits {
  Prefer prefer = Prefer::kTotalTime;
  std::size_t max_executables = 64;
  std::size_t max_device_bytes = std::numeric_limits<std::size_t>::max();  // Of executables, tables and sets.
  bool share = true;
  detail::Mechanisms mechanisms = {};
};

// Keys of one signature have the same `bytes`. Keys of one class have the same `table_bytes`.
struct GraphFacts {
  std::uint64_t signature = 0;    // Keys of one signature and stream are a family: an update brings one to another.
                                  // 0: this key can have no siblings.
  std::uint64_t table_class = 0;  // Keys of one family and class can share a parameter table. 0: this key cannot.
  std::uint64_t stream = 0;
  std::uint64_t shape = 0;  // Keys of one signature have the same, which is known before a graph is read.
  std::size_t nodes = 0;
  std::size_t bytes = 0;         // Device memory of an executable. Never 0.
  std::size_t table_bytes = 0;   // Device memory of a parameter table beyond that, with the first set.
  std::size_t set_bytes = 0;     // Device memory of this key's parameter set.
  std::size_t slot_kernels = 0;  // Kernel nodes with slots that an updater node could write.
};

// What a key could borrow.
struct Offer {
  KeyId lender = kNoKey;
  Cost update = 0;            // The price of an update from the lender's graph.
  bool has_set = false;       // Whether the lender's table has a parameter set of the key.
  std::size_t set_bytes = 0;  // By how much the table would grow if it has none.
};

struct Plan {
  enum class Action : std::uint8_t {
    kDirect,  // No executable can be had: `fn` is called directly.
    kOwn,     // A new executable.
    kTable,   // A new executable with a parameter table.
    kBorrow,  // The lender's executable, by a parameter set if it has a table, by an update if not.
  };
  Action action = Action::kDirect;
  bool writes_slots = false;  // Whether a kOwn executable gets an updater node for the slots.
  KeyId lender = kNoKey;
  Cost rent = 0;              // The price of the switch.
  bool adds_set = false;      // Whether the key gets a parameter set in the lender's table.
  std::size_t set_bytes = 0;  // By how much the table grows for the set.
  std::vector<KeyId> evict;   // The keys to evict before anything is instantiated.
};

class Policy {
 public:
  // What the caller knows of a key at this moment: whether it is idle, and when it was last used, if that use has not
  // been reported to the policy yet.
  struct View {
    // NOLINTNEXTLINE(google-explicit-constructor): most who ask know of no hits.
    template <class Idle>
    View(const Idle& idle_fn) : idle(idle_fn) {}
    template <class Idle, class LastUse>
    View(const Idle& idle_fn, const LastUse& last_use_fn) : idle(idle_fn), last_use(last_use_fn) {}

    static Use told(KeyId) { return {}; }
    absl::FunctionRef<bool(KeyId)> idle;
    absl::FunctionRef<Use(KeyId)> last_use = told;
  };

  explicit Policy(const Limits& limits) : limits_(limits) {}

  // Makes room for what is kept of the key. used() does so, too, but may throw then.
  void add(KeyId key) { entries_.add(key); }
  // A run of the key begins. This is the first call for a key. Without a time, it is later than all reported uses.
  void used(KeyId key) { used(key, {latest_.epoch + 1, 0}); }
  void used(KeyId key, const Use& use);
  // The key has a template from now on. If this, or one of the calls below, throws for want of memory, nothing has
  // changed.
  void captured(KeyId key, const GraphFacts& facts);
  // The key was captured without a signature, and its graph has been read since. Its stream stays.
  void described(KeyId key, const GraphFacts& facts);
  // The key, which has no executable, runs on this stream from now on: it joins the family there, once it has one.
  void moved(KeyId key, std::uint64_t stream);
  // The key, which has no executable, has lost its template.
  void forgotten(KeyId key);
  // A pinned key keeps its executable, and lends it to nobody.
  void pinned(KeyId key, bool pinned);

  // Whether any key can have siblings.
  bool shares() const { return limits_.share && limits_.mechanisms.sharing != detail::Sharing::kNever; }
  // The keys whose graphs are to be read, so that a key that is to get an executable can have siblings: some others of
  // its shape, and itself. None while no other key has its shape, or while its decision does not depend on siblings.
  std::vector<KeyId> to_read(KeyId key) const;
  // Whether keys of one signature are siblings only if they run on one stream.
  static bool tells_streams_apart(const detail::Mechanisms& mechanisms) { return !shares_one(mechanisms); }
  // Whether an executable could be had now for a key that may not have been captured yet.
  bool has_room(KeyId key, const View& view);
  // Whether the key could have an executable only in the place of another's.
  bool is_full(KeyId key) const { return !has_place(entries_[key]); }
  // Whether the key has to borrow whatever its family has, so that no executable is made ahead for it.
  bool has_to_borrow(KeyId key) const;

  // Whose executable the key could borrow, or kNoKey.
  KeyId candidate(KeyId key, const View& view) const;
  Plan plan(KeyId key, const Offer& offer, const View& view);
  // For a key that is made ready ahead: what there is room for now. Nothing is lent to it or evicted for it.
  Plan plan_ahead(KeyId key);
  // The key whose executable is evicted first if the device runs out of memory, or kNoKey. The caller reports it as
  // `lost`.
  KeyId victim(const View& view) { return next_victim(kNoKey, view); }

  // The plan is carried out: the key has its executable from now on, and what the plan evicts has none.
  void done(KeyId key, const Plan& plan);
  // The key could not get the plain executable that it was to borrow, and the lender has it again. What was evicted
  // stays so, and the rent is paid.
  void undone(KeyId key, const Plan& plan);
  // The key's executable, if it had one, is gone.
  void lost(KeyId key);
  // The key is gone, with all that it had. Its id may be another key's from now on.
  void erased(KeyId key);

  // The runtime has refused an update between the key's graph and a sibling's: the key, which has no executable, has no
  // siblings any more.
  void refuse_siblings(KeyId key);
  // The table of its class cannot hold what the key needs, who has no executable: the key has no class any more.
  void refuse_sets(KeyId key);
  // It has refused a table: the key's class gets none. If that was the key's own, its executable is a plain one.
  void refuse_table(KeyId key);
  // It has refused an updater node for slots: the key gets none until it is erased. If that was the key's own, its
  // executable is a plain one.
  void refuse_slots(KeyId key);

  // The key's family by its number, from 1 in the order in which they were founded; 0 if it can have no siblings.
  std::uint64_t family(KeyId key) const;
  std::size_t families() const { return families_with_siblings_; }
  std::size_t executables() const { return executables_; }
  // Device memory, by estimate: of all executables; of the key's.
  std::size_t bytes() const { return bytes_; }
  std::size_t bytes(KeyId key) const { return bytes(entries_[key]); }
  bool is_captured(KeyId key) const { return entries_[key].family != nullptr; }
  bool is_pinned(KeyId key) const { return entries_[key].is_pinned; }
  bool is_live(KeyId key) const { return entries_[key].kind != Kind::kNone; }
  bool has_table(KeyId key) const { return entries_[key].kind == Kind::kTable; }
  bool is_device_updated(KeyId key) const { return is_live(key) && entries_[key].kind != Kind::kPlain; }

  // Counts everything anew, and says what is wrong, or nothing. For tests.
  std::string find_fault() const;

 private:
  friend class PolicyChecker;  // The one of the tests.

  enum class Kind : std::uint8_t { kNone, kPlain, kSlots, kTable };

  struct Class {
    std::size_t members = 0;
    std::size_t executables = 0;
    std::size_t sets = 0;       // The number of sets in its table, including those of former members.
    std::size_t set_bytes = 0;  // The device memory of these sets.
    KeyId table = kNoKey;       // The key whose executable has the table.
    bool refuses_table = false;
  };
  struct Family {
    std::uint64_t number = 0;
    KeyId shared = kNoKey;  // The key that now has the shared executable (one without a table).
    std::unordered_map<std::uint64_t, Class> classes;
  };
  // The keys with templates of one shape.
  struct Shape {
    std::size_t keys = 0;
    std::set<KeyId> unread;  // Those whose graphs were not read.
  };
  struct Entry {
    GraphFacts facts;
    Family* family = nullptr;
    Class* of_class = nullptr;
    Shape* shape = nullptr;
    Kind kind = Kind::kNone;
    bool is_pinned = false;
    bool refuses_slots = false;            // The key gets no updater node for its slots.
    Cost rent = 0;                         // What it has paid for switches since it last had an executable of its own.
    Use rents_from;                        // The use at which it began to pay.
    Use last_use;                          // The last use that was reported to the policy.
    KeyId older = kNoKey, newer = kNoKey;  // The neighbours in the order of its kind.
  };
  // Executables in the order of last use. Those of pinned keys are in none.
  struct Order {
    KeyId oldest = kNoKey, newest = kNoKey;
  };
  using FamilyId = std::pair<std::uint64_t, std::uint64_t>;

  static constexpr int kMostPassed = 256;

  // Signatures of keys without siblings: each has its own.
  static constexpr std::uint64_t kAlone = std::uint64_t{1} << 63;
  static bool is_alone(const GraphFacts& facts) { return facts.signature >= kAlone; }
  static FamilyId family_of(const GraphFacts& facts) { return {facts.signature, is_alone(facts) ? 0 : facts.stream}; }

  Order& order_of(Kind kind) { return kind == Kind::kPlain ? plain_ : updated_; }
  void link(KeyId key);
  void unlink(KeyId key);
  void join(Entry* entry, const GraphFacts& facts);
  void leave(const GraphFacts& facts, Family* family);
  void rejoin(KeyId key, const GraphFacts& facts);
  GraphFacts known(GraphFacts facts);
  void set_kind(KeyId key, Kind kind);
  void hand_over(KeyId from, KeyId to, std::size_t sets = 0, std::size_t set_bytes = 0);
  void offer(KeyId key);
  void withdraw(KeyId key);

  // Whether a family has one executable as long as one suffices.
  static bool shares_one(const detail::Mechanisms& mechanisms) {
    return mechanisms.sharing == detail::Sharing::kAlways || mechanisms.sharing == detail::Sharing::kTable;
  }
  bool shares_one() const { return shares_one(limits_.mechanisms); }
  bool lends_to_rent() const {
    return limits_.prefer != Prefer::kDeviceTime || limits_.mechanisms.sharing != detail::Sharing::kAuto;
  }
  bool is_small(const Entry& entry) const;
  bool always_has_table() const { return limits_.mechanisms.sharing == detail::Sharing::kTable; }
  std::size_t bytes(const Entry& entry) const;
  std::size_t bytes_of_table(const Entry& entry, std::size_t set_bytes) const;
  std::size_t units(const Entry& entry, std::size_t bytes) const;
  std::size_t room_beside_tables(const Entry& entry) const;
  bool fits(std::size_t taken, std::size_t bytes) const;
  // Whether there is a place for one more executable if each counts one, and whether there is room.
  bool has_place(const Entry& entry) const {
    return executables_ < limits_.max_executables && fits(bytes_, entry.facts.bytes);
  }
  bool has_room(const Entry& entry, std::size_t limit) const {
    return units_ < limit && fits(bytes_, entry.facts.bytes);
  }
  bool has_room_for_table(const Entry& entry) const;
  bool can_lend(KeyId key) const {
    return key != kNoKey && entries_[key].kind != Kind::kNone && !entries_[key].is_pinned;
  }

  bool may_have_table(const Entry& entry) const;
  bool wants_own(const Entry& entry, Cost rent, const View& view);
  bool wants_table(const Entry& entry, const Plan& borrow) const;
  bool may_write_slots(const Entry& entry) const;
  KeyId oldest(KeyId after, const View& view, int* moves);
  KeyId next_victim(KeyId after, const View& view);
  bool make_room(const Entry& entry, std::size_t bytes, std::size_t limit, KeyId in_place_of, const View& view,
                 Plan* plan);
  Plan borrow(const Entry& entry, const Offer& offer) const;
  Plan table(KeyId in_place_of, const Entry& entry, const View& view);
  Plan own(const Entry& entry, std::size_t limit, const View& view);
  Plan beyond_units(const Entry& entry) const;
  Plan wish(const Entry& entry, const Offer& offer, const View& view);
  Plan wish_or_own(KeyId key, const Offer& offer, const View& view);

  // By id. It grows without moving them; looked up often, so no division is made.
  class Entries {
   public:
    Entry& operator[](KeyId key) { return chunks_[key / kChunk][key % kChunk]; }
    const Entry& operator[](KeyId key) const { return chunks_[key / kChunk][key % kChunk]; }
    std::size_t size() const { return chunks_.size() * kChunk; }
    void add(KeyId key) {
      while (key >= size()) chunks_.push_back(std::make_unique<Entry[]>(kChunk));
    }

   private:
    static constexpr std::size_t kChunk = 64;
    std::vector<std::unique_ptr<Entry[]>> chunks_;
  };

  const Limits limits_;
  Entries entries_;
  // Maps by order: no insertion takes long, as one that makes a hash table grow does.
  std::map<FamilyId, Family> families_;
  std::map<std::uint64_t, Shape> shapes_;
  Order plain_, updated_;
  Use latest_;
  std::uint64_t last_alone_ = kAlone;
  std::uint64_t last_family_ = 0;
  std::size_t families_with_siblings_ = 0;
  std::size_t keys_ = 0;  // That have a template.
  std::size_t executables_ = 0;
  std::size_t units_ = 0;       // What the executables count.
  std::size_t bytes_ = 0;       // What they take of the device's memory.
  std::size_t with_slots_ = 0;  // Executables with an updater node for slots.
  std::size_t tables_ = 0;
};

}  // namespace graphcache
