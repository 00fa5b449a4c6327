// Scenarios of conditional nodes.
#include "faults_scenarios.h"

namespace graphcache::test {

void add_conditionals(ScenarioList& list) {
  const ForcedOptions one = unshared(1);
  Options none, verified;
  none.max_executables = 0;
  verified.verify_every = 1;
  Work mine{kKey}, other{kOther};
  mine.conditional = other.conditional = true;
  Work around = mine;
  around.inner = Work::Inner::kPlain;
  list.add("cold with a condition", {}, mine, other, {}, Outcome::kInstantiated);
  list.add("hit with a condition", {}, mine, other, {kMine}, Outcome::kPatched).may_destroy = false;
  list.add("eager with a condition", none, mine, other, {}, Outcome::kEager).may_destroy = false;
  list.add("restored with a condition", one, mine, other, {kMine, kTheOther}, Outcome::kRestored);
  list.add("cold with a condition, on a second device", {}, mine, other, {}, Outcome::kInstantiated).devices = 2;
  list.add("cold with a condition and a run inside", {}, around, other, {}, Outcome::kInstantiated);
  list.add("verified with a condition", verified, mine, other, {kMine}, Outcome::kPatched);
  Scenario& destroy = list.add("destruction of a condition", {}, mine, other, {kMine}, {});
  destroy.operate = [](World& world, const Scenario&) { world.cache.reset(); };
  destroy.after = make_another_cache;
  destroy.ends = true;
  destroy.forgets_other = true;
}

}  // namespace graphcache::test
