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

namespace graphcache {

// What one successful run did. A hit replays work that was captured before, and does not call `fn`. A miss calls `fn`
// under capture. Siblings are keys of one family, which can share executables (Options::share).
enum class Outcome {
  kReplayed,      // Hit: one launch; nothing had to change.
  kPatched,       // Hit: values had changed; the nodes that hold them were patched before the launch.
  kSwitched,      // Hit: the executable of a sibling was changed into that of this key, and launched.
  kRestored,      // Hit: a new executable was instantiated from the key's template.
  kUpdated,       // Miss: `fn` was captured, and the executable of a sibling was changed into that of this key.
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
  // runs. That run had a broken capture, ended in kOutOfMemory, kRefused, kLaunchFailed or kMemoryInUse, or had an
  // error by which the key lost its executable.
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
  // The graph allocates memory that it does not free, and the memory of an earlier launch had not been freed, so that a
  // launch was impossible. The executable and the template were dropped.
  kMemoryInUse,
  // A background thread is making the key's executable, or this run has asked for that (Options::background_threads).
  kPreparing,
};
inline constexpr int kEagerReasonCount = 11;

// Why the runtime refused to update an executable, after cudaGraphExecUpdateResult.
enum class UpdateRefusal {
  kTopology,      // Nodes or edges differ.
  kNodeType,      // The type of a node differs.
  kFunction,      // One kernel cannot take the place of the other.
  kParameters,    // Parameters differ that an update cannot change.
  kAttributes,    // Launch attributes differ that an update cannot change.
  kNotSupported,  // A node differs in some other way that an update cannot change.
  kOther,         // The runtime gave no reason.
};
inline constexpr int kUpdateRefusalCount = 7;

// The enumerator without its k, in lower case: "replayed", "capture_failed", ...
const char* to_string(Outcome outcome);
const char* to_string(EagerReason reason);
const char* to_string(UpdateRefusal refusal);

// The upper bounds of the buckets of Stats::hit_latency, in nanoseconds. The last bucket has no upper bound.
inline constexpr std::array<std::uint64_t, 15> kHitLatencyBounds = {
    500, 1'000, 1'500, 2'000, 3'000, 4'000, 6'000, 8'000, 12'000, 16'000, 32'000, 64'000, 128'000, 512'000, 2'048'000};
inline constexpr std::size_t kHitLatencyBuckets = kHitLatencyBounds.size() + 1;

// A snapshot of the counters since the cache was made. The runs of other threads go on meanwhile: each counter includes
// every run that returned before the call, and may include runs that are still under way.
struct Stats {
  // ---- Runs ---------------------------------------------------------------------------------------------------------

  std::array<std::uint64_t, kOutcomeCount> outcomes{};           // +1 for each run that returned this outcome.
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};  // +1 with each kEager outcome, by its reason.
  std::uint64_t failed = 0;  // +1 for each run or warm() that returned an error or passed on an exception of `fn`.

  // ---- What runs caused ---------------------------------------------------------------------------------------------

  std::uint64_t captures = 0;  // +1 for each capture that ended with a graph, and for each graph of Cache::adopt().
  std::uint64_t capture_failures = 0;  // +1 for each capture that began and gave no graph to keep.
  std::uint64_t instantiations = 0;    // +1 for each successful cudaGraphInstantiate.
  // A switch changes the executable of one key into that of a sibling. It is made by an update, by a parameter set of
  // the executable's table, or by patches of the nodes that differ, whichever is cheapest.
  std::uint64_t updates = 0;       // +1 for each successful cudaGraphExecUpdate.
  std::uint64_t set_switches = 0;  // +1 for each switch that was made by a parameter set.
  // +1 for each node that was set to new parameters, by a call or by the device during a launch. Switches by a
  // parameter set do not count.
  std::uint64_t patched_nodes = 0;
  std::uint64_t evictions = 0;  // +1 for each executable that was evicted to make room for another one or for a table.
  // +1 for each template that was dropped although its key stayed. The reasons are: Options::max_templates; the
  // eviction of a key that uses Recorder::on_device(); a graph that cannot be instantiated; memory that was not freed
  // (EagerReason::kMemoryInUse); verify mode (OnStale::kForget). Until something is erased, live_templates equals
  // captures - forgotten.
  std::uint64_t forgotten = 0;
  // +1 for each update that the runtime refused, by its reason. The two graphs looked like siblings but are not, so the
  // key has no siblings from then on.
  std::array<std::uint64_t, kUpdateRefusalCount> refused_updates{};
  // +1 for each executable that was meant to be device-updated, and that the driver did not accept as such.
  std::uint64_t refused_device_updates = 0;
  std::uint64_t verified = 0;  // +1 for each hit whose `fn` was recorded again and compared (Options::verify_every).
  std::uint64_t stale = 0;     // +1 for each such recording that differed or broke (EntryInfo::stale).

  // ---- What there is now --------------------------------------------------------------------------------------------

  std::uint64_t live_executables = 0;  // Executables that exist now.
  // Templates (captured graphs) that are kept now, adopted graphs included. Those do not count for
  // Options::max_templates.
  std::uint64_t live_templates = 0;
  // Families among the graphs that were read (EntryInfo::family). A graph is read once another graph may be its
  // sibling.
  std::uint64_t families = 0;
  std::uint64_t estimated_device_bytes = 0;  // Device memory of the live executables, estimated from their nodes.
  // The decrease of the device's free memory over all instantiations, updates, first launches and destructions
  // (Options::measure_device_bytes). The driver takes and returns memory in pieces of 2 MiB and more, and allocations
  // by others at these moments are included.
  std::int64_t measured_device_bytes = 0;

  // ---- Host time ----------------------------------------------------------------------------------------------------

  // The sums over all threads. Each grows when the operation that it measures ends, successful or not.
  std::chrono::nanoseconds capture_time{0};  // Time of captures, `fn` included.
  // Time of making executables: cudaGraphInstantiate, and the preparation of device-updated executables.
  std::chrono::nanoseconds instantiate_time{0};
  std::chrono::nanoseconds update_time{0};  // Time of switching executables to siblings.
  // Time of first launches, which upload the executable, and of the uploads of warm() and of background threads.
  std::chrono::nanoseconds first_launch_time{0};

  // +1 for each sampled run that was a hit, in the bucket of the host time of the whole run. Bucket i holds times from
  // kHitLatencyBounds[i - 1] to below kHitLatencyBounds[i]. If Options::time_hits is set, about one run in 1024 of each
  // thread is sampled; otherwise none is.
  std::array<std::uint64_t, kHitLatencyBuckets> hit_latency{};

  std::uint64_t outcome(Outcome which) const { return outcomes[static_cast<std::size_t>(which)]; }
  std::uint64_t eager(EagerReason reason) const { return eager_reasons[static_cast<std::size_t>(reason)]; }
  std::uint64_t refused(UpdateRefusal why) const { return refused_updates[static_cast<std::size_t>(why)]; }
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
// families, estimated_device_bytes and measured_device_bytes.
Stats operator-(const Stats& later, const Stats& earlier);

// The runs of all keys with one label, as Cache::labels() reports them.
struct LabelStats {
  // The label (EntryInfo::label). The last element may be "other", which sums up all further labels.
  std::string label;
  std::uint64_t entries = 0;  // The number of entries that exist now.
  // As in Stats, for these entries and for entries that no longer exist.
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};
};

// One entry of a cache, as Cache::entries() reports it.
struct EntryInfo {
  std::uint64_t id = 0;  // Identifies the entry within its cache. It is never used again.
  std::string label;     // The key's label: its first text, cut at 32 bytes. Empty if the key contains no text.
  std::string key;       // The whole key in readable form.
  std::array<std::uint64_t, kOutcomeCount> outcomes{};  // As in Stats, for the runs of this entry.
  bool live = false;                                    // Whether the entry has an executable now.
  bool recorded = false;                                // Whether it has a template, so that a run would not call `fn`.
  bool pinned = false;                                  // Whether Cache::pin() has pinned it.
  bool adopted = false;                                 // Whether Cache::adopt() provided its graph.
  std::optional<EagerReason> eager_reason;              // Why its last direct run was direct, if there was one.
  // The error behind the reason: why its last capture broke, or what the runtime refused since then. Empty if there was
  // no error.
  std::string error;
  std::string stale;  // The last finding of verify mode (Options::verify_every), or empty.
  // Work that `fn` enqueued during captures of the key, but outside its graph, so that a replay does not repeat it.
  // Each kind has one text, such as "kernel add(float*) was launched by step() on stream 0 (the legacy stream)". Empty
  // unless Options::diagnose is set.
  std::vector<std::string> stray_work;
  // The number of its family, equal for siblings. 0 if the entry cannot have siblings, or has none so far.
  std::uint64_t family = 0;
  std::size_t nodes = 0;                   // The number of nodes of its graph. 0 before the first capture.
  std::size_t slot_nodes = 0;              // The number of nodes that hold values of slots.
  std::size_t estimated_device_bytes = 0;  // Device memory of its executable, estimated.
  std::size_t last_use_order = 0;          // 0 for the entry that was used last, 1 for the one before it, and so on.
};

// Readable text of several lines, whose format may change. graphcache/format.h makes the types of this header printable
// by fmt.
std::string to_string(const Stats& stats);
std::string to_string(const EntryInfo& entry);

}  // namespace graphcache
