// Rent or buy with tables: what a family pays against the best in hindsight. On hostrt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "cuda/costs.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "policy_tables.h"
#include "policy_work.h"

namespace graphcache::test {
namespace {

Options ample(Prefer prefer) {
  Options options;
  options.max_executables = 1000;
  options.prefer = prefer;
  return options;
}

// What all visits cost, by the table of costs.
Cost paid(const Tenants& tenants, const Options& options, const std::vector<std::size_t>& visits) {
  Bench<> bench(options);
  Cost sum = 0;
  Stats before = bench.cache.stats();
  for (const std::size_t k : visits) {
    const absl::StatusOr<Outcome> outcome = bench.run(tenants.specs[k]);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    if (!outcome.ok()) return 0;
    const std::size_t nodes = tenants.specs[k].nodes.size();
    const Stats now = bench.cache.stats();
    if (now.instantiations != before.instantiations) {
      const bool table = now.estimated_device_bytes - before.estimated_device_bytes > estimated_device_bytes(nodes);
      sum += table ? costs::buy_table(nodes) : costs::buy(nodes);
    } else if (now.row_switches != before.row_switches) {
      sum += cost_of_row(options, nodes);
    } else if (*outcome != Outcome::kReplayed) {
      sum += tenants.rents[k];
    }
    before = now;
  }
  return sum;
}

// Of each key the cheaper one of its own executable and of what it pays where it has none, beside one executable for
// all that is switched at the cost `by_switch`, for which each visit finds it elsewhere.
Cost best_beside(Cost first, const std::vector<Cost>& turns, Cost price, Cost by_switch) {
  for (const Cost count : turns) first += std::min(count * by_switch, price);
  return first;
}

Cost best_in_hindsight(const Tenants& tenants, const Options& options, const std::vector<std::size_t>& visits) {
  std::vector<Cost> turns(tenants.specs.size());
  for (std::size_t i = 1; i < visits.size(); ++i) turns[visits[i]] += visits[i] != visits[i - 1] ? 1 : 0;
  const std::size_t nodes = tenants.specs[0].nodes.size();
  const Cost price = costs::buy(nodes);
  return std::min(best_beside(price, turns, price, tenants.rents[0]),
                  best_beside(costs::buy_table(nodes), turns, price, cost_of_row(options, nodes)));
}

TEST_F(PolicyTest, TablesCostAtMostThriceTheBestInHindsight) {
  hostrt::set_execution(false);
  Random random(11);
  double worst = 0;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const Profile profiles[] = {Profile::kGrids, Profile::kValues, Profile::kOneGrid, Profile::kGrids};
    Tenants tenants;
    tenants.add_family(profiles[random.below(4)], random.between(2, 40),
                       static_cast<std::size_t>(random.between(2, 60)));
    const Options options = ample(Prefer::kTotalTime);
    const int keys = static_cast<int>(tenants.specs.size());
    std::vector<std::size_t> visits;
    const int length = random.between(10, 600);
    for (int i = 0; i < length; ++i) {
      int k = round % 3 == 0 ? i % keys : random.below(keys);
      while (round % 3 == 1 && random.below(k + 1) != 0) k = random.below(keys);  // Zipf's.
      visits.push_back(static_cast<std::size_t>(k));
    }
    const Cost mine = paid(tenants, options, visits);
    const Cost best = best_in_hindsight(tenants, options, visits);
    worst = std::max(worst, static_cast<double>(mine) / static_cast<double>(best));
    EXPECT_LE(mine, 3 * best);
  }
  std::printf("at worst %.2f times the best\n", worst);
}

}  // namespace
}  // namespace graphcache::test
