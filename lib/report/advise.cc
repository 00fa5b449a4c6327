// Finds possible improvements in the use of a cache. Each rule needs a minimum number of runs; with
// fewer, its finding may be chance or only the start of the program.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graphcache/advice.h"
#include "graphcache/buckets.h"
#include "graphcache/cache.h"
#include "graphcache/history.h"
#include "report/counts.h"

namespace graphcache {
namespace {

constexpr std::uint64_t kFewest = 16;          // Minimum number of runs, keys, or values for a finding.
constexpr std::size_t kMostEntries = 1 << 14;  // Maximum number of entries that are examined.
constexpr std::size_t kMostPairs = 4;          // Maximum number of pairs of graphs of one form that are compared.
constexpr double kMissesOfChurn = 0.2;         // Share of the runs of keys of one form.
constexpr double kDirectShare = 0.05;          // Share of the runs of a label.
constexpr double kRateOfBudget = 0.05;         // Gain of four times the budget that makes a finding.
constexpr double kShareOfRecaptures = 0.01;    // Share of all runs.
constexpr double kAcceptedPadding = 0.125;     // With this padding no more buckets are proposed.

constexpr const char* kNames[] = {"sizes",     "values_in_keys",   "budget",
                                  "templates", "never_hit_again",  "direct_runs",
                                  "stale",     "warmed_elsewhere", "values_not_found"};
static_assert(std::size(kNames) == kFindingKindCount);

std::string percent(double share) { return fixed(100 * share, 1) + " %"; }
double share(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

Finding finding_of(FindingKind kind, std::string label, std::uint64_t runs, std::string text = "",
                   std::string cure = "") {
  Finding finding;
  finding.kind = kind;
  finding.label = std::move(label);
  finding.text = std::move(text);
  finding.cure = std::move(cure);
  finding.runs = runs;
  return finding;
}

// The integers and addresses in a key.
struct Numbers {
  const EntryInfo* entry;
  std::vector<std::int64_t> values;
};
// The keys of one place of the program that differ only in numbers.
struct Form {
  std::vector<std::size_t> parts;  // Which part of the key each number is.
  std::vector<bool> is_address;
  std::vector<Numbers> keys;
};

std::vector<Form> forms_of(const std::vector<EntryInfo>& all) {
  std::map<std::string, Form> forms;
  for (const EntryInfo& entry : all) {
    std::string rest = absl::StrCat(reinterpret_cast<std::uintptr_t>(entry.place));
    Form form;
    Numbers numbers{&entry, {}};
    const std::vector<KeyPart> parts = entry.key.parts();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const KeyPart& part = parts[i];
      const bool is_address = part.kind == KeyPart::Kind::kAddress;
      const bool is_number = is_address || part.kind == KeyPart::Kind::kInteger;
      absl::StrAppend(&rest, ",", static_cast<int>(part.kind));
      if (is_number) {
        form.parts.push_back(i);
        form.is_address.push_back(is_address);
        numbers.values.push_back(part.integer);
      } else {
        absl::StrAppend(&rest, ":", part.integer, ":", part.text.size(), ":", part.text);
      }
    }
    Form& of = forms.try_emplace(std::move(rest), std::move(form)).first->second;
    of.keys.push_back(std::move(numbers));
  }
  std::vector<Form> result;
  for (auto& [rest, form] : forms) result.push_back(std::move(form));
  return result;
}

// Number of runs for each value of a number.
std::map<std::int64_t, std::uint64_t> runs_by_value(const Form& form, std::size_t number) {
  std::map<std::int64_t, std::uint64_t> runs;
  for (const Numbers& key : form.keys) runs[key.values[number]] += runs_of(key.entry->outcomes);
  return runs;
}

// Pairs of keys that have templates and differ in one number, if there are any; else any pairs.
std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs_of(const Form& form, std::size_t number) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> like, unlike;
  std::map<std::vector<std::int64_t>, std::uint64_t> last;  // Keyed by the other numbers.
  std::uint64_t last_of_all = 0;
  for (const Numbers& key : form.keys) {
    if (!key.entry->recorded || like.size() == kMostPairs) continue;
    std::vector<std::int64_t> others = key.values;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(number));
    const auto [at, is_new] = last.try_emplace(std::move(others), key.entry->id);
    if (!is_new) like.emplace_back(at->second, key.entry->id);
    if (last_of_all != 0 && unlike.size() < kMostPairs) unlike.emplace_back(last_of_all, key.entry->id);
    at->second = last_of_all = key.entry->id;
  }
  return like.empty() ? unlike : like;
}

