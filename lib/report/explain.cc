// Describes the state of a key, in sentences.
#include "graphcache/explain.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "graphcache/cache.h"

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
      return "its work could not be captured";
    case EagerReason::kBackoff:
      return "an earlier run failed to make a graph, or CUDA refused one of its values; the next try is after 1, 2, 4, "
             "... up to 1024 runs";
    case EagerReason::kBudget:
      return absl::StrCat(
          "no executable could be evicted for it: all were pinned or in use, or the graph is too large "
          "(Options::max_executables is ",
          options.max_executables, ", max_device_bytes ",
          options.max_device_bytes == SIZE_MAX ? "unlimited" : absl::StrCat(options.max_device_bytes), ")");
    case EagerReason::kOutOfMemory:
      return "device memory ran out when its executable was made";
    case EagerReason::kRefused:
      return "the runtime refused its graph, or a new value of one of its nodes";
    case EagerReason::kLaunchFailed:
      return "its launch failed";
    case EagerReason::kNothingCaptured:
      return "fn enqueued nothing on the stream that it was given: enqueue on rec.stream()";
    case EagerReason::kHandsOutMemory:
      return "fn hands out memory of cudaMallocAsync: free it in fn, or allocate it before the run";
  }
  return "of an unknown reason";
}

// Why an executable or a template was lost.
std::string sentence(Loss loss, std::size_t others, const Options& options) {
  switch (loss) {
    case Loss::kNone:
      return "";
    case Loss::kEvicted: {
      const std::string limit = others >= static_cast<std::size_t>(options.max_executables)
                                    ? absl::StrCat("Options::max_executables is ", options.max_executables)
                                : options.max_device_bytes != SIZE_MAX
                                    ? absl::StrCat("Options::max_device_bytes is ", options.max_device_bytes)
                                    : "device memory ran out";
      return absl::StrCat("other keys were used more recently, and there was no room for another one beside ", others,
                          " (", limit, ")");
    }
    case Loss::kLent:
      return options.share == Share::kNever ? "an update gave it to another key, for which there was no room (rule 3)"
                                            : "a sibling uses it now";
    case Loss::kFailed:
      return "of an error";
    case Loss::kTemplates:
      return absl::StrCat("there were more templates than Options::max_templates (", options.max_templates, ")");
    case Loss::kStale:
      return "it was stale: verify mode found it so (OnStale::kForget), or memory of its copies was freed";
    case Loss::kErased:
      return "the key was erased";
    case Loss::kValues:
      return "a value had changed that was not found yet";
  }
  return "";
}

