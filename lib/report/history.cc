#include "graphcache/history.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <string_view>

#include "graphcache/cache.h"

namespace graphcache {
namespace {

// The element of a label, which may be made for it.
LabelStats& of_label(std::vector<LabelStats>& labels, std::string_view label) {
  std::size_t i = 0;
  while (i < labels.size() && i < History::kMostLabels && labels[i].label != label) ++i;
  if (i == labels.size()) labels.emplace_back().label = i < History::kMostLabels ? std::string(label) : "other";
  return labels[i];
}

void add(const std::array<std::uint64_t, kOutcomeCount>& counts, LabelStats* stats) {
  for (std::size_t i = 0; i < counts.size(); ++i) stats->outcomes[i] += counts[i];
}

}  // namespace

absl::Status History::begin(const CacheEvent& event) {
  if (event.kind != EventKind::kRun) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex_);
  runs_.insert(event.thread);
  return absl::OkStatus();
}

void History::end(const CacheEvent& event) {
  // A run that a listener wants as a hit is reported without its entry, also if it is direct. A disabled cache has no
  // entries whose counts could be lost.
  const bool is_direct = event.reason && *event.reason != EagerReason::kDisabled;
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_in_run = runs_.count(event.thread) != 0;           // Else in a warm().
  if (event.kind == EventKind::kRun) runs_.extract(event.thread);  // An outer run of the thread may go on.
  if (event.entry == 0 && !is_direct) return;
  LabelStats& label = of_label(labels_, event.key.label());
  switch (event.kind) {
    case EventKind::kRun:
      if (event.reason) ++label.eager_reasons[static_cast<std::size_t>(*event.reason)];
      break;
    case EventKind::kCapture:
      if (event.captured != nullptr && event.loss == Loss::kTemplates) ++recaptures_;
      break;
    case EventKind::kInstantiate:
    case EventKind::kUpdate:
      if (!event.status.ok()) break;
      executables_ += event.kind == EventKind::kInstantiate ? 1 : 0;
      for (Ghosts& ghosts : ghosts_) {
        is_in_run ? ghosts.came_back(event.entry, executables_) : ghosts.remove(event.entry);
      }
      break;
    case EventKind::kEvict:
      for (Ghosts& ghosts : ghosts_) ghosts.lost(event.entry, executables_);
      if (executables_ != 0) --executables_;
      break;
    case EventKind::kLend:
      ghosts_[1].lost(event.entry, executables_);
      break;
    case EventKind::kDestroyExecutable:
      if (event.loss != Loss::kEvicted && executables_ != 0) --executables_;  // Else it has left the count before.
      break;
    case EventKind::kErase:
      if (event.runs != nullptr) add(*event.runs, &label);
      for (Ghosts& ghosts : ghosts_) ghosts.remove(event.entry);
      break;
    default:
      break;
  }
}

std::vector<LabelStats> History::labels() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return labels_;
}

History::Returns History::returns(bool with_lent) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ghosts_[with_lent ? 1 : 0].returns;
}

std::uint64_t History::recaptures() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return recaptures_;
}

void History::Ghosts::lost(std::uint64_t entry, std::size_t executables) {
  remove(entry);
  entries.push_back(entry);
  // Those that four times the budget would have kept, and the one that is about to come back.
  const std::size_t most = 3 * executables + 1;
  if (entries.size() > most) entries.erase(entries.begin(), entries.end() - static_cast<std::ptrdiff_t>(most));
}

// The key takes the place of another one, which was lost just before.
void History::Ghosts::came_back(std::uint64_t entry, std::size_t executables) {
  const auto found = std::find(entries.rbegin(), entries.rend(), entry);
  if (found == entries.rend()) return;
  const auto later = static_cast<std::size_t>(found - entries.rbegin());
  if (later <= executables) ++returns.of_twice;
  ++returns.of_four_times;
  entries.erase(std::next(found).base());
}

void History::Ghosts::remove(std::uint64_t entry) {
  entries.erase(std::remove(entries.begin(), entries.end(), entry), entries.end());
}

std::vector<LabelStats> labels(const Cache& cache) try {
  const History* const history = find_listener<History>(cache.options().listeners);
  std::vector<LabelStats> labels;
  // First, so that an entry that is erased meanwhile is not counted twice.
  if (history != nullptr) labels = history->labels();
  for (const EntryInfo& entry : cache.entries()) {
    LabelStats& label = of_label(labels, entry.label);
    ++label.entries;
    add(entry.outcomes, &label);
    if (history == nullptr && entry.eager_reason) {
      label.eager_reasons[static_cast<std::size_t>(*entry.eager_reason)] +=
          entry.outcomes[static_cast<std::size_t>(Outcome::kEager)];
    }
  }
  return labels;
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace graphcache
