// What a cache did: the outcome of each run, and counters.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace graphcache {

// What one successful run did. A hit replays work that was captured before, and does not call `fn`; a miss calls `fn`
// under capture. Siblings are keys of one family: see Options::share.
enum class Outcome {
  kReplayed,      // Hit: one launch, nothing had to change.
  kPatched,       // Hit: values had changed; the nodes that hold them were patched before the launch.
  kSwitched,      // Hit: a sibling's executable was brought over to the key's graph.
  kRestored,      // Hit: a new executable was instantiated from the key's template.
  kUpdated,       // Miss: captured, and a sibling's executable was brought over.
  kInstantiated,  // Miss: captured, and a new executable was instantiated.
  kEager,         // `fn` enqueued its work directly; EagerReason says why.
  kInlined,       // The run was made inside another run's capture and became part of it.
};
inline constexpr int kOutcomeCount = 8;

inline bool is_hit(Outcome outcome) { return outcome <= Outcome::kRestored; }

// Why a run called `fn` directly, without capturing it.
enum class EagerReason {
  kDisabled,       // Options::max_executables is 0.
  kCaptureAfter,   // The key was among its first Options::capture_after runs.
  kCaptureFailed,  // The capture was tried and broke, so the work was enqueued directly after it.
  kBackoff,        // An earlier run of the key ended in a broken capture, in kOutOfMemory, kRefused, kLaunchFailed or
             // kMemoryInUse, or in an error that cost it its executable; the next capture is tried after 1, 2, 4, ...
             // up to 1024 runs.
  kBudget,        // No room for an executable could be made: all were pinned or in use by other threads' runs, or the
                  // graph needs more than Options::max_device_bytes.
  kOutOfMemory,   // Instantiation ran out of memory, also after the least recently used executable had left.
  kRefused,       // The runtime refused to instantiate or clone the graph, or a new value of a slot node; an executable
                  // that this left in doubt was dropped.
  kLaunchFailed,  // cudaGraphLaunch failed without harm to the context; the executable was dropped.
  kNothingCaptured,  // `fn` enqueued nothing on the stream that it was given: if it did any work, it did it elsewhere
                     // while it was captured. Later runs of the key call it directly.
  kMemoryInUse,  // The graph allocates memory that it does not free, and that of an earlier launch was not freed, so
                 // that it could not be launched again. The executable and the template were dropped.
  kPreparing,    // A background thread is making the key's executable, or has been asked to by this run
                 // (Options::background_threads).
};
inline constexpr int kEagerReasonCount = 11;

// Why the runtime refused to update an executable, after cudaGraphExecUpdateResult.
enum class UpdateRefusal {
  kTopology,      // Nodes or edges differ.
  kNodeType,      // Types of nodes differ.
  kFunction,      // A kernel that cannot take the place of the other.
  kParameters,    // Parameters that may not change.
  kAttributes,    // Launch attributes that may not change.
  kNotSupported,  // Something else about a node.
  kOther,         // No reason was given.
};
inline constexpr int kUpdateRefusalCount = 7;

// "replayed", "capture_failed", ...: the enumerator without its k, in lower case.
const char* to_string(Outcome outcome);
const char* to_string(EagerReason reason);
const char* to_string(UpdateRefusal refusal);

