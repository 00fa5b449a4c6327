// What could be better about how a program uses its cache (Cache::advise).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace graphcache {

enum class FindingKind {
  kSizes,          // A number in the keys takes many values that seldom come again: round it up to buckets.
  kValuesInKeys,   // Keys differ in one part at nearly each run, and their graphs in values alone: make it a slot.
  kBudget,         // Executables are evicted that are needed again soon: Options::max_executables is too small.
  kTemplates,      // Keys are captured again because their templates were dropped: Options::max_templates is too small.
  kNeverHitAgain,  // Entries take memory and have never been replayed.
  kDirectRuns,     // Runs call `fn` directly that could be graphs.
  kStale,          // Verify mode found graphs that hold old values (Options::verify_every).
};
inline constexpr int kFindingKindCount = 7;

// "sizes", "values_in_keys", ...: the enumerator without its k, in lower case.
const char* to_string(FindingKind kind);

// One finding. Its texts hold no part of a key but labels and buckets, no address and no value of an argument.
struct Finding {
  FindingKind kind = FindingKind::kSizes;
  std::string label;       // Whose keys it is about (EntryInfo::label), or empty if it is about all.
  std::string text;        // What was seen, with the figures, in one or two sentences.
  std::string cure;        // The option to set, or the change to the program, in one sentence.
  std::uint64_t runs = 0;  // How many runs were affected: findings with more come first.
  // Of kSizes: sizes to round up to, ascending, and by how much that would enlarge the sizes of all runs together, as a
  // part of them: 0.1 is 10 % more.
  std::vector<std::int64_t> buckets;
  double padding = 0;
  // Of kBudget: the share of runs that found an executable ready for their key, from 0 to 1, and what it would have
  // been with twice and four times the budget.
  double ready_rate = 0;
  double ready_rate_of_twice = 0;
  double ready_rate_of_four_times = 0;
};

}  // namespace graphcache
