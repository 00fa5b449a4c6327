// advise(): what would make a program's use of its cache better.
//
//   for (const graphcache::Finding& finding : graphcache::advise(cache)) log(finding.label, finding.text,
//   finding.cure);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace graphcache {

class Buckets;
class Cache;

enum class FindingKind {
  kSizes,  // A number in the keys has many values that seldom recur. Round it up to buckets (buckets.h).
  // One part of the keys changes in nearly each run, although the graphs differ in values only. Make it a slot.
  kValuesInKeys,
  kBudget,         // Executables are evicted and soon needed again. Options::max_executables is too small.
  kTemplates,      // Keys are captured again because their templates were dropped. Options::max_templates is too small.
  kNeverHitAgain,  // Entries take memory but have never been replayed.
  kDirectRuns,     // Runs call `fn` directly although they could be graphs.
  kStale,          // Verify mode found graphs that hold old values (Options::verify_every).
  // Keys were warmed at one place of the program and run at another, so they were captured twice (cache.h, "The
  // place").
  kWarmedElsewhere,
  kValuesNotFound,  // Runs capture because values change that the cache cannot find (values.h).
};
inline constexpr int kFindingKindCount = 9;

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

  // The following three are set for kBudget. A rate is from 0 to 1. The last two are 0 without a History.
  double ready_rate = 0;                // The share of runs that found an executable ready for their key.
  double ready_rate_of_twice = 0;       // What this rate would have been with twice the budget.
  double ready_rate_of_four_times = 0;  // What this rate would have been with four times the budget.
};

// The findings of a cache; those that concern the most runs come first. It is meant for people, not for each run: it
// walks over all entries, as Cache::entries() does, and reads a few graphs, as Cache::graph() does. Empty if there is
// nothing to report, or no memory for it.
//
// With a History (history.h) among the listeners of the cache, it also finds what a larger budget would give (kBudget),
// and counts direct runs and captures of keys that are gone (kDirectRuns, kTemplates).
std::vector<Finding> advise(const Cache& cache);

// The buckets that need the least padding in total for known sizes, at most `most` of them. Each size is given with its
// number of uses. Sizes below 1 are ignored. If there are more than 512 sizes, only 512 of them, evenly spaced, can
// become buckets. Throws std::bad_alloc.
Buckets fit_buckets(const std::vector<std::pair<std::int64_t, std::uint64_t>>& sizes, std::size_t most);

}  // namespace graphcache
