// Outcome, Stats and EntryInfo: what each run did, the counters of a cache, and what it holds for each key.
//
//   absl::StatusOr<graphcache::Outcome> outcome = cache.run(key, fn);
//   if (outcome.ok() && !graphcache::is_hit(*outcome)) log(graphcache::to_string(cache.stats()));
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graphcache/key.h"

namespace graphcache {

// What one successful run did. A hit replays work that was captured before, and does not call `fn`. A miss calls `fn`
// under capture. Siblings are keys of one family, which can share executables (Options::share).
enum class Outcome {
  kReplayed,      // Hit: one launch; nothing had to change.
  kPatched,       // Hit: values had changed; the nodes that hold them were patched before the launch.
  kSwitched,      // Hit: the executable of a sibling was changed into that of this key, and launched.
  kRestored,      // Hit: a new executable was instantiated from the key's template.
  kUpdated,       // Miss: `fn` was captured, and an executable (a sibling's, or its own for new values) was updated.
  kInstantiated,  // Miss: `fn` was captured, and a new executable was instantiated.
  kEager,         // `fn` enqueued its work directly; EagerReason says why.
  kInlined,       // The run was made inside another run's capture and became part of it.
};
inline constexpr int kOutcomeCount = 8;

inline bool is_hit(Outcome outcome) { return outcome <= Outcome::kRestored; }

// Why a run called `fn` directly, without capturing it.
enum class EagerReason {
  // Options::max_executables is 0.
  kDisabled,
  // The run was one of the key's first Options::capture_after runs.
  kCaptureAfter,
  // The capture broke, and the run then enqueued the work directly.
  kCaptureFailed,
  // An earlier run of the key failed to get a graph launched, so the next capture waits for 1, 2, 4, ... at most 1024
  // runs. That run had a broken capture, ended in kOutOfMemory, kRefused or kLaunchFailed, or had an error by which
  // the key lost its executable.
  kBackoff,
  // There was no room for an executable: all others were pinned or in use by other threads' runs, or the graph alone
  // needs more than Options::max_device_bytes.
  kBudget,
  // Instantiation ran out of memory, even after the least recently used executable was evicted.
  kOutOfMemory,
  // The runtime refused to instantiate or clone the graph, or to set a new value in a slot node. An executable that was
  // left in doubt by this was dropped.
  kRefused,
  // cudaGraphLaunch failed, but the context is intact. The executable was dropped.
  kLaunchFailed,
  // `fn` enqueued nothing on the stream that it was given. If it did any work, it did it elsewhere, outside the
  // capture. Later runs of the key call it directly.
  kNothingCaptured,
  // `fn` allocates memory by cudaMallocAsync that it does not free. A graph would hand out the same memory again. Later
  // runs of the key call it directly.
  kHandsOutMemory,
};
inline constexpr int kEagerReasonCount = 10;

// Which of the three rules of docs/policy.md gave a key its executable.
enum class Rule : std::uint8_t {
  kNone,
  kRoom,      // There was room for one of its own.
  kSibling,   // It borrowed a sibling's.
  kEviction,  // It took the place of the executable that was used longest ago.
};

// Why a key has lost its executable or its captured graph (template).
enum class Loss : std::uint8_t {
  kNone,
  kEvicted,    // Evicted because another key needed the room.
  kLent,       // A sibling took it.
  kFailed,     // Lost by an error (EntryInfo::error).
  kTemplates,  // There were more templates than Options::max_templates.
  kStale,      // Verify mode found it stale (OnStale::kForget), or memory of its copies was freed.
  kErased,     // The key was erased, or the cache has ended.
  kValues,     // A value had changed that was not found, so another graph took its place (values.h).
};

// The enumerator without its k, in lower case: "replayed", "capture_failed", ...
const char* to_string(Outcome outcome);
const char* to_string(EagerReason reason);

// A snapshot of the counters since the cache was made. The runs of other threads go on meanwhile: each counter includes
// every run that returned before the call, and may include runs that are still under way.
struct Stats {
  // ---- Runs ---------------------------------------------------------------------------------------------------------

