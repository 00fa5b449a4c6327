// What a cache did: the outcome of each run, and counters.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace graphcache {

// What one successful run did. A hit replays work that was captured before, and does not call `fn`; a miss calls `fn`
// under capture.
enum class Outcome {
  kReplayed,      // Hit: one launch, nothing had to change.
  kPatched,       // Hit: values had changed; the nodes that hold them were patched before the launch.
  kSwitched,      // Not yet: hit, an executable was brought over from a sibling's content by the key's own template.
  kUpdated,       // Not yet: miss, captured, and an executable of the same topology was updated.
  kInstantiated,  // Miss: captured, and a new executable was instantiated.
  kEager,         // `fn` enqueued its work directly; EagerReason says why.
  kInlined,       // The run was made inside another run's capture and became part of it.
};
inline constexpr int kOutcomeCount = 7;

// Why a run called `fn` directly, without capturing it.
enum class EagerReason {
  kDisabled,       // Options::max_executables is 0.
  kCaptureAfter,   // The key was among its first Options::capture_after runs.
  kCaptureFailed,  // The capture was tried and broke, so the work was enqueued directly after it.
  kBackoff,      // An earlier run of the key ended in one of the reasons below or a broken capture; the next capture is
                 // tried after 1, 2, 4, ... up to 1024 runs.
  kBudget,       // Every executable was in use by another thread's run, so that none could leave for a new one.
  kOutOfMemory,  // Instantiation ran out of memory, also after the least recently used executable had left.
  kRefused,      // The runtime refused the instantiation or a new value of a slot node; the executable was dropped.
  kLaunchFailed,  // cudaGraphLaunch failed without harm to the context; the executable was dropped.
};
inline constexpr int kEagerReasonCount = 8;

// "replayed", "capture_failed", ...: the enumerator without its k, in lower case.
const char* to_string(Outcome outcome);
const char* to_string(EagerReason reason);

// A snapshot of the counters since the cache was made. Taken without stopping the runs of other threads: each counter
// is exact for all runs that returned before the call, and may or may not hold those still under way.
struct Stats {
  std::array<std::uint64_t, kOutcomeCount> outcomes{};           // +1 for each run that returned this outcome.
  std::array<std::uint64_t, kEagerReasonCount> eager_reasons{};  // +1 with each kEager outcome, by its reason.
  std::uint64_t failed = 0;            // +1 for each run that returned an error or passed on an exception of `fn`.
  std::uint64_t captures = 0;          // +1 for each capture that ended with a graph.
  std::uint64_t capture_failures = 0;  // +1 for each capture that was begun and gave no graph to keep.
  std::uint64_t instantiations = 0;    // +1 for each successful cudaGraphInstantiate.
  std::uint64_t patched_nodes = 0;     // +1 for each slot node whose parameters were set in an executable.
  std::uint64_t evictions = 0;         // +1 for each executable that left to make room for another.
  std::uint64_t live_executables = 0;  // Executables now alive.
  std::uint64_t live_templates = 0;    // Templates (captured graphs) now kept.
  std::uint64_t estimated_device_bytes = 0;      // Device memory of the live executables, at 2 KiB a node.
  std::chrono::nanoseconds capture_time{0};      // Time between the begin and the end of captures, `fn` included.
  std::chrono::nanoseconds instantiate_time{0};  // Time inside cudaGraphInstantiate.

  std::uint64_t outcome(Outcome which) const { return outcomes[static_cast<std::size_t>(which)]; }
  std::uint64_t eager(EagerReason reason) const { return eager_reasons[static_cast<std::size_t>(reason)]; }
  // All runs: every outcome, and those that failed.
  std::uint64_t runs() const;
  std::uint64_t hits() const;
  std::uint64_t misses() const;
  // hits / (hits + misses), from 0 to 1; 0 before the first of either. Eager, inlined and failed runs are neither.
  double hit_rate() const;
};

// One entry of a cache, as Cache::entries() reports it.
struct EntryInfo {
  std::string label;  // The key's label: its first text, cut at 32 bytes. Empty if the key holds none.
  std::string key;    // The whole key in readable form.
  std::array<std::uint64_t, kOutcomeCount> outcomes{};  // As in Stats, for this entry's runs.
  bool live = false;                                    // Whether the entry has an executable now.
  std::size_t nodes = 0;                                // Nodes of its graph; 0 before the first capture.
  std::size_t slot_nodes = 0;                           // Those of them that hold values of slots.
  std::size_t estimated_device_bytes = 0;               // Of its executable, at 2 KiB a node.
  std::size_t last_use_order = 0;                       // 0 for the entry used last, then 1, 2, ...
};

// Several lines of text for people; the format is not fixed. graphcache/format.h makes the types here printable by fmt.
std::string to_string(const Stats& stats);
std::string to_string(const EntryInfo& entry);

}  // namespace graphcache
