// Finds possible improvements in the use of a cache (Cache::advise). Each rule needs a minimum number of runs; with
// fewer, its finding may be chance or only the start of the program.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/buckets.h"
#include "run/impl.h"

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

constexpr const char* kNames[] = {"sizes",           "values_in_keys", "budget", "templates",
                                  "never_hit_again", "direct_runs",    "stale"};
static_assert(std::size(kNames) == kFindingKindCount);

std::string percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }
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

// An entry.
struct Seen {
  Key key;
  const void* site = nullptr;
  std::uint64_t number = 0;
  OutcomeCounts counts{};
  Use last_use;
  bool is_recorded = false;
  bool is_pinned = false;
  bool is_stale = false;
};

// The integers and addresses in a key.
struct Numbers {
  const Seen* seen;
  std::vector<std::int64_t> values;
};
// The keys of one place of the program that differ only in numbers.
struct Form {
  std::vector<std::size_t> parts;  // Which part of the key each number is.
  std::vector<bool> is_address;
  std::vector<Numbers> keys;
};

std::vector<Form> forms_of(const std::vector<Seen>& all) {
  std::map<std::string, Form> forms;
  for (const Seen& seen : all) {
    std::string rest = absl::StrCat(reinterpret_cast<std::uintptr_t>(seen.site));
    Form form;
    Numbers numbers{&seen, {}};
    const std::vector<KeyPart> parts = seen.key.parts();
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
  for (const Numbers& key : form.keys) runs[key.values[number]] += runs_of(key.seen->counts);
  return runs;
}

// Pairs of keys that have templates and differ in one number, if there are any; else any pairs.
std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs_of(const Form& form, std::size_t number) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> like, unlike;
  std::map<std::vector<std::int64_t>, std::uint64_t> last;  // Keyed by the other numbers.
  std::uint64_t last_of_all = 0;
  for (const Numbers& key : form.keys) {
    if (!key.seen->is_recorded || like.size() == kMostPairs) continue;
    std::vector<std::int64_t> others = key.values;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(number));
    const auto [at, is_new] = last.try_emplace(std::move(others), key.seen->number);
    if (!is_new) like.emplace_back(at->second, key.seen->number);
    if (last_of_all != 0 && unlike.size() < kMostPairs) unlike.emplace_back(last_of_all, key.seen->number);
    at->second = last_of_all = key.seen->number;
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
    const Buckets buckets = Buckets::fit(sizes, most);
    finding->buckets = buckets.values();
    finding->padding = size_of_all([&](std::int64_t size) { return buckets.up(size); }) / exact - 1;
    if (finding->padding <= kAcceptedPadding) break;
  }
}

const char* cure_of(EagerReason reason) {
  switch (reason) {
    case EagerReason::kCaptureFailed:
    case EagerReason::kBackoff:
      return "Cache::explain() of such a key has the error; with Options::diagnose it names the call that breaks the "
             "capture.";
    case EagerReason::kNothingCaptured:
      return "Enqueue on the stream that fn is given, or on rec.stream().";
    case EagerReason::kBudget:
      return "Raise Options::max_executables or Options::max_device_bytes, or unpin keys.";
    case EagerReason::kOutOfMemory:
      return "Free device memory, or lower Options::max_device_bytes, so that executables are evicted in time.";
    case EagerReason::kMemoryInUse:
      return "Free the memory that fn hands out before the key's next run, or set "
             "cudaGraphInstantiateFlagAutoFreeOnLaunch.";
    case EagerReason::kDisabled:
      return "Set Options::max_executables above 0, and unset GRAPHCACHE_DISABLE.";
    default:
      return "Cache::explain() of such a key has the error.";
  }
}

// Reasons that more runs or a larger budget do not remove.
bool could_be_graphs(EagerReason reason) {
  return reason != EagerReason::kCaptureAfter && reason != EagerReason::kPreparing;
}