std::string sentence(const ValueInfo& value) {
  switch (value.state) {
    case ValueState::kUnseen:
      return "has not changed yet, so its first change captures";
    case ValueState::kSeen:
      return absl::StrCat("has changed once (", value.places, "), so its next change captures");
    case ValueState::kFound:
      return absl::StrCat("is found: ", value.places);
    case ValueState::kAmbiguous:
      return absl::StrCat("is ambiguous (", value.places,
                          "): it is patched only while another value that fits there agrees");
    case ValueState::kDerived:
      return absl::StrCat("is derived (", value.places,
                          "), so each change captures: pass on what is computed from it, or make it a slot");
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

// How the entry's graph differs from the nearest one with its label, if no update can change one to the other. Empty
// unless it has no sibling, and differs from all that are compared.
std::string nearest_difference(const Cache& cache, const EntryInfo& entry, const std::vector<EntryInfo>& all) {
  constexpr std::size_t kMost = 8;
  std::vector<std::uint64_t> others;
  for (const EntryInfo& other : all) {
    if (other.id == entry.id || !other.recorded || other.label != entry.label) continue;
    if (entry.family != 0 && other.family == entry.family) return "";
    if (others.size() < kMost) others.push_back(other.id);
  }
  const absl::StatusOr<GraphInfo> own = others.empty() ? absl::StatusOr<GraphInfo>() : cache.graph(entry.id);
  if (!own.ok()) return "";
  std::string nearest;
  std::ptrdiff_t fewest = std::numeric_limits<std::ptrdiff_t>::max();
  for (const std::uint64_t id : others) {
    const absl::StatusOr<GraphInfo> other = cache.graph(id);
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

// What is known of one entry, a sentence a line.
std::string paragraph(const EntryInfo& entry, const Options& options) {
  std::string text;
  const auto line = [&](const auto&... parts) { absl::StrAppend(&text, parts..., "\n"); };
  std::string runs;
  for (std::size_t i = 0; i < entry.outcomes.size(); ++i) {
    if (entry.outcomes[i] == 0) continue;
    absl::StrAppend(&runs, runs.empty() ? "" : ", ", to_string(static_cast<Outcome>(i)), " ", entry.outcomes[i]);
  }
  line("Runs: ", runs.empty() ? "none" : runs, ".");
  if (entry.live) {
    line("It has an executable", sentence(entry.rule), entry.pinned ? ", and is pinned" : "", ".");
  } else if (entry.recorded) {
    line("It has a template and no executable: its next run makes or borrows an executable if there is room, and only ",
         "else calls fn.");
  } else {
    line("It has neither an executable nor a template: its next run that is not direct captures fn.");
  }
  if (entry.executable_lost != Loss::kNone) {
    line("It lost an executable the last time because ", sentence(entry.executable_lost, entry.others, options), ".");
  }
  if (entry.template_lost != Loss::kNone) {
    line("It lost a template the last time because ", sentence(entry.template_lost, entry.others, options), ".");
  }
  if (entry.recorded) {
    if (options.share == Share::kNever) {
      line("It shares no executables (Options::share is kNever).");
    } else if (entry.family != 0) {
      line("It may share executables with the other keys of family ", entry.family, ".");
    } else if (entry.looked_for_siblings) {
      line("It shares no executables: no update can change its graph to another key's.");
    } else {
      line("It has not looked for siblings. A key does when another key's graph has the same types of nodes",
           options.share == Share::kAlways ? "." : ", and there is no room for an executable of its own.");
    }
  }
  for (std::size_t i = 0, next = 0; i < entry.values.size(); i = next) {
    const std::string what = sentence(entry.values[i]);
    while (++next < entry.values.size() && sentence(entry.values[next]) == what) {
    }
    const bool is_one = next == i + 1;
    line(is_one ? absl::StrCat("Value ", i) : absl::StrCat("Each of values ", i, " to ", next - 1), " ", what, ".");
  }
  if (entry.has_many_identities) {
    line("Its values are null, 0 or 1, aligned or equal to one another in more than 16 ways, so each change of one ",
         "captures.");
  }
  if (!entry.refusal.empty()) {
    line("The runtime refused to update an executable to its graph: ", entry.refusal, ".");
  }
  if (entry.eager_reason) line("Its last direct run was direct because ", sentence(*entry.eager_reason, options), ".");
  if (!entry.error.empty()) line("Its last error: ", entry.error, ".");
  for (const Counted& stray : entry.stray_work) line("Not in its graph: ", to_string(stray), ".");
  for (const Counted& finding : entry.stale) line("Verify mode found: ", to_string(finding), ".");
  return text;
}

}  // namespace

std::string explain(const Cache& cache, const Key& key) try {
  const Options& options = cache.options();
  const std::vector<EntryInfo> all = cache.entries();
  const EntryInfo* compared = nullptr;
  const void* first_place = nullptr;
  struct Paragraph {
    std::string text;
    int entries = 0;
    bool is_elsewhere = false;  // Whether they are not at the first entry's place.
  };
  std::vector<Paragraph> paragraphs;
  for (const EntryInfo& entry : all) {
    if (!(entry.key == key)) continue;
    if (entry.recorded && options.share != Share::kNever && compared == nullptr) compared = &entry;
    std::string text = paragraph(entry, options);
    if (paragraphs.empty()) first_place = entry.place;
    const bool is_elsewhere = entry.place != first_place;
    auto equal = std::find_if(paragraphs.begin(), paragraphs.end(), [&](const Paragraph& one) {
      return one.text == text && one.is_elsewhere == is_elsewhere;
    });
    if (equal == paragraphs.end()) equal = paragraphs.insert(equal, {std::move(text), 0, is_elsewhere});
    ++equal->entries;
  }
  if (paragraphs.empty() && cache.stats().eager(EagerReason::kDisabled) != 0) {
    return "The cache captures nothing (Options::max_executables is 0, or GRAPHCACHE_DISABLE is set): each run calls "
           "fn directly.\n";
  }
  if (paragraphs.empty() && !cache.status().ok()) {
    return absl::StrCat("Every run fails: ", std::string(cache.status().message()), ".\n");
  }
  if (paragraphs.empty()) {
    return "No run of this key is known: it was never run, or only inside other captures, it was erased, or it has "
           "been dropped among the keys without a template, of which the cache remembers 4096. Its next run is a first "
           "run.\n";
  }
  std::string text;
  for (const Paragraph& of : paragraphs) {
    if (of.entries > 1 || !text.empty()) {
      absl::StrAppend(&text, "Of ", of.entries, of.entries == 1 ? " entry" : " entries",
                      of.is_elsewhere ? " at other places of the program:\n"
                                      : " at one place, by kinds of values (null, 0 or 1, alignment, memory, equal "
                                        "pointers):\n");
    }
    absl::StrAppend(&text, of.text);
  }
  const std::string nearest = compared == nullptr ? "" : nearest_difference(cache, *compared, all);
  if (!nearest.empty()) {
    absl::StrAppend(&text,
                    "No key with its label that was compared has a graph that an update could change into its own. The "
                    "nearest: ",
                    nearest, ".\n");
  }
  return text;
} catch (const std::bad_alloc&) {
  return "";
}

}  // namespace graphcache
