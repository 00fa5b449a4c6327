// The policy of the cache: which key has an executable of its own, which keys share one, and which executable is
// evicted for another. It takes plain numbers and returns a plan, without CUDA calls, clocks or locks. Equal calls give
// equal plans. docs/policy.md has the rules and what each is worth.
//
// A run that finds no executable for its key makes these calls in order:
//
//   used  ->  captured, described or moved  ->  candidate  ->  plan  ->  done
//
// A cache with several threads calls `plan` and `done` under one lock, and carries the plan out afterwards. If that
// fails, the caller reports `lost`, or `undone` if the lender's executable is still intact. If the runtime has refused
// what was planned, the caller then calls refuse_siblings() or the like, and starts again from `candidate`.
//
// Hits are not reported to the policy. A search for a victim therefore queries the last use of the least recently used
// executable's key, moves that executable to its place in the order, and repeats this until it finds one that has not
// been used since. So the order is exact where it matters: at its old end.
//
// A call takes the same time whatever the number of keys, with two exceptions. A plan passes over executables in use
// and over those that it evicts, and over those of other classes if a table replaces others. An executable that moves
// in the order passes over those that were used after it, but over kMostPassed at most, and one search for a victim
// moves at most as many. So with more executables the order is not quite exact.
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

// The time of a key's use; a later use compares greater. Runs of one thread are in their order. Runs of several threads
// are in their order if a run that is not a hit lies between them.
struct Use {
  std::uint64_t epoch = 0;  // Number of runs so far that were not hits.
  std::uint64_t tick = 0;   // Number of runs that the thread has made.
  friend auto operator<=>(const Use&, const Use&) = default;
};

using KeyId = std::uint32_t;  // Small numbers, because each known key has an entry.
inline constexpr KeyId kNoKey = std::numeric_limits<KeyId>::max();

// The limits given by Options.
struct Limits {
  Prefer prefer = Prefer::kTotalTime;
  std::size_t max_executables = 64;
  // Limit for executables, tables and parameter sets.
  std::size_t max_device_bytes = std::numeric_limits<std::size_t>::max();
  bool share = true;
  detail::Mechanisms mechanisms = {};
};

// Keys of one signature have the same `bytes`. Keys of one class have the same `table_bytes`.
struct GraphFacts {
  // Keys of one signature and stream are a family, whose graphs an update can change to one another. 0 if the key can
  // have no siblings.
  std::uint64_t signature = 0;
  // Keys of one family and class can share a parameter table. 0 if the key cannot.
  std::uint64_t table_class = 0;
  std::uint64_t stream = 0;
  // A hash that is known before a graph is read. Keys of one signature have the same shape.
  std::uint64_t shape = 0;
  std::size_t nodes = 0;
  std::size_t bytes = 0;  // Device memory of an executable. Never 0.
  // Device memory of a parameter table with its first set, beyond `bytes`.
  std::size_t table_bytes = 0;
  std::size_t set_bytes = 0;     // Device memory of this key's parameter set.
  std::size_t slot_kernels = 0;  // Kernel nodes with slots that an updater node could write.
};

// An executable that a key could borrow.
struct Offer {
  KeyId lender = kNoKey;
  Cost update = 0;            // The price of an update from the lender's graph.
  bool has_set = false;       // Whether the lender's table has a parameter set of the key.
  std::size_t set_bytes = 0;  // How much the table grows if it has no set of the key.
};

struct Plan {
  enum class Action : std::uint8_t {
    kDirect,  // There is no executable: `fn` is called directly.
    kOwn,     // A new executable.
    kTable,   // A new executable with a parameter table.
    // The lender's executable, by a parameter set if it has a table, else by an update.
    kBorrow,
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
  // The caller's present knowledge of a key: whether it is idle, and when it was last used, if that use has not been
  // reported to the policy.
  struct View {
    // NOLINTNEXTLINE(google-explicit-constructor): most callers know of no hits.
    template <class Idle>
    View(const Idle& idle_fn) : idle(idle_fn) {}
    template <class Idle, class LastUse>
    View(const Idle& idle_fn, const LastUse& last_use_fn) : idle(idle_fn), last_use(last_use_fn) {}

    static Use no_later_use(KeyId) { return {}; }
    absl::FunctionRef<bool(KeyId)> idle;
    absl::FunctionRef<Use(KeyId)> last_use = no_later_use;
  };

  explicit Policy(const Limits& limits) : limits_(limits) {}

  // Allocates the key's entry. used() does so as well, but then it may throw.
  void add(KeyId key) { entries_.add(key); }
  // A run of the key begins. This is the first call for a key. A use without a time is later than all reported uses.
  void used(KeyId key) { used(key, {latest_.epoch + 1, 0}); }
  void used(KeyId key, const Use& use);
  // The key now has a template. If this or a call below throws because memory ran out, nothing has changed.
  void captured(KeyId key, const GraphFacts& facts);
  // The key was captured without a signature, and its graph has been read since. Its stream stays the same.
  void described(KeyId key, const GraphFacts& facts);
  // The key, which has no executable, now runs on this stream. It joins the family of that stream once it has one.
  void moved(KeyId key, std::uint64_t stream);
  // The key, which has no executable, has lost its template.
  void forgotten(KeyId key);
  // A pinned key keeps its executable and lends it to no other key.
  void pinned(KeyId key, bool pinned);