// The upper bounds of the buckets of Stats::hit_latency, in nanoseconds. The last bucket has none.
inline constexpr std::array<std::uint64_t, 15> kHitLatencyBounds = {
    500, 1'000, 1'500, 2'000, 3'000, 4'000, 6'000, 8'000, 12'000, 16'000, 32'000, 64'000, 128'000, 512'000, 2'048'000};
inline constexpr std::size_t kHitLatencyBuckets = kHitLatencyBounds.size() + 1;

// A snapshot of the counters since the cache was made. Taken without stopping the runs of other threads: each counter
// is exact for all runs that returned before the call, and may or may not hold those still under way.
struct Stats {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};           // +1 for each run that returned this outcome.
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};  // +1 with each kEager outcome, by its reason.
  std::uint64_t failed = 0;    // +1 for each run or warm() that returned an error or passed on an exception of `fn`.
  std::uint64_t captures = 0;  // +1 for each capture that ended with a graph, and for each graph of Cache::adopt().
  std::uint64_t capture_failures = 0;  // +1 for each capture that was begun and gave no graph to keep.
  std::uint64_t instantiations = 0;    // +1 for each successful cudaGraphInstantiate.
  // An executable is brought over to a sibling by an update, by a parameter set of its table, or by patches of the
  // nodes that differ, where these are cheaper.
  std::uint64_t updates = 0;       // +1 for each successful cudaGraphExecUpdate.
  std::uint64_t set_switches = 0;  // +1 for each executable brought over by a parameter set.
  // +1 for each node that was set anew, by a call or by the device in a launch. A parameter set counts none.
  std::uint64_t patched_nodes = 0;
  std::uint64_t evictions = 0;  // +1 for each executable that left for another: for room, or for a table.
  // +1 for each template that was dropped while its key stayed: because of Options::max_templates, with the executable
  // of a key that uses Recorder::on_device(), because its graph cannot be instantiated or its memory was not freed
  // (EagerReason::kMemoryInUse), or because verify mode found it stale (OnStale::kForget). Until something is erased,
  // live_templates is captures - forgotten.
  std::uint64_t forgotten = 0;
  // +1 for each update that the runtime refused, by its reason. The two graphs looked like siblings and are not: the
  // key has no siblings from then on.
  std::array<std::uint64_t, kUpdateRefusalCount> refused_updates{};
  // +1 for each executable that the device was to update and could not.
  std::uint64_t refused_device_updates = 0;
  std::uint64_t verified = 0;  // +1 for each hit whose `fn` was recorded again and compared (Options::verify_every).
  std::uint64_t stale = 0;     // +1 for each such recording that differed or broke (EntryInfo::stale).
  std::uint64_t live_executables = 0;  // Executables now alive.
  // Templates (captured graphs) now kept, adopted ones included. Those do not count for Options::max_templates.
  std::uint64_t live_templates = 0;
  // Families of the graphs that were read (EntryInfo::family). A graph is read when another one might be its sibling.
  std::uint64_t families = 0;
  std::uint64_t estimated_device_bytes = 0;  // Device memory of the live executables, by their nodes.
  // By how much the device's free memory has shrunk while executables were made, updated, launched for the first time
  // and destroyed (Options::measure_device_bytes). The driver takes and gives back memory in pieces of 2 MiB and more,
  // and what others allocate at these moments counts as well.
  std::int64_t measured_device_bytes = 0;

  // Host time, by all threads. Each grows at the end of what it measures, whether that succeeded or not.
  std::chrono::nanoseconds capture_time{0};  // In captures, `fn` included.
  // In making executables: cudaGraphInstantiate, and what makes one that the device updates.
  std::chrono::nanoseconds instantiate_time{0};
  std::chrono::nanoseconds update_time{0};  // In bringing executables over to siblings.
  // In the first launch of an executable, which uploads it, and in the uploads of warm() and of background threads.
  std::chrono::nanoseconds first_launch_time{0};

  // +1 for each sampled run that was a hit, in the bucket of the host's time for the whole run. About one run of 1024
  // of each thread is sampled, and none unless Options::time_hits is set. Bucket i holds times below
  // kHitLatencyBounds[i] and not below the one before.
  std::array<std::uint64_t, kHitLatencyBuckets> hit_latency{};

  std::uint64_t outcome(Outcome which) const { return outcomes[static_cast<std::size_t>(which)]; }
  std::uint64_t eager(EagerReason reason) const { return eager_reasons[static_cast<std::size_t>(reason)]; }
  std::uint64_t refused(UpdateRefusal why) const { return refused_updates[static_cast<std::size_t>(why)]; }
  // All runs: every outcome, and those that failed.
  std::uint64_t runs() const;
  std::uint64_t hits() const;
  std::uint64_t misses() const;
  // From 0 to 1, and 0 before the first run. Both count hits, misses and eager runs; inlined and failed runs count
  // nowhere.
  double hit_rate() const;    // The share of runs that did not call `fn`.
  double graph_rate() const;  // The share of runs that were launched as graphs.
};

// What was counted between two snapshots of one cache: the counters and times are differences, so that the rates are
// those of the time between. What is alive now (live_executables, live_templates, families, estimated_device_bytes,
// measured_device_bytes) is that of `later`.
Stats operator-(const Stats& later, const Stats& earlier);

// The runs of the keys of one label, as Cache::labels() reports them.
struct LabelStats {
  std::string label;          // EntryInfo::label. Of the last one, which has the keys of all further labels: "other".
  std::uint64_t entries = 0;  // That exist now.
  std::array<std::uint64_t, kOutcomeCount> outcomes{};  // As in Stats, of these and of entries that are gone.
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};
};

// One entry of a cache, as Cache::entries() reports it.
struct EntryInfo {
  std::uint64_t id = 0;  // Tells the entries of one cache apart. No later entry has it.
  std::string label;     // The key's label: its first text, cut at 32 bytes. Empty if the key holds none.
  std::string key;       // The whole key in readable form.
  std::array<std::uint64_t, kOutcomeCount> outcomes{};  // As in Stats, for this entry's runs.
  bool live = false;                                    // Whether the entry has an executable now,
  bool recorded = false;                                // and a template: a run would not call `fn`.
  bool pinned = false;                                  // By Cache::pin.
  bool adopted = false;                                 // Whether its graph came by Cache::adopt.
  std::optional<EagerReason> eager_reason;              // Why its last direct run was one, if it had any.
  // The error behind that: what broke its last capture, or what the runtime refused since then. Empty if there is none.
  std::string error;
  std::string stale;  // What verify mode found the last time that it found something (Options::verify_every), or empty.
  // Work that `fn` enqueued in captures of the key and that is not part of its graph: a text for each kind, such as
  // "kernel add(float*) was launched by step() on stream 0 (the legacy stream)". A replay does not repeat it. Empty
  // unless Options::diagnose asks for it.
  std::vector<std::string> stray_work;
  std::uint64_t family = 0;                // Equal for siblings; 0 for an entry that can have none, or none so far.
  std::size_t nodes = 0;                   // Nodes of its graph; 0 before the first capture.
  std::size_t slot_nodes = 0;              // Those of them that hold values of slots.
  std::size_t estimated_device_bytes = 0;  // Of its executable.
  std::size_t last_use_order = 0;          // 0 for the entry used last, then 1, 2, ...
};

// Several lines of text for people; the format is not fixed. graphcache/format.h makes the types here printable by fmt.
std::string to_string(const Stats& stats);
std::string to_string(const EntryInfo& entry);

}  // namespace graphcache