// Proposes the fewest buckets with little padding.
void propose_buckets(const std::map<std::int64_t, std::uint64_t>& runs, Finding* finding) {
  const std::vector<std::pair<std::int64_t, std::uint64_t>> sizes(runs.begin(), runs.end());
  const auto size_of_all = [&](auto&& size) {
    double all = 0;
    for (const auto& [value, count] : sizes) all += static_cast<double>(size(value)) * static_cast<double>(count);
    return all;
  };
  const double exact = size_of_all([](std::int64_t size) { return size; });
  for (std::size_t most = 1; most <= 16; most *= 2) {
    const Buckets buckets = fit_buckets(sizes, most);
    finding->buckets = buckets.values();
    finding->padding = size_of_all([&](std::int64_t size) { return buckets.up(size); }) / exact - 1;
    if (finding->padding <= kAcceptedPadding) break;
  }
}

// How to give the keys more executables: by the limit that binds.
std::string larger_budget(const Cache& cache) {
  const Options& options = cache.options();
  const bool has_room = cache.stats().live_executables < static_cast<std::uint64_t>(options.max_executables);
  return has_room && options.max_device_bytes != SIZE_MAX ? "Raise Options::max_device_bytes"
                                                          : "Raise Options::max_executables";
}

std::string cure_of(EagerReason reason, const Cache& cache) {
  switch (reason) {
    case EagerReason::kCaptureFailed:
      return "graphcache::explain() of such a key has the error; with Options::diagnose it names the call that breaks "
             "the "
             "capture.";
    case EagerReason::kNothingCaptured:
      return "Enqueue on the stream that fn is given, or on rec.stream().";
    case EagerReason::kBudget:
      return larger_budget(cache) + ", or unpin keys.";
    case EagerReason::kOutOfMemory:
      return "Free device memory, or lower Options::max_device_bytes, so that executables are evicted in time.";
    case EagerReason::kHandsOutMemory:
      return "Free the memory of cudaMallocAsync in fn, or allocate it before the run and pass it to fn.";
    case EagerReason::kDisabled:
      return "Set Options::max_executables above 0, and unset GRAPHCACHE_DISABLE.";
    case EagerReason::kCaptureAfter:
    case EagerReason::kBackoff:
    case EagerReason::kRefused:
    case EagerReason::kLaunchFailed:
      break;
  }
  return "graphcache::explain() of such a key has the error.";
}

// Reasons that more runs do not remove.
bool could_be_graphs(EagerReason reason) { return reason != EagerReason::kCaptureAfter; }

using Reasons = std::array<std::uint64_t, kEagerReasonCount>;

// The most frequent reason that could be removed, or nothing. Runs wait for the next try after a failure that has
// another reason, so this is no cause.
std::optional<EagerReason> cause_in(const Reasons& reasons) {
  std::optional<EagerReason> cause;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    const auto reason = static_cast<EagerReason>(i);
    if (reason == EagerReason::kBackoff || !could_be_graphs(reason) || reasons[i] <= most) continue;
    cause = reason;
    most = reasons[i];
  }
  return cause;
}