  std::array<std::uint64_t, kOutcomeCount> outcomes{};           // +1 for each run that returned this outcome.
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};  // +1 with each kEager outcome, by its reason.
  std::uint64_t failed = 0;  // +1 for each run or warm() that returned an error or passed on an exception of `fn`.

  // ---- What runs caused ---------------------------------------------------------------------------------------------

  std::uint64_t captures =
      0;  // +1 for each capture that ended with a graph, and for each graph that `fn` returned and that was kept.
  // +1 for each capture that gave no graph to keep: it broke, `fn` failed or enqueued nothing, or a listener refused
  // it. Recordings of verify mode do not count.
  std::uint64_t capture_failures = 0;
  // +1 for each recording of a key that had a graph, made because values had changed that are not found (values.h).
  // `captures` counts those that were kept.
  std::uint64_t value_captures = 0;
  std::uint64_t instantiations = 0;  // +1 for each successful cudaGraphInstantiate.
  // A switch changes the executable of one key into that of a sibling. It is made by an update, or by a parameter set
  // of the executable's table.
  std::uint64_t updates = 0;       // +1 for each successful cudaGraphExecUpdate.
  std::uint64_t set_switches = 0;  // +1 for each switch that was made by a parameter set.
  // +1 for each node that was set to new parameters, by a call or by the device during a launch. Switches by a
  // parameter set do not count.
  std::uint64_t patched_nodes = 0;
  std::uint64_t evictions = 0;  // +1 for each executable that was evicted to make room for another one or for a table.
  // +1 for each template that was dropped although its key stayed. The reasons are: Options::max_templates; a graph
  // that cannot be instantiated; verify mode (OnStale::kForget); a new recording for changed values. Until something is
  // erased, live_templates equals captures - forgotten.
  std::uint64_t forgotten = 0;
  // +1 for each update that the runtime refused (EntryInfo::refusal). The two graphs look like siblings but are not, so
  // the key has none until its next capture.
  std::uint64_t refused_updates = 0;
  // +1 for each executable that was meant to be device-updated, and that the driver did not accept as such.
  std::uint64_t refused_device_updates = 0;
  std::uint64_t verified = 0;  // +1 for each hit whose `fn` was recorded again and compared (Options::verify_every).
  std::uint64_t stale = 0;     // +1 for each such recording that differed or broke (EntryInfo::stale).

  // ---- What there is now --------------------------------------------------------------------------------------------

  std::uint64_t live_executables = 0;  // Executables that exist now.
  // Templates (captured graphs) that are kept now.
  std::uint64_t live_templates = 0;
  // Families among the graphs that were read (EntryInfo::family). A graph is read once another graph may be its
  // sibling.
  std::uint64_t families = 0;
  std::uint64_t estimated_device_bytes = 0;  // Device memory of the live executables, estimated from their nodes.

  // ---- Host time ----------------------------------------------------------------------------------------------------

  // The sums over all threads. Each grows when the operation that it measures ends, successful or not.
  std::chrono::nanoseconds capture_time{0};  // Time of captures, `fn` included.
  // Time of making executables: cudaGraphInstantiate, and the preparation of device-updated executables.
  std::chrono::nanoseconds instantiate_time{0};
  std::chrono::nanoseconds update_time{0};  // Time of switching executables to siblings.
  // Time of first launches, which upload the executable, and of the uploads of warm().
  std::chrono::nanoseconds first_launch_time{0};

  std::uint64_t outcome(Outcome which) const { return outcomes[static_cast<std::size_t>(which)]; }
  std::uint64_t eager(EagerReason reason) const { return eager_reasons[static_cast<std::size_t>(reason)]; }
  // The number of all runs: those with an outcome, and those that failed.
  std::uint64_t runs() const;
  std::uint64_t hits() const;
  std::uint64_t misses() const;
  // Rates from 0 to 1, and 0 before the first run. They consider hits, misses and direct runs; inlined and failed runs
  // do not count.
  double hit_rate() const;    // The share of runs that did not call `fn`.
  double graph_rate() const;  // The share of runs that launched a graph.
};