  // Whether any key can have siblings.
  bool shares() const { return limits_.share && limits_.mechanisms.sharing != detail::Sharing::kNever; }
  // The keys whose graphs must be read so that a key that needs an executable can have siblings: the key itself and
  // some others of its shape. Empty while no other key has its shape, or while siblings do not matter for its decision.
  std::vector<KeyId> to_read(KeyId key) const;
  // Whether keys of one signature are siblings only if they run on one stream.
  static bool separates_streams(const detail::Mechanisms& mechanisms) { return !shares_one(mechanisms); }
  // Whether a key, which may not have been captured yet, could get an executable now.
  bool has_room(KeyId key, const View& view);
  // Whether the key could get an executable only by evicting another.
  bool is_full(KeyId key) const { return !has_place(entries_[key]); }
  // Whether the key must borrow what its family has, so that no executable is made ahead for it.
  bool has_to_borrow(KeyId key) const;

  // The key whose executable this key could borrow, or kNoKey.
  KeyId candidate(KeyId key, const View& view) const;
  Plan plan(KeyId key, const Offer& offer, const View& view);
  // A plan for a key that is made ready ahead. It uses only free room: nothing is lent or evicted for it.
  Plan plan_ahead(KeyId key);
  // The key whose executable is evicted first if the device runs out of memory, or kNoKey. The caller reports it by
  // lost().
  KeyId victim(const View& view) { return next_victim(kNoKey, view); }

  // The plan is carried out: the key now has its executable, and the evicted keys have none.
  void done(KeyId key, const Plan& plan);
  // The key could not get the plain executable that it was to borrow, and the lender has it again. Evicted executables
  // stay evicted, and the rent stays paid.
  void undone(KeyId key, const Plan& plan);
  // The key's executable no longer exists.
  void lost(KeyId key);
  // The key and everything that it had no longer exist. Its id may be reused for another key.
  void erased(KeyId key);

  // The runtime has refused an update between the key's graph and a sibling's. The key, which has no executable, no
  // longer has siblings.
  void refuse_siblings(KeyId key);
  // The table of the key's class cannot hold its parameter set. The key, which has no executable, no longer has a
  // class.
  void refuse_sets(KeyId key);
  // The runtime has refused a table, so the class gets none. If this key had the table, its executable is now a plain
  // one.
  void refuse_table(KeyId key);
  // The runtime has refused an updater node for slots, so the key gets none until it is erased. If it had one, its
  // executable is now a plain one.
  void refuse_slots(KeyId key);

  // The number of the key's family, counted from 1 in the order of foundation. 0 if the key cannot have siblings.
  std::uint64_t family(KeyId key) const;
  std::size_t families() const { return families_with_siblings_; }
  std::size_t executables() const { return executables_; }
  // Estimated device memory of all executables, or of one key's executable.
  std::size_t bytes() const { return bytes_; }
  std::size_t bytes(KeyId key) const { return bytes(entries_[key]); }
  bool is_captured(KeyId key) const { return entries_[key].family != nullptr; }
  bool is_pinned(KeyId key) const { return entries_[key].is_pinned; }
  bool is_live(KeyId key) const { return entries_[key].kind != Kind::kNone; }
  bool has_table(KeyId key) const { return entries_[key].kind == Kind::kTable; }
  bool is_device_updated(KeyId key) const { return is_live(key) && entries_[key].kind != Kind::kPlain; }

  // Recomputes every count and describes the first error; empty if there is none. For tests.
  std::string find_fault() const;

 private:
  friend class PolicyChecker;  // Defined by the tests.

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
  // The keys that have templates of one shape.
  struct Shape {
    std::size_t keys = 0;
    std::set<KeyId> unread;  // Keys whose graphs have not been read.
  };
  struct Entry {
    GraphFacts facts;
    Family* family = nullptr;
    Class* of_class = nullptr;
    Shape* shape = nullptr;
    Kind kind = Kind::kNone;
    bool is_pinned = false;
    bool refuses_slots = false;  // Whether the key gets no updater node for its slots.
    // Rent paid since the key last had an executable of its own.
    Cost rent = 0;
    Use rents_from;                        // The use at which the rent began.
    Use last_use;                          // The last reported use.
    KeyId older = kNoKey, newer = kNoKey;  // Neighbours in the order of its kind.
  };
  // Executables in order of last use. Those of pinned keys are in no order.
  struct Order {
    KeyId oldest = kNoKey, newest = kNoKey;
  };
  using FamilyId = std::pair<std::uint64_t, std::uint64_t>;

  static constexpr int kMostPassed = 256;

  // The first signature of keys without siblings. Each has its own.
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

  // Whether a family has only one executable as long as that suffices.
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
  // Whether there is room for one more executable if each of them counts one.
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

  // Entries by id. They never move, and an access needs no division by a variable.
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
  // Ordered maps, because an insertion never takes as long as one that makes a hash table grow.
  std::map<FamilyId, Family> families_;
  std::map<std::uint64_t, Shape> shapes_;
  Order plain_, updated_;
  Use latest_;
  std::uint64_t last_alone_ = kAlone;
  std::uint64_t last_family_ = 0;
  std::size_t families_with_siblings_ = 0;
  std::size_t keys_ = 0;  // Number of keys that have a template.
  std::size_t executables_ = 0;
  std::size_t units_ = 0;       // Units that the executables count against max_executables.
  std::size_t bytes_ = 0;       // Device memory of the executables.
  std::size_t with_slots_ = 0;  // Number of executables with an updater node for slots.
  std::size_t tables_ = 0;
};

}  // namespace graphcache