// The name of the CUDA error in a text, if there is one. The rest of the text may contain parts of keys.
std::string cuda_error_in(std::string_view text) {
  const std::size_t begin = text.find("cudaError");
  if (begin == std::string_view::npos) return "";
  const auto is_letter = [](char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z'); };
  std::size_t end = begin;
  while (end < text.size() && is_letter(text[end])) ++end;
  return std::string(text.substr(begin, end - begin));
}

struct HashOfKey {
  std::size_t operator()(const Key& key) const { return key.hash(); }
};
template <class T>
using ByKey = std::unordered_map<Key, T, HashOfKey>;

class Adviser {
 public:
  explicit Adviser(const Cache& cache)
      : cache_(cache),
        options_(cache.options()),
        stats_(cache.stats()),
        history_(find_listener<History>(options_.listeners)),
        entries_(cache.entries()) {
    if (entries_.size() > kMostEntries) entries_.resize(kMostEntries);
  }

  std::vector<Finding> findings() {
    look_at_keys();
    look_at_budgets();
    look_at_templates();
    look_at_direct_runs();
    look_at_idle();
    look_at_places();
    look_at_stale();
    look_at_values();
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.runs > b.runs; });
    return std::move(findings_);
  }

 private:
  // The largest difference between graphs of keys that differ in this number. Nothing if no graph could be read.
  std::optional<NodeDifference> largest_difference(const Form& form, std::size_t number) {
    std::optional<NodeDifference> largest;
    for (const auto& [a, b] : pairs_of(form, number)) {
      const auto here = cache_.graph(a), there = cache_.graph(b);
      if (!here.ok() || !there.ok()) continue;
      const GraphDifference found = difference(*here, *there);
      for (const NodeDifference node : found.nodes) largest = std::max(largest.value_or(node), node);
    }
    return largest;
  }

  // Finds numbers in keys that are nearly always new.
  void look_at_keys() {
    for (const Form& form : forms_of(entries_)) {
      std::uint64_t runs = 0, replayed = 0;
      for (const Numbers& key : form.keys) {
        runs += runs_of(key.entry->outcomes);
        replayed += hits_of(key.entry->outcomes);
      }
      const double misses = share(runs - replayed, runs);
      if (form.keys.size() < kFewest || misses < kMissesOfChurn) continue;
      std::size_t number = 0;
      std::map<std::int64_t, std::uint64_t> values;
      for (std::size_t i = 0; i < form.parts.size(); ++i) {
        auto of_this = runs_by_value(form, i);
        if (of_this.size() <= values.size()) continue;
        number = i;
        values = std::move(of_this);
      }
      if (values.size() < kFewest) continue;
      const std::optional<NodeDifference> apart = largest_difference(form, number);
      if (!apart) continue;
      Finding finding = finding_of(FindingKind::kSizes, form.keys[0].entry->label, runs - replayed);
      finding.text =
          absl::StrCat(form.keys.size(), " keys were run ", runs, " times, and ", percent(misses),
                       " of these runs were not hits. Part ", form.parts[number], " of the key (from 0) is ",
                       form.is_address[number] ? "an address" : "a number", " with ", values.size(), " values.");
      if (*apart <= NodeDifference::kArguments) {
        finding.kind = FindingKind::kValuesInKeys;
        absl::StrAppend(&finding.text, " The graphs differ only in values of arguments.");
        finding.cure = absl::StrCat("Leave part ", form.parts[number],
                                    " out of the key, and pass it as a value (graphcache::values) or a slot.");
      } else if (!form.is_address[number] && values.begin()->first > 0 && values.rbegin()->first <= UINT32_MAX) {
        // Larger numbers are no sizes, and may be secrets.
        propose_buckets(values, &finding);
        absl::StrAppend(&finding.text, " The graphs differ in more than values.");
        finding.cure = absl::StrCat("Round part ", form.parts[number], " up by graphcache::Buckets{",
                                    absl::StrJoin(finding.buckets, ", "), "}, and pad the work: this adds ",
                                    percent(finding.padding), " to the sizes of all these runs.");
      } else {
        continue;
      }
      churning_.insert(finding.label);
      findings_.push_back(std::move(finding));
    }
  }

  std::uint64_t runs_of_keys() const { return stats_.hits() + stats_.misses() + stats_.outcome(Outcome::kEager); }

  void look_at_budgets() {
    const std::uint64_t all = runs_of_keys();
    const std::uint64_t ready = stats_.outcome(Outcome::kReplayed) + stats_.outcome(Outcome::kPatched);
    const std::string evictions =
        absl::StrCat(percent(share(ready, all)), " of the runs found an executable ready for their key, with ",
                     stats_.evictions, " evictions.");
    if (history_ == nullptr) {
      // Where keys share nothing, a key takes another's executable over only for want of room.
      const std::uint64_t taken = options_.share == Share::kNever ? stats_.outcome(Outcome::kSwitched) : 0;
      const std::uint64_t again = stats_.outcome(Outcome::kRestored) + taken;
      if (stats_.evictions + taken < kFewest || again < kFewest || share(again, all) < kRateOfBudget) return;
      findings_.push_back(finding_of(FindingKind::kBudget, "", again,
                                     absl::StrCat(evictions, " ", again, " runs had to make one again",
                                                  taken == 0 ? "." : ", or to update that of another key."),
                                     absl::StrCat(larger_budget(cache_),
                                                  ". Add a graphcache::History to "
                                                  "Options::listeners to see what a larger budget would give.")));
      findings_.back().ready_rate = share(ready, all);
      return;
    }
    const History::Returns returns = history_->returns(/*with_lent=*/options_.share != Share::kAlways);
    Finding budget = finding_of(FindingKind::kBudget, "", returns.of_four_times);
    budget.ready_rate = share(ready, all);
    // Some of the returns may be of runs that then failed, which `all` does not count.
    budget.ready_rate_of_twice = std::min(1.0, share(ready + returns.of_twice, all));
    budget.ready_rate_of_four_times = std::min(1.0, share(ready + returns.of_four_times, all));
    if (budget.runs >= kFewest && budget.ready_rate_of_four_times - budget.ready_rate >= kRateOfBudget) {
      budget.text =
          absl::StrCat(evictions, " With twice the budget it would have been ", percent(budget.ready_rate_of_twice),
                       ", and with four times ", percent(budget.ready_rate_of_four_times), ".");
      budget.cure = larger_budget(cache_) + ".";
      findings_.push_back(std::move(budget));
    }
  }

  // Captures of keys whose template had been dropped. Without a History: of keys that are still known, except those
  // whose values are captured as well.
  std::uint64_t recaptures() const {
    if (history_ != nullptr) return history_->recaptures();
    std::uint64_t found = 0;
    for (const EntryInfo& entry : entries_) {
      const bool captures_values = !entry.values.empty() || entry.has_many_identities;
      if (captures_values || entry.template_lost != Loss::kTemplates) continue;
      found += std::max<std::uint64_t>(captures_of(entry), 1) - 1;
    }
    return found;
  }

  void look_at_templates() {
    const std::uint64_t found = recaptures();
    if (found < kFewest || share(found, runs_of_keys()) < kShareOfRecaptures) return;
    findings_.push_back(
        finding_of(FindingKind::kTemplates, "", found,
                   absl::StrCat(found, " of ", stats_.captures,
                                " captures were of keys whose template had been dropped, because there were more than "
                                "Options::max_templates (",
                                options_.max_templates, ")."),
                   "Raise Options::max_templates: a template takes about 2 KiB of host memory a node."));
  }

  // `reasons` are those of keys with the label, or of all keys if `label` is null.
  void look_at_direct_runs(const std::string* label, const Reasons& reasons, std::uint64_t all) {
    std::uint64_t direct = 0;
    for (std::size_t i = 0; i < reasons.size(); ++i) {
      if (could_be_graphs(static_cast<EagerReason>(i))) direct += reasons[i];
    }
    if (direct < kFewest || share(direct, all) < kDirectShare) return;
    std::optional<EagerReason> cause = cause_in(reasons);
    if (!cause) cause = cause_in(stats_.eager_reasons);
    const EagerReason reason = cause.value_or(EagerReason::kBackoff);
    const std::uint64_t waited = reasons[static_cast<std::size_t>(EagerReason::kBackoff)];
    Finding finding = finding_of(FindingKind::kDirectRuns, label == nullptr ? "" : *label, direct);
    finding.text = absl::StrCat(direct, " of ", all, " runs called fn directly, for the reason ", to_string(reason),
                                waited == 0 || (label != nullptr && history_ == nullptr)
                                    ? ""
                                    : absl::StrCat(", ", waited, " of them while the next try waited"),
                                ".");
    for (const EntryInfo& entry : entries_) {
      const std::string error = label != nullptr && entry.label == *label ? cuda_error_in(entry.error) : "";
      if (error.empty()) continue;
      absl::StrAppend(&finding.text, " The last error was ", error, ".");
      break;
    }
    finding.cure = cure_of(reason, cache_);
    findings_.push_back(std::move(finding));
  }
  void look_at_direct_runs() {
    if (stats_.eager(EagerReason::kDisabled) != 0) look_at_direct_runs(nullptr, stats_.eager_reasons, stats_.runs());
    for (const LabelStats& label : labels(cache_)) {
      look_at_direct_runs(&label.label, label.eager_reasons, runs_of(label.outcomes));
    }
  }

  // Finds graphs that were captured and never replayed. The newest quarter is left out, because it may still be
  // replayed.
  void look_at_idle() {
    const auto with_graphs = static_cast<std::size_t>(
        std::count_if(entries_.begin(), entries_.end(), [](const EntryInfo& entry) { return entry.recorded; }));
    std::size_t met = 0;
    std::map<std::string, std::uint64_t> idle;  // Keyed by label.
    for (const EntryInfo& entry : entries_) {   // Most recently used first.
      if (!entry.recorded || ++met <= with_graphs / 4) continue;
      if (entry.pinned || runs_of(entry.outcomes) == 0 || hits_of(entry.outcomes) != 0 || captures_of(entry) > 1)
        continue;
      if (churning_.count(entry.label) == 0) ++idle[entry.label];
    }
    std::uint64_t others = 0;  // Entries of labels that have few.
    const auto look_at = [&](const std::string& label, std::uint64_t entries, bool of_many_labels) {
      if (entries < kFewest || 2 * entries < with_graphs) {
        others += entries;
        return;
      }
      findings_.push_back(finding_of(
          FindingKind::kNeverHitAgain, label, entries,
          absl::StrCat(entries, " of ", with_graphs, " entries with graphs",
                       of_many_labels ? ", whose keys have many labels," : "",
                       " have never been replayed. Those used last are not counted."),
          absl::StrCat(of_many_labels
                           ? "Leave out of the keys what never returns, such as a number in their label. Else set "
                           : "Set ",
                       "Options::capture_after to 1, so that a key is captured at its second run, or erase() keys that "
                       "will not run again.")));
    };
    for (const auto& [label, entries] : idle) look_at(label, entries, false);
    look_at("", std::exchange(others, 0), true);
  }

  // Finds keys that were only captured at one place, and run at another one.
  void look_at_places() {
    ByKey<std::map<const void*, std::uint64_t>> ran;  // By place.
    for (const EntryInfo& entry : entries_) {
      if (const std::uint64_t runs = runs_of(entry.outcomes); runs != 0) ran[entry.key][entry.place] += runs;
    }
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> elsewhere;  // Keys and their runs, by label.
    for (const EntryInfo& entry : entries_) {
      const auto at = ran.find(entry.key);
      if (!entry.recorded || runs_of(entry.outcomes) != 0 || at == ran.end()) continue;
      if (at->second.count(entry.place) != 0) continue;  // On another stream, or with values of another kind.
      auto& [keys, runs] = elsewhere[entry.label];
      ++keys;
      for (const auto& [place, runs_there] : at->second) runs += runs_there;
    }
    for (const auto& [label, counts] : elsewhere) {
      if (counts.second < kFewest) continue;
      findings_.push_back(finding_of(
          FindingKind::kWarmedElsewhere, label, counts.second,
          absl::StrCat("Keys were warmed at one place and run at another (", counts.first,
                       "). The runs used another graph than the one that was made for them (", counts.second, ")."),
          "Make the calls of warm() and run() in one function with one lambda: an entry belongs to both the "
          "key and the place."));
    }
  }

  // Finds keys that are captured again and again because their values are not found.
  void look_at_values() {
    struct Missed {
      const EntryInfo* worst = nullptr;  // The entry with most captures of those whose values cannot be found.
      std::uint64_t captures = 0;
      void add(const EntryInfo* entry, std::uint64_t captures_of_it) {
        if (worst == nullptr || (entry != nullptr && captures_of(*worst) < captures_of(*entry))) worst = entry;
        captures += captures_of_it;
      }
    };
    const auto is_bad = [](const ValueInfo& value) {
      return value.state == ValueState::kDerived || value.state == ValueState::kAmbiguous;
    };
    const auto bad_value = [&](const EntryInfo& entry) {
      return std::find_if(entry.values.begin(), entry.values.end(), is_bad);
    };
    ByKey<std::map<const void*, Missed>> by_place;
    for (const EntryInfo& entry : entries_) {
      if (entry.values.empty() && !entry.has_many_identities) continue;
      const bool has_cause = entry.has_many_identities || bad_value(entry) != entry.values.end();
      by_place[entry.key][entry.place].add(has_cause ? &entry : nullptr, captures_of(entry));
    }
    std::map<std::string, Missed> by_label;
    for (const auto& [key, places] : by_place) {
      for (const auto& [place, found] : places) {
        if (found.worst == nullptr || found.captures == 0) continue;
        by_label[found.worst->label].add(found.worst, found.captures - 1);  // The first is due to no value.
      }
    }
    for (const auto& [label, found] : by_label) {
      if (found.captures < kFewest) continue;
      const EntryInfo& worst = *found.worst;
      const auto bad = bad_value(worst);
      findings_.push_back(finding_of(
          FindingKind::kValuesNotFound, label, found.captures,
          absl::StrCat(found.captures, " runs captured, because values had changed that are not found; ",
                       worst.has_many_identities ? "they are null, 0 or 1, aligned or equal in too many ways"
                                                 : absl::StrCat("value ", bad - worst.values.begin(), " is ",
                                                                to_string(bad->state), ": ", bad->places),
                       "."),
          worst.has_many_identities
              ? "Align memory alike (slices to 256 bytes), or make such values slots (params)."
              : "Pass the value on as it is, pass a computed result in its place, or make it a slot (params)."));
    }
  }
  static std::uint64_t captures_of(const EntryInfo& entry) {
    return entry.outcomes[static_cast<int>(Outcome::kUpdated)] +
           entry.outcomes[static_cast<int>(Outcome::kInstantiated)];
  }

  void look_at_stale() {
    // Number of entries and of their hits, keyed by label.
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> stale;
    for (const EntryInfo& entry : entries_) {
      if (entry.stale.empty()) continue;
      auto& [entries, replayed] = stale[entry.label];
      ++entries;
      replayed += hits_of(entry.outcomes);
    }
    for (const auto& [label, counts] : stale) {
      findings_.push_back(
          finding_of(FindingKind::kStale, label, counts.second,
                     absl::StrCat("Verify mode found differences. Graphs that have them: ", counts.first,
                                  "; replays of these, right or wrong: ", counts.second, "."),
                     "graphcache::explain() of such a key says what differs, and docs/guide/mistakes.md what to do."));
    }
  }

  const Cache& cache_;
  const Options& options_;
  const Stats stats_;
  const History* const history_;    // Null if there is none.
  std::vector<EntryInfo> entries_;  // Most recently used first.
  std::set<std::string> churning_;  // Labels whose keys are nearly always new.
  std::vector<Finding> findings_;
};

}  // namespace

const char* to_string(FindingKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::vector<Finding> advise(const Cache& cache) try {
  return Adviser(cache).findings();
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace graphcache