// The difference of two snapshots of one cache. Counters and times are subtracted, so the rates are those of the time
// between the snapshots. Members that say what there is now are those of `later`: live_executables, live_templates,
// families and estimated_device_bytes.
Stats operator-(const Stats& later, const Stats& earlier);

// What was found, and how often.
struct Counted {
  std::string text;
  std::uint64_t count = 0;
};

// What the recordings of a key have shown of one value of its runs (values.h).
enum class ValueState : std::uint8_t {
  kUnseen,     // It has not changed yet. The first change captures.
  kSeen,       // It has changed once. The next change captures.
  kFound,      // It is patched.
  kAmbiguous,  // An argument may hold it or another value. A change captures unless these are equal.
  kDerived,    // Something depends on it and is not it, so each change captures.
};
struct ValueInfo {
  ValueState state = ValueState::kUnseen;
  // "argument 1 of node 7 (kernel add)", "5 places in 2 nodes", "nowhere". For kDerived, what depends on it.
  std::string places;
};
const char* to_string(ValueState state);

// One entry of a cache, as Cache::entries() reports it.
struct EntryInfo {
  std::uint64_t id = 0;  // Identifies the entry within its cache. It is never used again.
  Key key;
  std::string label;  // The key's label: its first text, cut at 32 bytes. Empty if the key contains no text.
  // The place in the program to which the entry belongs (cache.h, "The place"). Use it to compare entries only.
  const void* place = nullptr;
  std::array<std::uint64_t, kOutcomeCount> outcomes{};  // As in Stats, for the runs of this entry.
  bool live = false;                                    // Whether the entry has an executable now.
  bool recorded = false;                                // Whether it has a template (Cache::contains()).
  bool pinned = false;                                  // Whether Cache::pin() has pinned it.
  Rule rule = Rule::kNone;                              // By which rule it last got an executable.
  Loss executable_lost = Loss::kNone;                   // Why it last lost its executable, if it ever did.
  Loss template_lost = Loss::kNone;                     // Why it last lost its template, if it ever did.
  std::size_t others = 0;                               // The number of executables when it was last evicted.
  std::optional<EagerReason> eager_reason;              // Why its last direct run was direct, if there was one.
  // The error behind the reason: why its last capture broke, or what the runtime refused since then. Empty if there was
  // no error.
  std::string error;
  std::string refusal;  // Why the runtime last refused to update an executable to its graph, or empty.
  // The findings of verify mode (Options::verify_every), at most 32. Those of one argument of a node count as one, and
  // the text is the last of them.
  std::vector<Counted> stale;
  // Work that `fn` enqueued during captures of the key, but outside its graph, so that a replay does not repeat it.
  // Each kind has one text, such as "kernel add(float*) was launched by step() on stream 0 (the legacy stream)". At
  // most 32. Empty unless Options::diagnose is set.
  std::vector<Counted> stray_work;
  std::vector<ValueInfo> values;     // In the order of values(). Empty if its runs have none, or too many identities.
  bool has_many_identities = false;  // Whether the key has too many entries to find values (values.h).
  // The number of its family, equal for siblings. 0 if the entry cannot have siblings, or has not looked for them.
  std::uint64_t family = 0;
  // Whether its graph was read to find siblings. That is done once another key's graph has the same types of nodes and
  // there is no room for its own executable. Share::kAlways does not wait for the latter.
  bool looked_for_siblings = false;
  std::size_t nodes = 0;                   // The number of nodes of its graph. 0 before the first capture.
  std::size_t slot_nodes = 0;              // The number of nodes that hold values of slots.
  std::size_t estimated_device_bytes = 0;  // Device memory of its executable, estimated.
  // 0 for the entry that was used last, 1 for the one before it, and so on. Hits of several threads between two runs
  // that are no hits may be in any order.
  std::size_t last_use_order = 0;
};

// Readable text, whose format may change. graphcache/format.h makes the types of this header printable by fmt.
std::string to_string(const Stats& stats);
std::string to_string(const EntryInfo& entry);
// The text, and the count if it is not 1.
std::string to_string(const Counted& found);

}  // namespace graphcache
