// Recipes for capturing calls of CUDA libraries (docs/libraries.md), one file for each library. Each recipe runs
// through a cache with other values and pointers in every run, and compares every result with the host's. Prints a line
// for each: whether all results were right, and the outcomes of the runs.
//
// Needs a GPU, because hostrt has no libraries. Uses the libraries that the toolkit has.
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "recipes.h"

namespace demo {

std::vector<Recipe>& recipes() {
  static std::vector<Recipe> all;
  return all;
}

namespace {
int hits_in_a_row = 0;
}

bool succeeded(const absl::StatusOr<graphcache::Outcome>& outcome) {
  if (!outcome.ok()) absl::FPrintF(stderr, "%s\n", outcome.status().ToString());
  hits_in_a_row = outcome.ok() && graphcache::is_hit(*outcome) ? hits_in_a_row + 1 : 0;
  return outcome.ok();
}

void check_library(int code, const char* call) {
  if (code == 0) return;
  absl::FPrintF(stderr, "%s: %d\n", call, code);
  std::exit(1);
}

namespace {

// A recipe is right only if it was captured as well, not too often, and not in its last runs.
bool run(const Recipe& recipe, cudaStream_t stream) {
  graphcache::Options options;
  options.capture_after = 1;
  graphcache::Cache cache(options);
  hits_in_a_row = 0;
  const bool right = recipe.check(cache, stream);
  const graphcache::Stats stats = cache.stats();
  const auto keys = static_cast<std::uint64_t>(recipe.keys);
  const auto most = keys * static_cast<std::uint64_t>(recipe.most_captures);
  const bool captured =
      stats.captures >= keys && stats.captures <= most && stats.hits() + stats.captures == keys * (kRuns - 1) &&
      hits_in_a_row >= kRuns - 1 - recipe.most_captures && stats.eager(graphcache::EagerReason::kCaptureAfter) == keys;
  std::vector<std::string> outcomes;
  for (const auto& [name, count] : outcome_counts(stats)) {
    if (count != 0) outcomes.push_back(absl::StrFormat("%s %d", name, count));
  }
  absl::PrintF("%-30s %-14s %s\n", recipe.name,
               !right      ? "wrong"
               : !captured ? "not captured"
                           : "right",
               absl::StrJoin(outcomes, ", "));
  for (const graphcache::EntryInfo& entry : cache.entries()) {
    if (!entry.error.empty()) absl::PrintF("  %s\n", entry.error);
  }
  std::fflush(stdout);
  return right && captured;
}

int run_all() {
  announce();
  if (!on_gpu()) {
    absl::PrintF("skipped: CUDA's libraries need a GPU\n");
    return 0;
  }
  std::sort(recipes().begin(), recipes().end(),
            [](const Recipe& a, const Recipe& b) { return std::string_view(a.name) < b.name; });
  cudaStream_t stream = nullptr;
  DEMO_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int failed = 0;
  for (const Recipe& recipe : recipes()) failed += run(recipe, stream) ? 0 : 1;
  DEMO_CUDA(cudaStreamDestroy(stream));
#ifdef DEMO_LEFT_OUT
  absl::PrintF("not found when this was built, and left out: %s\n", DEMO_LEFT_OUT);
#endif
  absl::PrintF("results: %d of %d recipes right\n", recipes().size() - static_cast<std::size_t>(failed),
               recipes().size());
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::parse_flags(argc, argv, "Recipes for CUDA libraries inside a cache's runs; see the top of the source.");
  return demo::run_all();
}
