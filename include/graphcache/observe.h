// Listeners that are ready for use: a log, the last events, ranges for profilers, a histogram of hits, a meter of
// device memory, and a counter of work outside of captures.
//
//   auto events = std::make_shared<graphcache::EventRing>(10'000);
//   auto latency = std::make_shared<graphcache::HitLatency>();
//   graphcache::Cache cache({.listeners = {events, latency}});
//
// All members are thread-safe. One listener may serve several caches, and then adds them up.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graphcache/listener.h"

namespace graphcache {

// Passes Listener::message() to a function, which must be thread-safe.
class Log final : public Listener {
 public:
  explicit Log(std::function<void(std::string_view)> write) : write_(std::move(write)) {}
  void message(std::string_view line) override { write_(line); }

 private:
  const std::function<void(std::string_view)> write_;
};

// An event that an EventRing has kept.
struct KeptEvent {
  EventKind kind = EventKind::kRun;
  std::optional<Outcome> outcome;
  Loss loss = Loss::kNone;
  std::string label;  // The label of the key, cut at 32 bytes.
  unsigned thread = 0;
  std::chrono::steady_clock::time_point begin;
  std::chrono::nanoseconds duration{0};
};

// Keeps the last events, at about 100 bytes each. Every hit then reads the clock twice and takes a lock that all runs
// share.
class EventRing final : public Listener {
 public:
  // `events` must be positive. Throws std::bad_alloc.
  explicit EventRing(std::size_t events);

  Wants wants() const override { return {1, false}; }
  void end(const CacheEvent& event) override;

  // In the order in which they ended, oldest first. Throws std::bad_alloc.
  std::vector<KeptEvent> events() const;

 private:
  // An event is stored without allocating.
  struct Kept {
    EventKind kind;
    std::optional<Outcome> outcome;
    Loss loss;
    unsigned thread;
    std::chrono::steady_clock::time_point begin;
    std::chrono::nanoseconds duration;
    std::size_t label_size;
    std::array<char, 32> label;
  };

  mutable std::mutex mutex_;
  std::vector<Kept> ring_;  // Its size is fixed.
  std::size_t next_ = 0, kept_ = 0;
};

// Emits ranges and marks for NVIDIA's profilers, in an NVTX 3 domain called graphcache. A name is the kind of the event
// and the label of the key. Does nothing if no profiler is attached when it is made, or if the library was compiled
// without the headers of NVTX.
class NvtxRanges final : public Listener {
 public:
  NvtxRanges();

  Wants wants() const override { return {is_profiled_ ? 1 : 0, false}; }
  absl::Status begin(const CacheEvent& event) override;
  void end(const CacheEvent& event) override;

 private:
  const bool is_profiled_;
};

// A histogram of the host time of hits, from the begin of a run to its end.
class HitLatency final : public Listener {
 public:
  // The upper bounds of the buckets, in nanoseconds. The last bucket has no upper bound.
  static constexpr std::array<std::uint64_t, 15> kBounds = {500,    1'000,  1'500,   2'000,   3'000,
                                                            4'000,  6'000,  8'000,   12'000,  16'000,
                                                            32'000, 64'000, 128'000, 512'000, 2'048'000};
  using Counts = std::array<std::uint64_t, kBounds.size() + 1>;

  // Times about one run in `interval` of each thread, rounded up to a power of two. It times more if another
  // listener of the cache wants more (Listener::Wants::hits).
  explicit HitLatency(int interval = 1024) : interval_(interval) {}

  Wants wants() const override { return {interval_, false}; }
  void end(const CacheEvent& event) override;

  // Number of timed hits by bucket: bucket i holds times from kBounds[i - 1] to below kBounds[i].
  Counts counts() const;

 private:
  const int interval_;
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
};

// The buckets that are not empty, such as "3 below 1 us, 2 below 1.5 us".
std::string to_string(const HitLatency& latency);

// Measures the device memory that executables take: the decrease of the free memory of one device over all
// instantiations, updates, uploads and destructions. The driver takes and returns memory in pieces of 2 MiB and more,
// and allocations by others at these moments are included. A query takes the host 10 us or more.
class MemoryMeter final : public Listener {
 public:
  explicit MemoryMeter(int device) : device_(device) {}

  absl::Status begin(const CacheEvent& event) override;
  void end(const CacheEvent& event) override;

  // Never waits for a driver call.
  std::int64_t bytes() const { return bytes_; }

 private:
  const int device_;
  std::mutex mutex_;
  int spans_ = 0;                  // Events under way. The time from the first to the last is measured once.
  std::int64_t free_before_ = -1;  // Negative if unknown.
  std::atomic<std::int64_t> bytes_{0};
};

// Counts work that `fn` enqueued outside of its captures, by its description (Options::diagnose).
class StrayCounter final : public Listener {
 public:
  void end(const CacheEvent& event) override;

  std::map<std::string, std::uint64_t> counts() const;

 private:
  static constexpr std::size_t kMost = 256;  // Further descriptions count as "other".

  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t> counts_;
};

}  // namespace graphcache