Finding direct_runs(const std::string& label, const std::array<std::uint64_t, kEagerReasonCount>& reasons,
                    std::uint64_t runs_of_label) {
  Finding finding = finding_of(FindingKind::kDirectRuns, label, 0);
  std::size_t most = 0;
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    if (!could_be_graphs(static_cast<EagerReason>(i))) continue;
    finding.runs += reasons[i];
    if (finding.runs == reasons[i] || reasons[i] > reasons[most]) most = i;
  }
  const auto reason = static_cast<EagerReason>(most);
  finding.text = absl::StrCat(finding.runs, " of ", runs_of_label, " runs called fn directly, most of them (",
                              reasons[most], ") for the reason ", to_string(reason), ".");
  finding.cure = cure_of(reason);
  return finding;
}

}  // namespace

const char* to_string(FindingKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

// Examines one cache. Holds its lock only while it collects entries.
class Cache::Impl::Adviser {
 public:
  explicit Adviser(Impl& impl) : impl_(impl), stats_(impl.stats()) {}

  std::vector<Finding> findings() {
    collect();
    look_at_keys();
    look_at_budgets();
    look_at_direct_runs();
    look_at_idle();
    look_at_stale();
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.runs > b.runs; });
    return std::move(findings_);
  }

 private:
  void collect() {
    const auto look = [](const Entry& entry) {
      return Seen{entry.key,        entry.site.type,
                  entry.number(),   entry.counts(),
                  entry.last_use(), entry.state != State::kCold,
                  entry.pinned,     !entry.noted().stale.empty()};
    };
    impl_.for_each_entry(look, [&](Seen& seen) {
      if (seen_.size() < kMostEntries) seen_.push_back(std::move(seen));
    });
    std::sort(seen_.begin(), seen_.end(), [](const Seen& a, const Seen& b) { return a.last_use > b.last_use; });
    MutexLock lock(impl_.mutex_);
    returns_ = impl_.ghosts_.returns();
    recaptures_ = impl_.recaptures_;
  }

  // The largest difference between graphs of keys that differ in this number. Nothing if no graph could be read.
  std::optional<NodeDifference> largest_difference(const Form& form, std::size_t number) {
    std::optional<NodeDifference> largest;
    for (const auto& [a, b] : pairs_of(form, number)) {
      const auto here = impl_.graph(a), there = impl_.graph(b);
      if (!here.ok() || !there.ok()) continue;
      const GraphDifference found = difference(*here, *there);
      for (const NodeDifference node : found.nodes) largest = std::max(largest.value_or(node), node);
    }
    return largest;
  }

  // Finds numbers in keys that are nearly always new.
  void look_at_keys() {
    for (const Form& form : forms_of(seen_)) {
      std::uint64_t runs = 0, replayed = 0;
      for (const Numbers& key : form.keys) {
        runs += runs_of(key.seen->counts);
        replayed += hits_of(key.seen->counts);
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
      Finding finding = finding_of(FindingKind::kSizes, std::string(form.keys[0].seen->key.label()), runs - replayed);
      finding.text =
          absl::StrCat(form.keys.size(), " keys were run ", runs, " times, and ", percent(misses),
                       " of these runs were not hits. Part ", form.parts[number], " of the key (from 0) is ",
                       form.is_address[number] ? "an address" : "a number", " with ", values.size(), " values.");
      if (*apart <= NodeDifference::kArguments) {
        finding.kind = FindingKind::kValuesInKeys;
        absl::StrAppend(&finding.text, " The graphs differ only in values of arguments.");
        finding.cure = absl::StrCat("Leave part ", form.parts[number],
                                    " out of the key, and pass it as a slot (graphcache::params).");
      } else if (!form.is_address[number] && values.begin()->first > 0) {
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

  void look_at_budgets() {
    const std::uint64_t all = stats_.hits() + stats_.misses() + stats_.outcome(Outcome::kEager);
    const std::uint64_t ready = stats_.outcome(Outcome::kReplayed) + stats_.outcome(Outcome::kPatched);
    Finding budget = finding_of(FindingKind::kBudget, "", returns_[0] + returns_[1]);
    budget.ready_rate = share(ready, all);
    budget.ready_rate_of_twice = share(ready + returns_[0], all);
    budget.ready_rate_of_four_times = share(ready + budget.runs, all);
    if (budget.runs >= kFewest && budget.ready_rate_of_four_times - budget.ready_rate >= kRateOfBudget) {
      budget.text = absl::StrCat(
          percent(budget.ready_rate), " of the runs found an executable ready for their key, with ", stats_.evictions,
          " evictions. With twice the budget it would have been ", percent(budget.ready_rate_of_twice),
          ", and with four times ", percent(budget.ready_rate_of_four_times), ".");
      budget.cure = impl_.options_.max_device_bytes == SIZE_MAX
                        ? "Raise Options::max_executables."
                        : "Raise Options::max_executables or Options::max_device_bytes.";
      findings_.push_back(std::move(budget));
    }
    if (recaptures_ < kFewest || share(recaptures_, all) < kShareOfRecaptures) return;
    findings_.push_back(
        finding_of(FindingKind::kTemplates, "", recaptures_,
                   absl::StrCat(recaptures_, " of ", stats_.captures,
                                " captures were of keys whose template had been dropped, because there were more than "
                                "Options::max_templates (",
                                impl_.options_.max_templates, ")."),
                   "Raise Options::max_templates: a template takes about 2 KiB of host memory a node."));
  }

  void look_at_direct_runs() {
    const std::uint64_t disabled = stats_.eager(EagerReason::kDisabled);
    if (disabled >= kFewest) findings_.push_back(direct_runs("", stats_.eager_reasons, stats_.runs()));
    for (const LabelStats& label : impl_.labels()) {
      Finding finding = direct_runs(label.label, label.eager_reasons, runs_of(label.outcomes));
      const bool is_worth_it = finding.runs >= kFewest && share(finding.runs, runs_of(label.outcomes)) >= kDirectShare;
      if (is_worth_it) findings_.push_back(std::move(finding));
    }
  }

  // Finds graphs that were captured and never replayed. The newest quarter is left out, because it may still be
  // replayed.
  void look_at_idle() {
    const auto with_graphs = static_cast<std::size_t>(
        std::count_if(seen_.begin(), seen_.end(), [](const Seen& seen) { return seen.is_recorded; }));
    std::size_t met = 0;
    std::map<std::string, std::uint64_t> idle;  // Keyed by label.
    for (const Seen& seen : seen_) {            // Most recently used first.
      if (!seen.is_recorded || ++met <= with_graphs / 4) continue;
      if (seen.is_pinned || runs_of(seen.counts) == 0 || hits_of(seen.counts) != 0) continue;
      const std::string label(seen.key.label());
      if (churning_.count(label) == 0) ++idle[label];
    }
    for (const auto& [label, entries] : idle) {
      if (entries < kFewest || 2 * entries < with_graphs) continue;
      findings_.push_back(finding_of(
          FindingKind::kNeverHitAgain, label, entries,
          absl::StrCat(entries, " of ", with_graphs,
                       " entries with graphs have never been replayed. Those used last are not counted."),
          "Set Options::capture_after to 1, so that a key is captured at its second run, or erase() keys that will not "
          "run again."));
    }
  }

  void look_at_stale() {
    // Number of entries and of their hits, keyed by label.
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> stale;
    for (const Seen& seen : seen_) {
      if (!seen.is_stale) continue;
      auto& [entries, replayed] = stale[std::string(seen.key.label())];
      ++entries;
      replayed += hits_of(seen.counts);
    }
    for (const auto& [label, counts] : stale) {
      findings_.push_back(finding_of(
          FindingKind::kStale, label, counts.second,
          absl::StrCat("Verify mode found ", counts.first, " entries whose graphs hold old values. They were replayed ",
                       counts.second, " times."),
          "Cache::explain() of such a key names the node and the argument: make the value a slot, or part of the "
          "key."));
    }
  }

  Impl& impl_;
  const Stats stats_;
  std::vector<Seen> seen_;  // Most recently used first.
  std::array<std::uint64_t, 2> returns_{};
  std::uint64_t recaptures_ = 0;
  std::set<std::string> churning_;  // Labels whose keys are nearly always new.
  std::vector<Finding> findings_;
};

std::vector<Finding> Cache::Impl::advise() try { return Adviser(*this).findings(); } catch (const std::bad_alloc&) {
  return {};
}

}  // namespace graphcache
