// Which executable and template stay, who rents and who buys: the cache against a model of the rules. On hostrt.
//
// GRAPHCACHE_POLICY_SEQUENCES=100000 checks more random sequences against the model, and GRAPHCACHE_POLICY_SEED=7 that
// of one seed alone, operation by operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "policy_model.h"
#include "policy_sequences.h"
#include "size.h"

namespace graphcache::test {
namespace {

bool same(const Stats& a, const Stats& b) {
  return a.outcomes == b.outcomes && a.eager_reasons == b.eager_reasons && a.refused_updates == b.refused_updates &&
         a.failed == b.failed && a.captures == b.captures && a.capture_failures == b.capture_failures &&
         a.instantiations == b.instantiations && a.updates == b.updates && a.row_switches == b.row_switches &&
         a.refused_device_updates == b.refused_device_updates && a.patched_nodes == b.patched_nodes &&
         a.evictions == b.evictions && a.forgotten == b.forgotten && a.live_executables == b.live_executables &&
         a.live_templates == b.live_templates && a.families == b.families &&
         a.estimated_device_bytes == b.estimated_device_bytes;
}

// `has_table`: whether one of them takes more than an executable without.
bool same(const std::vector<EntryInfo>& a, const std::vector<EntryInfo>& b, bool has_table) {
  std::size_t tables = 0;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const EntryInfo& x, const EntryInfo& y) {
                      const bool more = y.live && x.estimated_device_bytes > y.estimated_device_bytes;
                      tables += more ? 1 : 0;
                      return x.label == y.label && x.key == y.key && x.outcomes == y.outcomes && x.live == y.live &&
                             x.recorded == y.recorded && x.pinned == y.pinned && x.family == y.family &&
                             x.nodes == y.nodes && x.slot_nodes == y.slot_nodes &&
                             (more || x.estimated_device_bytes == y.estimated_device_bytes) &&
                             x.last_use_order == y.last_use_order;
                    }) &&
         (tables != 0) == has_table;
}

// How often the checked sequences came by what is worth coming by.
struct Coverage {
  std::uint64_t operations = 0;
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::array<std::uint64_t, kEagerReasonCount> eager{};
  std::uint64_t updates = 0, row_switches = 0, patched = 0, evictions = 0, forgotten = 0, failed = 0;
  std::uint64_t moves = 0, across = 0;

  void add(const Model& model) {
    const Stats& stats = model.stats;
    for (std::size_t i = 0; i < outcomes.size(); ++i) outcomes[i] += stats.outcomes[i];
    for (std::size_t i = 0; i < eager.size(); ++i) eager[i] += stats.eager_reasons[i];
    updates += stats.updates;
    row_switches += stats.row_switches;
    patched += stats.patched_nodes;
    evictions += stats.evictions;
    forgotten += stats.forgotten;
    failed += stats.failed;
    moves += model.moves;
    across += model.across;
  }
};

// One sequence on a cache and on the model. The first difference, or nothing.
class Duel {
 public:
  explicit Duel(std::uint64_t seed, bool verbose)
      : verbose_(verbose),
        sequence_(seed % 4 == 3 ? crowded_sequence(seed) : random_sequence(seed)),
        bench_(sequence_.options),
        model_(sequence_.options, sequence_.specs, sequence_.refuses_updater) {
    if (sequence_.refuses_updater) hostrt::fail_call("cudaLibraryLoadData", 1, cudaErrorNoKernelImageForDevice, -1);
  }
  ~Duel() { hostrt::clear_failures(); }

  std::string fight(Coverage* coverage) {
    if (verbose_) std::printf("%s\n", text_of(sequence_.options).c_str());
    for (std::size_t i = 0; i < sequence_.operations.size(); ++i) {
      const Operation& operation = sequence_.operations[i];
      std::string wrong = step(operation);
      if (verbose_) {
        std::printf("%3zu %s: %s\n", i, text_of(operation, sequence_.specs).c_str(), did_.c_str());
        std::printf("%s", text_of(bench_.cache.entries()).c_str());
      }
      if (wrong.empty()) wrong = compare();
      if (wrong.empty()) continue;
      return "operation " + std::to_string(i) + ", " + text_of(operation, sequence_.specs) + ": " + wrong + "\n" +
             text_of(sequence_.options) + "\ncache: " + text_of(bench_.cache.stats()) +
             "\nmodel: " + text_of(model_.stats) + "\ncache:\n" + text_of(bench_.cache.entries()) + "model:\n" +
             text_of(model_.entries());
    }
    coverage->operations += sequence_.operations.size();
    coverage->add(model_);
    return "";
  }

