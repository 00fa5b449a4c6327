// The policy of the cache: which key has an executable of its own, which keys share one, and which executable is
// evicted for another. It takes plain numbers and returns a plan, without CUDA calls, clocks or locks. Equal calls give
// equal plans. docs/policy.md has the rules.
//
// A run that finds no executable for its key makes these calls in order:
//
//   used  ->  captured, described or moved  ->  candidate  ->  plan  ->  done
//
// A cache with several threads calls `plan` and `done` under one lock, and carries the plan out afterwards. If that
// fails, the caller reports `lost`, or `undone` if the lender's executable is still intact. If the runtime has refused
// what was planned, the caller then calls refuse_siblings() or the like, and starts again from `candidate`.
//
// Hits are not reported to the policy. A search in the order of use therefore queries the last use of the key that it
// finds, moves that key to its place in the order, and repeats this until it finds one that has not been used since. So
// the order is exact where it matters: at its old end.
//
// A call takes the same time whatever the number of keys, but a search passes over the executables that do not suit.
// An executable that moves in the order passes over those that were used after it, but over kMostPassed at most, and
// one search moves at most as many. So with more executables the order is not quite exact.
#pragma once

#include <absl/functional/function_ref.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graphcache/share.h"
#include "graphcache/stats.h"
#include "policy/mechanisms.h"

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
  Share share = Share::kWhenFull;
  std::size_t max_executables = 64;
  // Limit for executables, tables and parameter sets.
  std::size_t max_device_bytes = std::numeric_limits<std::size_t>::max();
  Mechanisms mechanisms = {};
};

// Keys of one signature have the same `bytes`. Keys of one class have the same `table_bytes`.
struct GraphFacts {
  // Keys of one signature and stream are a family, whose graphs an update can change to one another. 0 if the key can
  // have no siblings, or has not been read.
  std::uint64_t signature = 0;
  // Keys of one family and class can share a parameter table. 0 if the key cannot.
  std::uint64_t table_class = 0;
  std::uint64_t stream = 0;
  // A hash that is known before a graph is read. Keys of one signature have the same shape.
  std::uint64_t shape = 0;
  std::size_t bytes = 0;  // Device memory of an executable. Never 0.
  // Device memory of a parameter table with a chunk for sets, beyond `bytes`.
  std::size_t table_bytes = 0;
  std::size_t set_bytes = 0;     // Device memory of this key's parameter set.
  std::size_t slot_kernels = 0;  // Kernel nodes with slots that an updater node could write.
};

// An executable that a key could borrow.
struct Offer {
  KeyId lender = kNoKey;
  std::size_t set_bytes = 0;  // How much the lender's table grows for a parameter set of the key, if it has none.
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
  Rule rule = Rule::kNone;
  bool writes_slots = false;  // Whether a kOwn executable gets an updater node for the slots.
  KeyId lender = kNoKey;
  std::size_t set_bytes = 0;  // By how much the lender's table grows for the key's parameter set.
  std::vector<KeyId> evict;   // The keys to evict before anything is instantiated.
};

class Policy {
 public:
  // The caller's present knowledge of a key: whether it is idle, and when it was last used, if that use has not been
  // reported to the policy.
  using Idle = absl::FunctionRef<bool(KeyId)>;
  using LastUse = std::function<Use(KeyId)>;

  explicit Policy(const Limits& limits, LastUse last_use = {}) : limits_(limits), last_use_(std::move(last_use)) {}

  // Allocates the key's entry. used() does so as well, but then it may throw.
  void add(KeyId key) {
    if (key >= entries_.size()) entries_.resize(key + 1);
  }
  // A run of the key begins. This is the first call for a key.
  void used(KeyId key, const Use& use);
  // The key now has a template. If this or a call below throws because memory ran out, nothing has changed.
  void captured(KeyId key, const GraphFacts& facts);
  // The key was captured without a signature, and its graph has been read since. Its stream stays the same.
  void described(KeyId key, GraphFacts facts);
  // The key, which has no executable, now runs on this stream. It joins the family of that stream once it has one.
  void moved(KeyId key, std::uint64_t stream);
  // The key, which has no executable, has lost its template.
  void forgotten(KeyId key) { refuse_siblings(key); }
  // A pinned key keeps its executable and lends it to no other key.
  void pinned(KeyId key, bool pinned);

  // Which graphs a run must read, so that its key can borrow an executable: its own, and of those of its shape that
  // have an executable and are unread, the one used longest ago. None while there is room.
  struct ToRead {
    bool itself = false;
    KeyId other = kNoKey;
  };
  ToRead to_read(KeyId key);
  // Whether a key, which may not have been captured yet, could get an executable now. Facts are of its last capture.
  bool has_room(KeyId key, Idle idle) {
    return fits(0, entries_[key].facts.bytes) && (has_room(entries_[key]) || victim(key, idle) != kNoKey);
  }

  // The key whose executable this key could borrow, or kNoKey.
  KeyId candidate(KeyId key, Idle idle);
  Plan plan(KeyId key, const Offer& offer, Idle idle);
  // The key whose executable is evicted first if the device runs out of memory, or kNoKey. The caller reports it by
  // lost().
  KeyId victim(KeyId in_favour_of, Idle idle) { return victim(idle, {.lender = in_favour_of, .evict = {}}); }

