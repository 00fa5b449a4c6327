// Reads an entry's graph for people (Cache::graph).
#include <absl/strings/str_cat.h>

#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "cuda/errors.h"
#include "graph/graph_info.h"
#include "run/impl.h"

namespace graphcache {

absl::StatusOr<GraphInfo> Cache::Impl::graph(const Key& key) try {
  const Entry* latest = nullptr;
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    for (const Entry* entry = index_.find(key); entry != nullptr; entry = Index::next_of_key(entry)) {
      const bool is_later =
          latest == nullptr || latest->state == State::kCold || latest->last_use() < entry->last_use();
      if (is_later && (latest == nullptr || entry->state != State::kCold)) latest = entry;
    }
    if (latest != nullptr) number = latest->number();
  }
  if (latest == nullptr) return absl::NotFoundError("no run of this key is known");
  return graph(number);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

absl::StatusOr<GraphInfo> Cache::Impl::graph(std::uint64_t number) try {
  GraphInfo info;
  Entry* locked = nullptr;
  if (absl::Status status = lock_by_number(number, &locked, &info.family); !status.ok()) return status;
  const Held entry(*this, locked);
  info.entry = number;
  info.label = std::string(entry->key.label());
  const LastErrorGuard last_error;
  DeviceGuard device(options_.device);
  if (!device.status().ok()) return device.status();
  Executable* const executable = entry->executable.get();
  const Template& from = entry->graph.empty() ? executable->base() : entry->graph;
  if (!read_graph_info(from, *entry->content, executable == nullptr ? nullptr : executable->exec(), &info)) {
    return absl::InternalError("the runtime could not report the types or the dependencies of the graph's nodes");
  }
  return info;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// Takes the lock of an entry that has a template. Runs may hold the lock for a long time.
absl::Status Cache::Impl::lock_by_number(std::uint64_t number, Entry** locked, std::uint64_t* family) {
  constexpr std::chrono::milliseconds kMost(100);
  const auto end = std::chrono::steady_clock::now() + kMost;
  if (absl::Status lost = status(); !lost.ok()) return lost;
  MutexLock lock(mutex_);
  do {
    Entry* const entry = index_.of_number(number);
    if (entry == nullptr) return absl::NotFoundError(absl::StrCat("the cache has no entry ", number));
    if (entry->state == State::kCold) return absl::NotFoundError("the entry has no graph");
    if (entry->lock.try_lock()) {
      *locked = entry;
      *family = policy_.family(entry->id);
      return absl::OkStatus();
    }
    entry->lock.announce_wait();
    unlocked_.wait_for(mutex_, std::chrono::milliseconds(1));
  } while (std::chrono::steady_clock::now() < end);
  return absl::UnavailableError("the entry is in use by a run");
}

}  // namespace graphcache