 private:
  std::string step(const Operation& operation) {
    const std::size_t k = operation.which;
    const Spec& which = sequence_.specs[k];
    const int calls_before = bench_.calls;
    const auto is = [](bool got, bool wanted) -> std::string {
      return got == wanted ? "" : std::string("it returned ") + (got ? "true" : "false");
    };
    did_.clear();
    switch (operation.kind) {
      case Operation::kPin:
        return is(bench_.cache.pin(which.key), model_.pin(k, true));
      case Operation::kUnpin:
        return is(bench_.cache.unpin(which.key), model_.pin(k, false));
      case Operation::kErase:
        return is(bench_.cache.erase(which.key), model_.erase(k));
      case Operation::kClear:
        bench_.cache.clear();
        model_.clear();
        return "";
      case Operation::kWarm: {
        const absl::Status status = bench_.warm(which, operation.values, operation.stream);
        did_ = status.ToString();
        if (status.ok() != model_.warm(k, operation.values, operation.stream)) return did_;
        break;
      }
      case Operation::kRun: {
        const absl::StatusOr<Outcome> outcome = bench_.run(which, operation.values, operation.stream);
        model_.run(k, operation.values, operation.stream);
        apply(which.nodes, operation.values, &bench_.wanted);
        if (!outcome.ok()) return outcome.status().ToString();
        did_ = to_string(*outcome);
        if (*outcome != *model_.outcome) return did_ + ", by the model " + to_string(*model_.outcome);
        break;
      }
    }
    if (bench_.calls - calls_before != model_.calls) {
      return "fn was called " + std::to_string(bench_.calls - calls_before) + " times, by the model " +
             std::to_string(model_.calls);
    }
    const Stats& stats = model_.stats;
    const std::size_t stay = static_cast<std::size_t>(stats.live_executables) + model_.pinned_templates();
    const std::size_t most = std::max(static_cast<std::size_t>(sequence_.options.max_templates), stay);
    if (operation.kind == Operation::kRun && model_.tidied && bench_.cache.stats().live_templates > most) {
      return "too many templates";
    }
    return "";
  }

  std::string compare() {
    Stats stats = bench_.cache.stats();
    if (model_.has_table()) {
      if (stats.estimated_device_bytes <= model_.stats.estimated_device_bytes) return "a table takes no memory";
      stats.estimated_device_bytes = model_.stats.estimated_device_bytes;
    }
    if (!same(stats, model_.stats)) return "stats";
    if (!same(bench_.cache.entries(), model_.entries(), model_.has_table())) return "entries";
    for (std::size_t k = 0; k < sequence_.specs.size(); ++k) {
      if (bench_.cache.contains(sequence_.specs[k].key) != model_.contains(k)) {
        return "contains " + sequence_.specs[k].name;
      }
    }
    if (!bench_.right()) return "the work's result";
    const Options& options = sequence_.options;
    if (stats.live_executables > static_cast<std::uint64_t>(options.max_executables)) return "too many executables";
    if (stats.estimated_device_bytes > options.max_device_bytes) return "too many bytes";
    const hostrt::Ledger ledger = hostrt::ledger();
    // What has left waits for the next run on its stream: at most eight (exec/graveyard.h).
    const std::size_t waiting = sequence_.has_several_streams() ? 8 : 0;
    if (ledger.executables > static_cast<std::size_t>(options.max_executables) + waiting) {
      return "too many executables exist";
    }
    if (ledger.executables < stats.live_executables) return "executables are missing";
    return "";
  }

  const bool verbose_;
  const Sequence sequence_;
  Bench<> bench_;
  Model model_;
  std::string did_;
};

long number_in(const char* variable, long otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtol(text, nullptr, 10);
}

TEST_F(PolicyTest, RandomSequencesGoAsTheRulesSay) {
  const long one = number_in("GRAPHCACHE_POLICY_SEED", -1);
  const long count = one >= 0 ? 1 : number_in("GRAPHCACHE_POLICY_SEQUENCES", by_size(900L, 3000L, 3000L));
  Coverage coverage;
  for (long i = 0; i < count && !HasFailure(); ++i) {
    const long seed = one >= 0 ? one : i;
    const std::string wrong = Duel(static_cast<std::uint64_t>(seed), one >= 0).fight(&coverage);
    EXPECT_EQ(wrong, "") << "again by GRAPHCACHE_POLICY_SEED=" << seed;
    const hostrt::Ledger left = hostrt::ledger();
    EXPECT_EQ(left.executables + left.graphs, 0u) << "GRAPHCACHE_POLICY_SEED=" << seed;
  }
  if (one >= 0 || count < 1000 || HasFailure()) return;
  // A check that never comes by a rule does not check it: as often as the ordinary size, so not asked of the brief one.
  for (const Outcome outcome : {Outcome::kReplayed, Outcome::kPatched, Outcome::kSwitched, Outcome::kRestored,
                                Outcome::kUpdated, Outcome::kInstantiated, Outcome::kEager}) {
    EXPECT_GT(coverage.outcomes[static_cast<std::size_t>(outcome)], 500u) << to_string(outcome);
  }
  for (const EagerReason reason :
       {EagerReason::kBudget, EagerReason::kCaptureAfter, EagerReason::kCaptureFailed, EagerReason::kBackoff}) {
    EXPECT_GT(coverage.eager[static_cast<std::size_t>(reason)], 100u) << to_string(reason);
  }
  for (const std::uint64_t often :
       {coverage.updates, coverage.row_switches, coverage.patched, coverage.evictions, coverage.forgotten}) {
    EXPECT_GT(often, 500u);
  }
  for (const std::uint64_t often : {coverage.moves, coverage.across, coverage.failed}) {
    EXPECT_GT(often, 50u);
  }
  RecordProperty("operations", std::to_string(coverage.operations));
}

}  // namespace
}  // namespace graphcache::test
