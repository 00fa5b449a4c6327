// Finding: what would make a program's use of its cache better. Cache::advise() returns a list of them.
//
//   for (const graphcache::Finding& finding : cache.advise()) log(finding.label, finding.text, finding.cure);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphcache {

enum class FindingKind {
  kSizes,  // A number in the keys has many values that seldom recur. Round it up to buckets (buckets.h).
  // One part of the keys changes in nearly each run, although the graphs differ in values only. Make it a slot.
  kValuesInKeys,
  kBudget,         // Executables are evicted and soon needed again. Options::max_executables is too small.
  kTemplates,      // Keys are captured again because their templates were dropped. Options::max_templates is too small.
  kNeverHitAgain,  // Entries take memory but have never been replayed.
  kDirectRuns,     // Runs call `fn` directly although they could be graphs.
  kStale,          // Verify mode found graphs that hold old values (Options::verify_every).
};
inline constexpr int kFindingKindCount = 7;

// The enumerator without its k, in lower case: "sizes", "values_in_keys", ...
const char* to_string(FindingKind kind);

// One finding. Its texts contain labels and sizes from keys, but no other part of a key, no address, and no value of an
// argument.
struct Finding {
  FindingKind kind = FindingKind::kSizes;
  std::string label;       // The label of the keys concerned (EntryInfo::label). Empty if all keys are concerned.
  std::string text;        // The observation with its figures, in one or two sentences.
  std::string cure;        // The option to set, or the change to the program, in one sentence.
  std::uint64_t runs = 0;  // The number of runs affected. Findings that affect more runs come first.

  // The following two are set for kSizes.
  std::vector<std::int64_t> buckets;  // The sizes to round up to, in ascending order.
  double padding = 0;  // The padding that this costs, relative to the sum of all sizes: 0.1 is 10 % more.

  // The following three are set for kBudget. A rate is from 0 to 1.
  double ready_rate = 0;                // The share of runs that found an executable ready for their key.
  double ready_rate_of_twice = 0;       // What this rate would have been with twice the budget.
  double ready_rate_of_four_times = 0;  // What this rate would have been with four times the budget.
};

}  // namespace graphcache
