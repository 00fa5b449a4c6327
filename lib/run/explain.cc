// Describes the state of a key (Cache::explain).
#include <absl/functional/function_ref.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "run/impl.h"

namespace graphcache {
namespace {

// Why a run called `fn` directly, and how to avoid it.
std::string sentence(EagerReason reason, const Options& options) {
  switch (reason) {
    case EagerReason::kDisabled:
      return "the cache captures nothing (Options::max_executables is 0)";
    case EagerReason::kCaptureAfter:
      return absl::StrCat("it was one of its first ", options.capture_after, " runs (Options::capture_after)");
    case EagerReason::kCaptureFailed:
      return "its capture broke";
    case EagerReason::kBackoff:
      return "an earlier run failed to make a graph; the next try is after 1, 2, 4, ... up to 1024 runs";
    case EagerReason::kBudget:
      return absl::StrCat(
          "no executable could be evicted for it: all were pinned or in use, or the graph is too large "
          "(Options::max_executables is ",
          options.max_executables, ")");
    case EagerReason::kOutOfMemory:
      return "device memory ran out when its executable was made";
    case EagerReason::kRefused:
      return "the runtime refused its graph, or a new value of one of its nodes";
    case EagerReason::kLaunchFailed:
      return "its launch failed";
    case EagerReason::kNothingCaptured:
      return "fn enqueued nothing on the stream that it was given: enqueue on rec.stream()";
    case EagerReason::kMemoryInUse:
      return "memory that its graph hands out was not freed after an earlier launch";
    case EagerReason::kPreparing:
      return "a background thread was making its executable, or none was free to make it (Options::background_threads)";
  }
  return "of an unknown reason";
}

// Why an executable or a template was lost.
std::string sentence(Loss loss, std::size_t others, const Options& options) {
  switch (loss) {
    case Loss::kNone:
      return "";
    case Loss::kEvicted:
      return absl::StrCat("other keys were used more recently, and there was no room for another one beside ", others,
                          " (Options::max_executables is ", options.max_executables,
                          options.max_device_bytes == SIZE_MAX
                              ? ""
                              : absl::StrCat(", Options::max_device_bytes is ", options.max_device_bytes),
                          ")");
    case Loss::kLent:
      return "a sibling uses it now";
    case Loss::kFailed:
      return "of an error";
    case Loss::kTemplates:
      return absl::StrCat("there were more templates than Options::max_templates (", options.max_templates, ")");
    case Loss::kOfOne:
      return "it was dropped with the executable: fn uses Recorder::on_device() or hands out memory";
    case Loss::kMemory:
      return "a direct run handed out other memory than the graph's";
    case Loss::kStale:
      return "verify mode found it stale (OnStale::kForget)";
  }
  return "";
}

// Which rule of docs/policy.md gave the key its executable.
std::string sentence(Rule rule) {
  switch (rule) {
    case Rule::kNone:
      return "";
    case Rule::kRoom:
      return ", of its own because there was room (rule 1)";
    case Rule::kSibling:
      return ", shared with its siblings (rule 2)";
    case Rule::kEviction:
      return ", in the place of the one used longest ago (rule 3)";
  }
  return "";
}

}  // namespace

std::string Cache::Impl::explain(const Key& key) try {
  // The entry's own number, and those of entries with graphs that could be similar.
  std::vector<std::uint64_t> others;
  std::string text = explain(key, &others);
  std::string nearest = others.empty() ? "" : nearest_difference(others);
  if (!nearest.empty())
    absl::StrAppend(&text, "No key with its label has a graph that an update could change into its own. The nearest: ",
                    nearest, ".\n");
  return text;
} catch (const std::bad_alloc&) {
  return "";
}

// If the entry has no sibling among the keys with its label, returns its own number and theirs. Looks at about 256
// entries.
std::vector<std::uint64_t> Cache::Impl::like(const Entry& entry) const {
  constexpr int kBuckets = 512;
  constexpr std::size_t kMost = 9;
  std::vector<std::uint64_t> numbers{entry.number()};
  const std::uint64_t family = policy_.family(entry.id);
  bool has_sibling = false;
  const auto look = [&](const Entry* other) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (other == &entry || other->state == State::kCold || other->label != entry.label) return;
    has_sibling = has_sibling || (family != 0 && policy_.family(other->id) == family);
    if (numbers.size() < kMost) numbers.push_back(other->number());
  };
  const absl::FunctionRef<void(const Entry*)> looks = look;
  EntryTable::Walk walk = index_.walk();
  for (int i = 0; i < kBuckets && !walk.done(); ++i) walk.step(looks);
  return has_sibling || numbers.size() == 1 ? std::vector<std::uint64_t>() : numbers;
}

