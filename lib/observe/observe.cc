#include "graphcache/observe.h"

#include <absl/strings/str_cat.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <new>
#include <stdexcept>

namespace graphcache {
namespace {

// The free memory of the device, or -1 if it is unknown. Allowed during captures.
std::int64_t free_bytes(int device) {
  int before = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaGetDevice(&before) != cudaSuccess || cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return -1;
  std::size_t free = 0, total = 0;
  const bool is_known = cudaSetDevice(device) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess;
  cudaSetDevice(before);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return is_known ? static_cast<std::int64_t>(free) : -1;
}

bool changes_memory(EventKind kind) {
  switch (kind) {
    case EventKind::kInstantiate:
    case EventKind::kUpdate:
    case EventKind::kUpload:
    case EventKind::kDestroyExecutable:
    case EventKind::kDestroyGraph:
    case EventKind::kFree:
      return true;
    default:
      return false;
  }
}

}  // namespace

EventRing::EventRing(std::size_t events) try : ring_(std::max<std::size_t>(events, 1)) {
} catch (const std::length_error&) {
  throw std::bad_alloc();
}

void EventRing::end(const CacheEvent& event) {
  const auto label = event.key.label();
  Kept kept = {event.kind,
               event.outcome,
               event.loss,
               event.thread,
               event.begin,
               event.end - event.begin,
               std::min(label.size(), Kept().label.size()),
               {}};
  std::copy_n(label.data(), kept.label_size, kept.label.data());
  const std::lock_guard<std::mutex> lock(mutex_);
  ring_[next_] = kept;
  next_ = next_ + 1 == ring_.size() ? 0 : next_ + 1;
  kept_ = std::min(kept_ + 1, ring_.size());
}

std::vector<KeptEvent> EventRing::events() const {
  std::vector<Kept> kept;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = ring_.begin() + static_cast<std::ptrdiff_t>(next_);
    if (kept_ == ring_.size()) kept.assign(next, ring_.end());
    kept.insert(kept.end(), ring_.begin(), next);
  }
  std::vector<KeptEvent> events;
  events.reserve(kept.size());
  for (const Kept& each : kept) {
    events.push_back({each.kind, each.outcome, each.loss, std::string(each.label.data(), each.label_size), each.thread,
                      each.begin, each.duration});
  }
  return events;
}

void HitLatency::end(const CacheEvent& event) {
  // Runs with an entry are reported whatever the interval is.
  if (event.kind != EventKind::kRun || event.entry != 0 || !event.outcome || !is_hit(*event.outcome)) return;
  const auto ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(event.end - event.begin).count());
  const auto bucket = std::upper_bound(kBounds.begin(), kBounds.end(), ns) - kBounds.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
}

HitLatency::Counts HitLatency::counts() const {
  Counts counts;
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
  return counts;
}

std::string to_string(const HitLatency& latency) {
  const HitLatency::Counts counts = latency.counts();
  std::string text;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const bool is_last = i == HitLatency::kBounds.size();
    absl::StrAppend(&text, text.empty() ? "" : ", ", counts[i], is_last ? " from " : " below ",
                    static_cast<double>(HitLatency::kBounds[is_last ? i - 1 : i]) / 1000, " us");
  }
  return text;
}

absl::Status MemoryMeter::begin(const CacheEvent& event) {
  if (!changes_memory(event.kind)) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spans_++ == 0) free_before_ = free_bytes(device_);
  return absl::OkStatus();
}

void MemoryMeter::end(const CacheEvent& event) {
  if (!changes_memory(event.kind)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--spans_ != 0) return;
  const std::int64_t free_after = free_bytes(device_);
  if (free_before_ >= 0 && free_after >= 0) bytes_ += free_before_ - free_after;
}

void StrayCounter::end(const CacheEvent& event) {
  if (event.kind != EventKind::kStray) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = counts_.find(std::string(event.text));
  if (known != counts_.end()) {
    ++known->second;
  } else {
    ++counts_[counts_.size() < kMost ? std::string(event.text) : "other"];
  }
}

std::map<std::string, std::uint64_t> StrayCounter::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

}  // namespace graphcache