  // The plan is carried out: the key now has its executable, and the evicted keys have none.
  void done(KeyId key, const Plan& plan);
  // The key could not get the plain executable that it was to borrow, and the lender has it again. Evicted executables
  // stay evicted.
  void undone(KeyId key, const Plan& plan) { hand_over(key, plan.lender); }
  // The key's executable no longer exists.
  void lost(KeyId key) {
    if (is_live(key)) set_kind(key, Kind::kNone);
  }
  // The key and everything that it had no longer exist. Its id may be reused for another key.
  void erased(KeyId key);

  // The runtime has refused an update between the key's graph and a sibling's. The key, which has no executable, no
  // longer has siblings.
  void refuse_siblings(KeyId key) { set_fact(key, &GraphFacts::signature, 0); }
  // The table of the key's class cannot hold its parameter set. The key, which has no executable, no longer has a
  // class.
  void refuse_sets(KeyId key) { set_fact(key, &GraphFacts::table_class, 0); }
  // The runtime has refused an updater node for the key. Its class gets no table, and the key no such node for slots
  // until it is erased. If it had either, its executable is now a plain one.
  void refuse_device_updates(KeyId key);

  // The number of the key's family, counted from 1 in the order of foundation. 0 if the key cannot have siblings.
  std::uint64_t family(KeyId key) const { return entries_[key].family == nullptr ? 0 : entries_[key].family->number; }
  std::size_t families() const { return families_.size(); }
  // Whether the key's graph has been read.
  bool is_read(KeyId key) const { return !entries_[key].is_unread; }
  std::size_t executables() const { return executables_; }
  // Estimated device memory of all executables, or of one key's executable.
  std::size_t bytes() const { return bytes_; }
  std::size_t bytes(KeyId key) const;
  bool is_pinned(KeyId key) const { return entries_[key].is_pinned; }
  bool is_live(KeyId key) const { return entries_[key].kind != Kind::kNone; }
  bool has_table(KeyId key) const { return entries_[key].kind == Kind::kTable; }
  bool is_device_updated(KeyId key) const { return is_live(key) && entries_[key].kind != Kind::kPlain; }

 private:
  friend class PolicyChecker;  // Defined by the tests, as StructureChecker is.
  friend class StructureChecker;

  enum class Kind : std::uint8_t { kNone, kPlain, kSlots, kTable };

  struct Class {
    std::size_t members = 0;
    std::size_t set_bytes = 0;  // The device memory of the sets in its table, those of former members included.
    KeyId table = kNoKey;       // The key whose executable has the table.
    bool refuses_table = false;
  };
  struct Family {
    std::uint64_t number = 0;
    std::unordered_map<std::uint64_t, Class> classes;
  };
  struct Entry {
    GraphFacts facts;
    Family* family = nullptr;  // None if the key can have no siblings.
    Class* of_class = nullptr;
    Kind kind = Kind::kNone;
    bool is_pinned = false;
    bool is_unread = false;
    bool refuses_slots = false;            // Whether the key gets no updater node for its slots.
    Use last_use;                          // The last reported use.
    KeyId older = kNoKey, newer = kNoKey;  // Neighbours in the order of use.
  };

  static constexpr int kMostPassed = 256;

  void link(KeyId key);
  void unlink(KeyId key);
  void set_facts(KeyId key, GraphFacts facts);
  void set_fact(KeyId key, std::uint64_t GraphFacts::*which, std::uint64_t value);
  void set_kind(KeyId key, Kind kind);
  void hand_over(KeyId from, KeyId to);

  KeyId find_oldest(absl::FunctionRef<bool(KeyId)> suits);
  KeyId victim(Idle idle, const Plan& plan);
  bool make_room(std::size_t executables, std::size_t bytes, Idle idle, Plan* plan);

  bool fits(std::size_t taken, std::size_t bytes) const {
    return bytes <= limits_.max_device_bytes && taken <= limits_.max_device_bytes - bytes;
  }
  bool has_room(const Entry& entry) const {
    return executables_ < limits_.max_executables && fits(bytes_, entry.facts.bytes);
  }
  bool can_lend(KeyId key) const { return key != kNoKey && is_live(key) && !entries_[key].is_pinned; }
  bool has_room_for_table(const Entry& entry, const std::vector<KeyId>& in_place_of) const;
  bool wants_slots(const Entry& entry) const;
  Plan borrow(const Entry& entry, const Offer& offer, Idle idle);
  Plan evict(const Entry& entry, Idle idle);

  const Limits limits_;
  const LastUse last_use_;
  std::deque<Entry> entries_;  // By key.
  // An ordered map, because an insertion never takes as long as one that makes a hash table grow.
  std::map<std::pair<std::uint64_t, std::uint64_t>, Family> families_;  // By signature and stream.
  // The order of use of executables, but those of pinned keys.
  KeyId oldest_ = kNoKey, newest_ = kNoKey;
  std::uint64_t last_family_ = 0;
  std::size_t executables_ = 0;
  std::size_t bytes_ = 0;       // Device memory of the executables.
  std::size_t with_slots_ = 0;  // Number of executables with an updater node for slots.
  std::size_t unread_ = 0;      // Number of executables whose graphs have not been read.
};

}  // namespace graphcache