// How the first graph differs from the most similar of the others, if no update can change one to the other. Empty if
// no graph differs like that.
std::string Cache::Impl::nearest_difference(const std::vector<std::uint64_t>& numbers) {
  const absl::StatusOr<GraphInfo> own = graph(numbers[0]);
  if (!own.ok()) return "";
  std::string nearest;
  std::ptrdiff_t fewest = std::numeric_limits<std::ptrdiff_t>::max();
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    const absl::StatusOr<GraphInfo> other = graph(numbers[i]);
    if (!other.ok()) continue;
    GraphDifference found = difference(*own, *other);
    const auto fixed = std::count(found.nodes.begin(), found.nodes.end(), NodeDifference::kFixed);
    if (fixed == 0) return "";
    if (fixed >= fewest) continue;
    fewest = fixed;
    nearest = std::move(found.text);
  }
  return nearest;
}

std::string Cache::Impl::explain(const Key& key, std::vector<std::uint64_t>* others) const {
  std::string text;
  const auto line = [&](const auto&... parts) { absl::StrAppend(&text, parts..., "\n"); };
  MutexLock lock(mutex_);
  const Entry* const first = index_.find(key);
  if (first == nullptr) {
    line("No run of this key is known: it was never run, it was erased, or it has been dropped among more than ",
         Index::kMaxColdEntries, " keys without a template. Its next run is a first run.");
    return text;
  }
  for (const Entry* entry = first; entry != nullptr; entry = Index::next_of_key(entry)) {
    const auto counts = entry->counts();
    std::string runs;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      absl::StrAppend(&runs, runs.empty() ? "" : ", ", graphcache::to_string(static_cast<Outcome>(i)), " ", counts[i]);
    }
    if (entry != first) line("At another place of the program, or on another stream:");
    if (entry->is_adopted) line("Its graph was adopted: no fn is called for it.");
    line("Runs: ", runs.empty() ? "none" : runs, ".");
    if (entry->task != Task::kNone) {
      line("A background thread is making its executable, or will make it.");
    } else if (entry->state == State::kLive) {
      line("It has an executable", entry->pinned ? ", and is pinned" : "", sentence(entry->rule), ".");
    } else if (entry->state == State::kRecorded) {
      line("It has a template and no executable: its next run does not call fn, and makes or borrows an executable.");
    } else {
      line("It has neither an executable nor a template: its next run that is not direct captures fn.");
    }
    if (entry->executable_lost != Loss::kNone) {
      line("It lost an executable the last time because ", sentence(entry->executable_lost, entry->others, options_),
           ".");
    }
    if (entry->template_lost != Loss::kNone) {
      line("It lost a template the last time because ", sentence(entry->template_lost, entry->others, options_), ".");
    }
    if (entry->state != State::kCold) {
      const std::uint64_t family = policy_.family(entry->id);
      if (family != 0) {
        line("It may share executables with the other keys of family ", family, ".");
      } else if (options_.share == Share::kNever) {
        line("It shares no executables (Options::share is kNever).");
      } else {
        line("It shares no executables: no other key's graph had the same types of nodes when it last looked for one, ",
             "there has been room for one of its own, or its graph cannot be updated.");
      }
    }
    if (entry->state != State::kCold && options_.share != Share::kNever && others->empty()) *others = like(*entry);
    const Notes& notes = entry->noted();
    if (!notes.refusal.empty()) {
      line("The runtime refused to update a sibling's executable to its graph: ", notes.refusal, ".");
    }
    if (entry->eager_reason)
      line("Its last direct run was direct because ", sentence(*entry->eager_reason, options_), ".");
    if (!entry->error.ok()) line("Its last error: ", std::string(message_of(entry->error)), ".");
    for (const std::string& stray : notes.stray_work) line("Not in its graph: ", stray, ".");
    if (!notes.stale.empty()) line("Verify mode found: ", notes.stale, ".");
  }
  return text;
}

}  // namespace graphcache
