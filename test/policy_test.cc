// Which executable and template stay, who rents and who buys: the cache against a model of the rules, its costs against
// the best in hindsight, and its decisions against themselves under another clock and other addresses. On hostrt.
//
// GRAPHCACHE_POLICY_SEQUENCES=100000 checks more random sequences against the model, and GRAPHCACHE_POLICY_SEED=7 that
// of one seed alone, operation by operation.
#include <device_launch_parameters.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "costs.h"
#include "graph.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "support.h"

namespace graphcache::test {

// ---- Work -----------------------------------------------------------------------------------------------------------

struct State {
  std::uint32_t sum = 0;
  unsigned char scratch[4] = {};
};

// Tells in which order, with which shapes and which values kernels and sets were done.
inline void mix_in(State* state, std::uint32_t factor, unsigned grid, unsigned block, int value) {
  for (const unsigned char byte : state->scratch) state->sum = state->sum * factor + byte;
  state->sum = (state->sum * factor + grid) * factor + block;
  state->sum = state->sum * factor + static_cast<std::uint32_t>(value);
}

constexpr std::uint32_t kFactors[] = {16777619, 2654435761};

template <int kWhich>
void mix(State* state, int value) {
  if (blockIdx.x == 0 && threadIdx.x == 0) mix_in(state, kFactors[kWhich], gridDim.x, blockDim.x, value);
}

}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::mix<0>)
GRAPHCACHE_HOST_KERNEL(graphcache::test::mix<1>)

namespace graphcache::test {
namespace {

constexpr void (*kMix[])(State*, int) = {mix<0>, mix<1>};

using Values = std::array<int, 2>;

// A kernel, or a set of the scratch bytes, whose values may be slots: the number of one, or -1.
struct Node {
  bool sets = false;
  int kernel = 0;
  unsigned grid = 1, block = 1;
  int value = 0, size = 4;
  int value_slot = -1, size_slot = -1;

  bool has_slot() const { return value_slot >= 0 || size_slot >= 0; }
  Node with(const Values& values) const {
    Node node = *this;
    if (value_slot >= 0) node.value = values[static_cast<std::size_t>(value_slot)];
    if (size_slot >= 0) node.size = values[static_cast<std::size_t>(size_slot)];
    return node;
  }
  bool same_launch(const Node& other) const { return kernel == other.kernel && block == other.block; }
  bool same_values(const Node& other) const { return value == other.value && (!sets || size == other.size); }
};

struct Spec {
  Key key;
  std::string name;
  std::vector<Node> nodes;
  bool varying = false;  // Whether its runs have params.
};

Spec spec(const std::string& name, std::vector<Node> nodes) {
  const bool varying = std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.has_slot(); });
  return {key(name), name, std::move(nodes), varying};
}

// What a run of the nodes does.
void apply(const std::vector<Node>& nodes, const Values& values, State* state) {
  for (const Node& constant : nodes) {
    const Node node = constant.with(values);
    if (node.sets) {
      std::memset(state->scratch, node.value, static_cast<std::size_t>(node.size));
    } else {
      mix_in(state, kFactors[node.kernel], node.grid, node.block, node.value);
    }
  }
}

// What `fn` needs. Another kPlace: the same at another place of the program.
template <int kPlace>
struct Job {
  const Spec* spec;
  State* state;
  int* calls;
  const std::function<void()>* in_fn;

  void operator()(Recorder& rec) const { enqueue(rec, nullptr); }
  void operator()(Recorder& rec, Slot<int> a, Slot<int> b) const {
    const Slot<int> slots[] = {a, b};
    enqueue(rec, slots);
  }

 private:
  void enqueue(Recorder& rec, const Slot<int>* slots) const {
    ++*calls;
    if (*in_fn) (*in_fn)();
    for (const Node& node : spec->nodes) {
      const Arg<int> value = node.value_slot < 0 ? Arg<int>(node.value) : Arg<int>(slots[node.value_slot]);
      if (node.sets) {
        rec.memset(state->scratch, value,
                   node.size_slot < 0 ? Arg<std::size_t>(node.size) : Arg<std::size_t>(slots[node.size_slot]));
      } else {
        rec.launch(kMix[node.kernel], {node.grid, node.block}, state, value);
      }
    }
  }
};

// A cache, and the memory that its runs work on. hostrt's device memory is the host's, and its work is done by the time
// that the run returns.
template <int kPlace = 0>
struct Bench {
  explicit Bench(const Options& options = {}) : cache(options) {}

  absl::StatusOr<Outcome> run(const Spec& which, const Values& values = {}) {
    const Job<kPlace> job{&which, state.get(), &calls, &in_fn};
    return which.varying ? cache.run(which.key, stream, params(values[0], values[1]), job)
                         : cache.run(which.key, stream, job);
  }
  absl::Status warm(const Spec& which, const Values& values = {}) {
    const Job<kPlace> job{&which, state.get(), &calls, &in_fn};
    return which.varying ? cache.warm(which.key, stream, params(values[0], values[1]), job)
                         : cache.warm(which.key, stream, job);
  }

  // A run whose work is checked.
  absl::StatusOr<Outcome> go(const Spec& which, const Values& values = {}) {
    apply(which.nodes, values, &wanted);
    absl::StatusOr<Outcome> outcome = run(which, values);
    EXPECT_TRUE(right()) << which.name;
    return outcome;
  }
  bool right() const { return std::memcmp(state.get(), &wanted, sizeof wanted) == 0; }

  Stream stream;
  DeviceBuffer<State> state{1};
  State wanted;   // Of the runs that were checked.
  int calls = 0;  // Of fn.
  std::function<void()> in_fn;
  Cache cache;
};
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed * 2654435761u + 12345) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::mt19937_64 engine_;
};

// ---- Random sequences -----------------------------------------------------------------------------------------------

struct Operation {
  enum Kind { kRun, kWarm, kPin, kUnpin, kErase, kClear } kind;
  std::size_t which = 0;
  Values values{};
};

struct Sequence {
  Options options;
  std::vector<Spec> specs;
  std::vector<Operation> operations;
};

// How the members of a family differ.
enum class Profile { kOneValue, kValues, kOneGrid, kGrids, kBlocks, kKernels, kMixed, kCount };

void vary(std::vector<Node>& nodes, Profile profile, int member, Random& random) {
  std::size_t kernels_seen = 0;
  for (Node& node : nodes) {
    const bool first = !node.sets && kernels_seen++ == 0;
    switch (profile) {
      case Profile::kOneValue:
        if (first) node.value = member;
        break;
      case Profile::kValues:
        node.value = member;
        break;
      case Profile::kOneGrid:
        if (first) node.grid = static_cast<unsigned>(1 + member);
        break;
      case Profile::kGrids:
        node.grid = static_cast<unsigned>(1 + member);
        break;
      case Profile::kBlocks:
        node.block = static_cast<unsigned>(1 + member);
        break;
      case Profile::kKernels:
        node.kernel = member % 2;
        node.value = member / 2;
        break;
      default:
        node.kernel = random.below(2);
        node.grid = static_cast<unsigned>(random.between(1, 2));
        node.block = static_cast<unsigned>(random.between(1, 2));
        node.value = random.below(3);
    }
    // A set has neither.
    if (node.sets) node.kernel = 0, node.grid = node.block = 1;
  }
}

void add_slots(std::vector<Node>& nodes, Random& random) {
  for (Node& node : nodes) {
    if (random.chance(50)) node.value_slot = random.below(2);
  }
}

std::vector<Spec> random_specs(Random& random) {
  std::vector<Spec> specs;
  const auto add = [&](std::vector<Node> nodes) {
    specs.push_back(spec("k" + std::to_string(specs.size()), std::move(nodes)));
  };
  const int families = random.between(2, 3);
  for (int family = 0; family < families; ++family) {
    std::vector<Node> nodes(static_cast<std::size_t>(random.between(1, 5)));
    for (Node& node : nodes) node.sets = random.chance(20);
    nodes.insert(nodes.begin(), Node());
    const auto profile = static_cast<Profile>(random.below(static_cast<int>(Profile::kCount)));
    const int members = random.between(2, 4);
    const int slots = random.below(3);  // Of no member, of some, of all.
    for (int member = 0; member < members; ++member) {
      std::vector<Node> mine = nodes;
      vary(mine, profile, member, random);
      if (random.chance(50 * slots)) add_slots(mine, random);
      add(mine);
    }
  }
  add(std::vector<Node>(7));                           // Of no other's topology.
  add(std::vector<Node>(random.chance(50) ? 50 : 8));  // Twice as big as others.
  std::vector<Node> fragile(2);                        // A capture of it breaks while its size is 0.
  fragile[0].sets = true;
  fragile[0].size_slot = 0;
  fragile[0].value_slot = 1;
  if (random.chance(50)) add(fragile);
  return specs;
}

Sequence random_sequence(std::uint64_t seed) {
  Random random(seed);
  Sequence sequence;
  sequence.specs = random_specs(random);
  const int count = static_cast<int>(sequence.specs.size());
  Options& options = sequence.options;
  options.max_executables = random.between(1, 4);
  options.max_templates = random.chance(30) ? 512 : random.between(0, 8);
  const Sharing ways[] = {Sharing::kAuto, Sharing::kAuto, Sharing::kNever, Sharing::kAlways};
  options.sharing = ways[random.below(4)];
  if (random.chance(40)) {
    const std::size_t nodes = sequence.specs[static_cast<std::size_t>(random.below(count))].nodes.size();
    options.max_device_bytes = static_cast<std::size_t>(random.between(1, 3)) * estimated_device_bytes(nodes) +
                               static_cast<std::size_t>(random.below(20'000)) - static_cast<std::size_t>(5'000);
  }
  options.capture_after = random.chance(15) ? random.between(1, 2) : 0;

  std::vector<Values> last(sequence.specs.size(), Values{3, 3});
  const int length = random.between(30, 80);
  int first = 0, span = count;
  for (int i = 0; i < length; ++i) {
    if (i % 16 == 0) {  // Phases, each with some of the keys.
      first = random.below(count);
      span = random.chance(40) ? count : random.between(2, std::min(5, count));
    }
    Operation operation{Operation::kRun, static_cast<std::size_t>((first + random.below(span)) % count), {}};
    const int kind = random.below(100);
    if (kind >= 99) {
      operation.kind = Operation::kClear;
    } else if (kind >= 95) {
      operation.kind = Operation::kErase;
    } else if (kind >= 90) {
      operation.kind = Operation::kUnpin;
    } else if (kind >= 86) {
      operation.kind = Operation::kPin;
    } else if (kind >= 77) {
      operation.kind = Operation::kWarm;
    }
    Values& values = last[operation.which];
    if (random.chance(50)) values = {random.below(4) == 0 ? 0 : random.between(1, 4), random.below(4)};
    operation.values = values;
    sequence.operations.push_back(operation);
  }
  return sequence;
}

// ---- The model ------------------------------------------------------------------------------------------------------

// The rules of options.h, stats.h, cache.h and costs.h once more, as plainly as they can be said: rows instead of
// lists, and every question answered by looking at all of them.
class Model {
 public:
  Model(const Options& options, const std::vector<Spec>& specs)
      : options_(options), specs_(specs), rows_(specs.size()) {}

  // The last operation: its outcome, or none of a failure, and how often it called `fn`.
  std::optional<Outcome> outcome;
  int calls = 0;
  bool tidied = false;
  Stats stats;

  void run(std::size_t k, const Values& values) {
    begin(k);
    outcome = do_run(k, values);
    ++rows_[k].outcomes[static_cast<std::size_t>(*outcome)];
    ++stats.outcomes[static_cast<std::size_t>(*outcome)];
    count();
  }

  // True: no error.
  bool warm(std::size_t k, const Values& values) {
    begin(k);
    const bool ok = do_warm(k, values);
    if (!ok) ++stats.failed;
    count();
    return ok;
  }

  bool pin(std::size_t k, bool pinned) {
    Row& row = rows_[k];
    if (!row.known) return false;
    row.pinned = pinned;
    if (pinned) no_spare(k);  // What it has rented it keeps.
    return true;
  }

  bool erase(std::size_t k) {
    const bool known = rows_[k].known;
    no_spare(k);
    rows_[k] = Row();
    count();
    return known;
  }
  void clear() {
    for (std::size_t k = 0; k < rows_.size(); ++k) erase(k);
  }

  bool contains(std::size_t k) const { return rows_[k].recorded; }
  std::size_t pinned_templates() const {
    return number([](const Row& row) { return row.recorded && !row.live && row.pinned; });
  }

  std::vector<EntryInfo> entries() const {
    std::vector<std::size_t> known;
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (rows_[k].known) known.push_back(k);
    }
    std::sort(known.begin(), known.end(), [&](std::size_t a, std::size_t b) { return rows_[a].used > rows_[b].used; });
    std::vector<EntryInfo> infos;
    for (const std::size_t k : known) {
      const Row& row = rows_[k];
      EntryInfo info;
      info.label = specs_[k].name;
      info.key = specs_[k].key.to_string();
      info.outcomes = row.outcomes;
      info.live = row.live;
      info.recorded = row.recorded;
      info.pinned = row.pinned;
      info.family = row.family;
      info.nodes = row.was_recorded ? specs_[k].nodes.size() : 0;
      info.slot_nodes = row.was_recorded ? slot_nodes(k) : 0;
      info.estimated_device_bytes = row.live ? bytes(k) : 0;
      info.last_use_order = infos.size();
      infos.push_back(info);
    }
    return infos;
  }

 private:
  struct Row {
    bool known = false, was_recorded = false;
    bool live = false, recorded = false, pinned = false;
    std::uint64_t used = 0, family = 0;
    std::uint64_t often = 0, period = 0;  // Uses of late, and in which period that was counted.
    Values captured{}, programmed{};      // Of its graph, and of its executable.
    Cost paid = 0;                        // Rent.
    bool seen = false;
    int wait = 0, broken = 0;  // Runs before the next capture, captures that broke.
    EagerReason why = EagerReason::kCaptureAfter;
    std::array<std::uint64_t, kOutcomeCount> outcomes{};
  };
  struct Way {
    bool update;
    Cost cost;
  };
  static constexpr std::size_t kNobody = SIZE_MAX;

  std::size_t slot_nodes(std::size_t k) const {
    const auto& nodes = specs_[k].nodes;
    return static_cast<std::size_t>(
        std::count_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.has_slot(); }));
  }
  std::size_t bytes(std::size_t k) const { return estimated_device_bytes(specs_[k].nodes.size()); }
  std::string topology(std::size_t k) const {
    std::string text;
    for (const Node& node : specs_[k].nodes) text += node.sets ? 'S' : 'K';
    return text;
  }
  template <class F>
  std::size_t number(F&& is) const {
    return static_cast<std::size_t>(std::count_if(rows_.begin(), rows_.end(), is));
  }
  std::size_t live() const {
    return number([](const Row& row) { return row.live; });
  }
  std::size_t live_bytes() const {
    std::size_t sum = 0;
    for (std::size_t k = 0; k < rows_.size(); ++k) sum += rows_[k].live ? bytes(k) : 0;
    return sum;
  }
  template <class F>
  std::size_t oldest(F&& is) const {
    std::size_t found = kNobody;
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (is(rows_[k]) && !rows_[k].pinned && (found == kNobody || rows_[k].used < rows_[found].used)) found = k;
    }
    return found;
  }

  void begin(std::size_t k) {
    calls = 0;
    tidied = false;
    Row& row = rows_[k];
    row.known = true;
    row.used = ++uses_;
    row.often = often(row) + 1;
    row.period = uses_ / period();
  }

  // The smallest power of two of at least eight uses for each executable that there may be.
  std::uint64_t period() const {
    std::uint64_t uses = 8;
    while (uses < 8 * static_cast<std::uint64_t>(options_.max_executables)) uses *= 2;
    return uses;
  }
  std::uint64_t often(const Row& row) const {
    std::uint64_t count = row.often;
    for (std::uint64_t i = row.period; i < uses_ / period(); ++i) count /= 2;
    return count;
  }
  bool is_used_more_often_than_the_oldest(const Row& row) const {
    const std::size_t k = oldest([](const Row& other) { return other.live; });
    return k == kNobody || often(row) > often(rows_[k]);
  }

  void count() {
    std::vector<std::uint64_t> families;
    for (const Row& row : rows_) {
      if (row.family != 0) families.push_back(row.family);
    }
    std::sort(families.begin(), families.end());
    stats.families = static_cast<std::uint64_t>(std::unique(families.begin(), families.end()) - families.begin());
    stats.live_executables = live();
    stats.live_templates = number([](const Row& row) { return row.recorded; });
    stats.estimated_device_bytes = live_bytes();
  }

  Outcome eager(EagerReason why) {
    ++calls;
    ++stats.eager_reasons[static_cast<std::size_t>(why)];
    return Outcome::kEager;
  }

  Outcome do_run(std::size_t k, const Values& values) {
    Row& row = rows_[k];
    if (row.live) return set(k, values) != 0 ? Outcome::kPatched : Outcome::kReplayed;
    if (!std::exchange(row.seen, true)) row.wait = options_.capture_after;
    if (row.wait > 0) {
      --row.wait;
      return eager(row.why);
    }
    const Outcome done = bring(k, values);
    tidy();
    return done;
  }

  Outcome bring(std::size_t k, const Values& values) {
    const bool hit = rows_[k].recorded;
    if (!hit) {
      const std::size_t known = rows_[k].was_recorded ? bytes(k) : 0;
      if (known > options_.max_device_bytes) return eager(EagerReason::kBudget);
      if (!fits(known) && oldest([](const Row& row) { return row.live; }) == kNobody)
        return eager(EagerReason::kBudget);
      if (!record(k, values)) return eager(EagerReason::kCaptureFailed);
    }
    bool sibling = false;
    if (!obtain(k, values, &sibling)) return eager(EagerReason::kBudget);
    rows_[k].broken = 0;
    if (sibling) return hit ? Outcome::kSwitched : Outcome::kUpdated;
    return hit ? Outcome::kRestored : Outcome::kInstantiated;
  }

  bool do_warm(std::size_t k, const Values& values) {
    Row& row = rows_[k];
    if (row.live) return true;
    const bool ok = row.recorded || record(k, values);
    if (ok) {
      row.seen = true;
      row.wait = 0;
      const bool shares = options_.sharing == Sharing::kAlways && executables_of(row.family) != 0;
      if (fits(bytes(k)) && !shares) instantiate(k);
    }
    tidy();
    return ok;
  }

  bool record(std::size_t k, const Values& values) {
    Row& row = rows_[k];
    ++calls;
    const auto& nodes = specs_[k].nodes;
    if (std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return node.with(values).size == 0; })) {
      ++stats.capture_failures;
      row.wait = 1 << std::min(row.broken++, 10);
      row.why = EagerReason::kBackoff;
      return false;
    }
    ++stats.captures;
    row.recorded = row.was_recorded = true;
    row.captured = specs_[k].varying ? values : Values{};
    row.paid = 0;
    if (options_.sharing != Sharing::kNever) row.family = family_of(topology(k));
    return true;
  }

  // Families are numbered in the order in which they come up; one that nobody belongs to is over.
  std::uint64_t family_of(const std::string& topology) {
    for (std::size_t k = 0; k < rows_.size(); ++k) {
      if (rows_[k].family != 0 && this->topology(k) == topology) return rows_[k].family;
    }
    return ++last_family_;
  }
  std::size_t executables_of(std::uint64_t family) const {
    return family == 0 ? 0 : number([&](const Row& row) { return row.live && row.family == family; });
  }
  std::size_t spare_of(std::uint64_t family) const {
    const auto found = spare_.find(family);
    return family == 0 || found == spare_.end() ? kNobody : found->second;
  }
  void no_spare(std::size_t k) {
    for (auto& [family, spare] : spare_) spare = spare == k ? kNobody : spare;
  }

  // Whether there is room for so many bytes beside the executables, but for those of some keys.
  bool fits(std::size_t needed, const std::vector<std::size_t>& but = {}) const {
    std::size_t less = 0;
    for (const std::size_t k : but) less += bytes(k);
    return needed <= options_.max_device_bytes &&
           live() - but.size() < static_cast<std::size_t>(options_.max_executables) &&
           live_bytes() - less <= options_.max_device_bytes - needed;
  }

  bool obtain(std::size_t k, const Values& values, bool* sibling) {
    Row& row = rows_[k];
    const auto is_sibling = [&](const Row& other) {
      return other.live && row.family != 0 && other.family == row.family;
    };
    *sibling = true;
    std::size_t lender = spare_of(row.family);
    const bool may_buy = options_.sharing == Sharing::kAuto && fits(bytes(k));  // A new spare one.
    if (lender == kNobody && !may_buy) lender = oldest(is_sibling);
    if (lender != kNobody && !row.pinned) {
      const Cost rent = difference(lender, k).cost;
      const Cost price = costs::buy(specs_[k].nodes.size());
      const bool keeps = row.paid + rent > price && (fits(bytes(k)) || is_used_more_often_than_the_oldest(row));
      if (options_.sharing == Sharing::kAlways || !keeps) {
        const std::size_t spare = spare_of(row.family);
        take(lender, k, values);
        row.paid += rent;
        if (spare == lender || spare == kNobody) spare_[row.family] = k;
        return true;
      }
    }
    std::vector<std::size_t> victims;
    while (!fits(bytes(k), victims)) {
      const std::size_t victim = oldest([&](const Row& other) {
        const auto i = static_cast<std::size_t>(&other - rows_.data());
        return other.live && std::find(victims.begin(), victims.end(), i) == victims.end();
      });
      if (victim == kNobody) return false;
      if (is_sibling(rows_[victim])) {
        take(victim, k, values);
        row.paid = 0;
        return true;
      }
      victims.push_back(victim);
    }
    for (const std::size_t victim : victims) {
      lose_executable(victim);
      ++stats.evictions;
    }
    *sibling = false;
    instantiate(k);
    set(k, values);
    return true;
  }

  void instantiate(std::size_t k) {
    Row& row = rows_[k];
    ++stats.instantiations;
    row.live = true;
    row.paid = 0;
    row.programmed = row.captured;
    if (row.family != 0 && spare_of(row.family) == kNobody && !row.pinned) spare_[row.family] = k;
  }
  void lose_executable(std::size_t k) {
    rows_[k].live = false;
    no_spare(k);
  }

  void take(std::size_t lender, std::size_t k, const Values& values) {
    const Way way = difference(lender, k);
    const Values before = rows_[lender].programmed;
    lose_executable(lender);
    Row& row = rows_[k];
    row.live = true;
    if (way.update) {
      ++stats.updates;
      row.programmed = row.captured;
      set(k, values);
      return;
    }
    for (std::size_t i = 0; i < specs_[k].nodes.size(); ++i) {
      const Node& from = specs_[lender].nodes[i];
      const Node& to = specs_[k].nodes[i];
      const Node now = from.with(before);
      const Node then = to.with(values);
      const bool same = to.has_slot()
                            ? from.has_slot() && now.same_launch(then) && now.grid == then.grid && now.same_values(then)
                            : change(lender, k, i) == Change::kNone;
      stats.patched_nodes += same ? 0 : 1;
    }
    row.programmed = values;
  }

  // How many nodes are patched for new values.
  std::size_t set(std::size_t k, const Values& values) {
    if (!specs_[k].varying) return 0;
    Values& programmed = rows_[k].programmed;
    std::size_t patched = 0;
    for (const Node& node : specs_[k].nodes) patched += node.with(programmed).same_values(node.with(values)) ? 0 : 1;
    programmed = values;
    stats.patched_nodes += patched;
    return patched;
  }

  // Captured against captured; a node that holds slots is set anyway, and one that held them is given back its value.
  Change change(std::size_t a, std::size_t b, std::size_t i) const {
    const Node& from = specs_[a].nodes[i];
    const Node& to = specs_[b].nodes[i];
    const Node x = from.with(rows_[a].captured);
    const Node y = to.with(rows_[b].captured);
    if (to.sets) {
      if (to.has_slot()) return Change::kNone;  // It is set anyway.
      return from.has_slot() || !x.same_values(y) ? Change::kOther : Change::kNone;
    }
    if (!x.same_launch(y)) return Change::kLaunch;
    if (x.grid != y.grid) return Change::kGrid;
    if (to.has_slot()) return Change::kNone;
    return from.has_slot() || !x.same_values(y) ? Change::kArguments : Change::kNone;
  }

  Way difference(std::size_t a, std::size_t b) const {
    const std::size_t n = specs_[b].nodes.size();
    Cost update = n * costs::kUpdateReads, patches = 0;
    bool patchable = true;
    const auto cost = [](const Cost(&of)[kChangeCount], Change how) { return of[static_cast<std::size_t>(how)]; };
    for (std::size_t i = 0; i < n; ++i) {
      const auto how = change(a, b, i);
      const Cost value = specs_[b].nodes[i].has_slot() ? cost(costs::kPatch, Change::kArguments) : 0;
      update += cost(costs::kUpdate, how) + value;
      patches += how == Change::kNone ? value : cost(costs::kPatch, how);
      patchable = patchable && how != Change::kOther;
    }
    const bool by_update = !patchable || update < patches;
    return {by_update, costs::kTakeOver + (by_update ? update : patches)};
  }

  // The templates of keys that have an executable count, too, and stay.
  void tidy() {
    tidied = true;
    while (number([](const Row& row) { return row.recorded; }) > static_cast<std::size_t>(options_.max_templates)) {
      const std::size_t k = oldest([](const Row& row) { return row.recorded && !row.live; });
      if (k == kNobody) return;
      rows_[k].recorded = false;
      rows_[k].family = 0;
      ++stats.forgotten;
    }
  }

  const Options options_;
  const std::vector<Spec>& specs_;
  std::vector<Row> rows_;
  std::map<std::uint64_t, std::size_t> spare_;  // Of each family: who has the executable that its members pass on.
  std::uint64_t uses_ = 0, last_family_ = 0;
};

// ---- What a cache says ----------------------------------------------------------------------------------------------

// Without times.
std::string text_of(const Stats& stats) {
  std::ostringstream text;
  const auto list = [&](const char* name, const auto& counts) {
    text << name;
    for (const std::uint64_t number : counts) text << ' ' << number;
    text << "; ";
  };
  list("outcomes", stats.outcomes);
  list("eager", stats.eager_reasons);
  list("refused", stats.refused_updates);
  text << "failed " << stats.failed << ", captures " << stats.captures << ", broken " << stats.capture_failures
       << ", instantiations " << stats.instantiations << ", updates " << stats.updates << ", patched "
       << stats.patched_nodes << ", evictions " << stats.evictions << ", forgotten " << stats.forgotten << ", live "
       << stats.live_executables << ", templates " << stats.live_templates << ", families " << stats.families
       << ", bytes " << stats.estimated_device_bytes;
  return text.str();
}

std::string text_of(const std::vector<EntryInfo>& entries) {
  std::ostringstream text;
  for (const EntryInfo& entry : entries) {
    text << entry.last_use_order << ' ' << entry.label << ' ' << entry.key << (entry.live ? " live" : "")
         << (entry.recorded ? " recorded" : "") << (entry.pinned ? " pinned" : "") << " family " << entry.family
         << ", nodes " << entry.nodes << '/' << entry.slot_nodes << ", bytes " << entry.estimated_device_bytes
         << ", outcomes";
    for (const std::uint64_t count : entry.outcomes) text << ' ' << count;
    text << '\n';
  }
  return text.str();
}

std::string text_of(const Options& options) {
  std::ostringstream text;
  text << "max_executables " << options.max_executables << ", max_templates " << options.max_templates
       << ", max_device_bytes " << options.max_device_bytes << ", sharing " << static_cast<int>(options.sharing)
       << ", capture_after " << options.capture_after;
  return text.str();
}

std::string text_of(const Operation& operation, const std::vector<Spec>& specs) {
  const char* const names[] = {"run", "warm", "pin", "unpin", "erase", "clear"};
  std::ostringstream text;
  text << names[operation.kind] << ' ' << specs[operation.which].name << " (" << operation.values[0] << ", "
       << operation.values[1] << ")";
  return text.str();
}

bool same(const Stats& a, const Stats& b) {
  return a.outcomes == b.outcomes && a.eager_reasons == b.eager_reasons && a.refused_updates == b.refused_updates &&
         a.failed == b.failed && a.captures == b.captures && a.capture_failures == b.capture_failures &&
         a.instantiations == b.instantiations && a.updates == b.updates && a.patched_nodes == b.patched_nodes &&
         a.evictions == b.evictions && a.forgotten == b.forgotten && a.live_executables == b.live_executables &&
         a.live_templates == b.live_templates && a.families == b.families &&
         a.estimated_device_bytes == b.estimated_device_bytes;
}

bool same(const std::vector<EntryInfo>& a, const std::vector<EntryInfo>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const EntryInfo& x, const EntryInfo& y) {
    return x.label == y.label && x.key == y.key && x.outcomes == y.outcomes && x.live == y.live &&
           x.recorded == y.recorded && x.pinned == y.pinned && x.family == y.family && x.nodes == y.nodes &&
           x.slot_nodes == y.slot_nodes && x.estimated_device_bytes == y.estimated_device_bytes &&
           x.last_use_order == y.last_use_order;
  });
}

// ---- The cache and the model ----------------------------------------------------------------------------------------

// How often the checked sequences came by what is worth coming by.
struct Coverage {
  std::uint64_t operations = 0;
  std::array<std::uint64_t, kOutcomeCount> outcomes{};
  std::array<std::uint64_t, kEagerReasonCount> eager{};
  std::uint64_t updates = 0, patched = 0, evictions = 0, forgotten = 0, failed = 0;

  void add(const Stats& stats) {
    for (std::size_t i = 0; i < outcomes.size(); ++i) outcomes[i] += stats.outcomes[i];
    for (std::size_t i = 0; i < eager.size(); ++i) eager[i] += stats.eager_reasons[i];
    updates += stats.updates;
    patched += stats.patched_nodes;
    evictions += stats.evictions;
    forgotten += stats.forgotten;
    failed += stats.failed;
  }
};

// One sequence on a cache and on the model. The first difference, or nothing.
class Duel {
 public:
  explicit Duel(std::uint64_t seed, bool verbose)
      : verbose_(verbose),
        sequence_(random_sequence(seed)),
        bench_(sequence_.options),
        model_(sequence_.options, sequence_.specs) {}

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
    coverage->add(bench_.cache.stats());
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
        const absl::Status status = bench_.warm(which, operation.values);
        did_ = status.ToString();
        if (status.ok() != model_.warm(k, operation.values)) return did_;
        break;
      }
      case Operation::kRun: {
        const absl::StatusOr<Outcome> outcome = bench_.run(which, operation.values);
        model_.run(k, operation.values);
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
    const Stats stats = bench_.cache.stats();
    if (!same(stats, model_.stats)) return "stats";
    if (!same(bench_.cache.entries(), model_.entries())) return "entries";
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
    if (ledger.executables > static_cast<std::size_t>(options.max_executables)) return "too many executables exist";
    if (ledger.executables < stats.live_executables) return "executables are missing";
    return "";
  }

  const bool verbose_;
  const Sequence sequence_;
  Bench<> bench_;
  Model model_;
  std::string did_;
};

class PolicyTest : public testing::Test {
 protected:
  PolicyTest() { hostrt::reset(); }
  ~PolicyTest() override {
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    CUDA_OK(cudaGetLastError());
    const hostrt::Ledger left = hostrt::ledger();
    EXPECT_EQ(left.executables + left.graphs + left.captures, 0u);
  }
};

long number_in(const char* variable, long otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtol(text, nullptr, 10);
}

TEST_F(PolicyTest, RandomSequencesGoAsTheRulesSay) {
  const long one = number_in("GRAPHCACHE_POLICY_SEED", -1);
  const long count = one >= 0 ? 1 : number_in("GRAPHCACHE_POLICY_SEQUENCES", 3000);
  Coverage coverage;
  for (long i = 0; i < count && !HasFailure(); ++i) {
    const long seed = one >= 0 ? one : i;
    const std::string wrong = Duel(static_cast<std::uint64_t>(seed), one >= 0).fight(&coverage);
    EXPECT_EQ(wrong, "") << "again by GRAPHCACHE_POLICY_SEED=" << seed;
    const hostrt::Ledger left = hostrt::ledger();
    EXPECT_EQ(left.executables + left.graphs, 0u) << "GRAPHCACHE_POLICY_SEED=" << seed;
  }
  if (one >= 0 || count < 1000 || HasFailure()) return;
  // A check that never comes by a rule does not check it.
  for (const Outcome outcome : {Outcome::kReplayed, Outcome::kPatched, Outcome::kSwitched, Outcome::kRestored,
                                Outcome::kUpdated, Outcome::kInstantiated, Outcome::kEager}) {
    EXPECT_GT(coverage.outcomes[static_cast<std::size_t>(outcome)], 500u) << to_string(outcome);
  }
  for (const EagerReason reason :
       {EagerReason::kBudget, EagerReason::kCaptureAfter, EagerReason::kCaptureFailed, EagerReason::kBackoff}) {
    EXPECT_GT(coverage.eager[static_cast<std::size_t>(reason)], 100u) << to_string(reason);
  }
  for (const std::uint64_t often : {coverage.updates, coverage.patched, coverage.evictions, coverage.forgotten}) {
    EXPECT_GT(often, 1000u);
  }
  EXPECT_GT(coverage.failed, 50u);
  RecordProperty("operations", std::to_string(coverage.operations));
}

// ---- Rent or buy ----------------------------------------------------------------------------------------------------

TEST_F(PolicyTest, RentOrBuyCostsAtMostTwiceTheBetterOfBoth) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    const auto price = static_cast<Cost>(random.between(1, 5'000));
    const int most = random.chance(50) ? static_cast<int>(price) / random.between(1, 40) + 1 : 8'000;
    Cost paid = 0, offered = 0, spent = 0;
    bool bought = false;
    for (int visits = random.between(1, 100); visits > 0 && !bought; --visits) {
      const auto rent = static_cast<Cost>(random.between(1, most));
      offered += rent;
      bought = should_buy(paid, rent, price);
      spent += bought ? price : rent;
      if (!bought) paid += rent;
      ASSERT_LE(paid, price);
      ASSERT_EQ(bought, offered > price);  // Not before always renting has become the dearer.
      ASSERT_LE(spent, 2 * std::min(offered, price));
    }
    ASSERT_TRUE(bought || spent == offered);
  }
  EXPECT_FALSE(should_buy(0, 10, 10));
  EXPECT_FALSE(should_buy(4, 6, 10));
  EXPECT_TRUE(should_buy(5, 6, 10));
  EXPECT_TRUE(should_buy(0, 11, 10));
}

// Keys, with the same difference between any two of a family, so that it is known what each switch costs.
struct Tenants {
  std::vector<Spec> specs;
  std::vector<int> families;
  std::vector<Cost> rents, prices;

  void add_family(Profile profile, int members, std::size_t nodes) {
    const bool one = profile == Profile::kOneValue || profile == Profile::kOneGrid;
    const Change how = profile == Profile::kGrids || profile == Profile::kOneGrid ? Change::kGrid
                       : profile == Profile::kBlocks                              ? Change::kLaunch
                                                                                  : Change::kArguments;
    const std::size_t differ = one ? 1 : nodes;
    const Cost rent = costs::kTakeOver +
                      std::min(nodes * costs::kUpdateReads + differ * costs::kUpdate[static_cast<std::size_t>(how)],
                               differ * costs::kPatch[static_cast<std::size_t>(how)]);
    const int family = families.empty() ? 0 : families.back() + 1;
    Random unused(0);
    for (int member = 0; member < members; ++member) {
      std::vector<Node> mine(nodes);
      vary(mine, profile, member, unused);
      specs.push_back(spec("tenant" + std::to_string(specs.size()), mine));
      families.push_back(family);
      rents.push_back(rent);
      prices.push_back(costs::buy(nodes));
    }
  }
};

struct Bill {
  Cost rents = 0, prices = 0;
};

Options ample(Sharing sharing) {
  Options options;
  options.max_executables = 1000;
  options.sharing = sharing;
  return options;
}

void charge(const Tenants& tenants, std::size_t k, Outcome outcome, Bill* bill) {
  switch (outcome) {
    case Outcome::kReplayed:
      return;
    case Outcome::kSwitched:
    case Outcome::kUpdated:
      bill->rents += tenants.rents[k];
      return;
    case Outcome::kRestored:
    case Outcome::kInstantiated:
      bill->prices += tenants.prices[k];
      return;
    default:
      ADD_FAILURE() << to_string(outcome);
  }
}

std::vector<Bill> bills(const Tenants& tenants, Sharing sharing, const std::vector<std::size_t>& visits) {
  Bench<> bench(ample(sharing));
  std::vector<Bill> bills(tenants.specs.size());
  for (const std::size_t k : visits) {
    const absl::StatusOr<Outcome> outcome = bench.run(tenants.specs[k]);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    if (outcome.ok()) charge(tenants, k, *outcome, &bills[k]);
  }
  return bills;
}

// What a key that always rents pays: for each visit that finds the executable elsewhere.
std::vector<Cost> always_rented(const Tenants& tenants, const std::vector<std::size_t>& visits) {
  std::vector<Cost> paid(tenants.specs.size());
  std::map<int, std::size_t> at;
  for (const std::size_t k : visits) {
    const auto [was, is_first] = at.try_emplace(tenants.families[k], k);
    if (!is_first && was->second != k) paid[k] += tenants.rents[k];
    was->second = k;
  }
  return paid;
}

// The ratio of what was paid to the best in hindsight, where the first executable of each family costs nobody anything.
double expect_at_most_twice_the_best(const Tenants& tenants, const std::vector<std::size_t>& visits) {
  const std::vector<Bill> paid = bills(tenants, Sharing::kAuto, visits);
  const std::vector<Bill> shared = bills(tenants, Sharing::kAlways, visits);
  const std::vector<Cost> rented = always_rented(tenants, visits);
  std::map<int, Cost> first;
  Cost total = 0, best = 0;
  for (std::size_t k = 0; k < paid.size(); ++k) {
    const Cost mine = paid[k].rents + paid[k].prices;
    const Cost better = std::min(rented[k], tenants.prices[k]);
    EXPECT_EQ(shared[k].rents, rented[k]);
    EXPECT_LE(mine, 2 * better + tenants.prices[k]) << k;  // It may be its family's first.
    EXPECT_LE(paid[k].prices, 2 * tenants.prices[k]) << k;
    total += mine;
    best += better;
  }
  for (const std::size_t k : visits) first[tenants.families[k]] = tenants.prices[k];
  Cost prices_of_the_first = 0;
  for (const auto& [family, price] : first) prices_of_the_first += price;
  EXPECT_LE(total, 2 * best + prices_of_the_first);
  return best == 0 ? 1 : static_cast<double>(total - prices_of_the_first) / static_cast<double>(best);
}

constexpr Profile kPairwise[] = {Profile::kGrids, Profile::kBlocks, Profile::kValues, Profile::kOneValue,
                                 Profile::kOneGrid};

TEST_F(PolicyTest, KeysThatTakeTurnsPayAtMostTwiceTheBest) {
  hostrt::set_execution(false);
  for (const Profile profile : kPairwise) {
    for (const std::size_t nodes : {1, 3, 12}) {
      for (const int keys : {2, 3, 8}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(profile) << ' ' << nodes << ' ' << keys);
        Tenants tenants;
        tenants.add_family(profile, keys, nodes);
        std::vector<std::size_t> turns;
        for (int i = 0; i < 160 * keys; ++i) turns.push_back(static_cast<std::size_t>(i % keys));
        expect_at_most_twice_the_best(tenants, turns);
      }
    }
  }
}

// The holder of the family's executable and a newcomer take turns until one of them buys, and does not come again.
TEST_F(PolicyTest, KeysThatStopOnceTheyBoughtPayTwiceTheBestAndNoMore) {
  hostrt::set_execution(false);
  constexpr std::size_t kKeys = 12;
  for (const Profile profile : kPairwise) {
    for (const std::size_t nodes : {1, 3, 12}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(profile) << ' ' << nodes);
      Tenants tenants;
      tenants.add_family(profile, kKeys, nodes);
      std::vector<std::size_t> visits;
      {
        Bench<> bench(ample(Sharing::kAuto));
        const auto buys = [&](std::size_t k) {
          visits.push_back(k);
          const absl::StatusOr<Outcome> outcome = bench.run(tenants.specs[k]);
          EXPECT_TRUE(outcome.ok());
          return outcome.ok() && (*outcome == Outcome::kRestored || *outcome == Outcome::kInstantiated);
        };
        EXPECT_TRUE(buys(0));
        std::size_t holder = 0;
        for (std::size_t newcomer = 1; newcomer < kKeys; ++newcomer) {
          for (int turn = 0;; ++turn) {
            ASSERT_LT(turn, 1000);
            if (buys(newcomer)) break;
            if (buys(holder)) {
              holder = newcomer;
              break;
            }
          }
        }
      }
      const double ratio = expect_at_most_twice_the_best(tenants, visits);
      EXPECT_GT(ratio, 10 * tenants.rents[0] < tenants.prices[0] ? 1.7 : 1.0);
    }
  }
}

TEST_F(PolicyTest, RandomVisitsPayAtMostTwiceTheBest) {
  hostrt::set_execution(false);
  Random random(5);
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    Tenants tenants;
    const int families = random.between(1, 3);
    for (int family = 0; family < families; ++family) {
      tenants.add_family(kPairwise[random.below(5)], random.between(2, 9),
                         static_cast<std::size_t>(3 * family + 1 + random.below(3)));
    }
    const int keys = static_cast<int>(tenants.specs.size());
    std::vector<std::size_t> visits;
    const int kind = round % 3;
    int first = 0, span = keys;
    for (int i = 0; i < 500; ++i) {
      int k = random.below(keys);
      if (kind == 1) {  // Zipf's: the key of rank r with a chance of 1 / r.
        while (random.below(k + 1) != 0) k = random.below(keys);
      } else if (kind == 2) {
        if (i % 40 == 0) first = random.below(keys), span = random.between(1, std::min(keys, 4));
        k = (first + random.below(span)) % keys;
      }
      visits.push_back(static_cast<std::size_t>(k));
    }
    expect_at_most_twice_the_best(tenants, visits);
  }
}

// ---- Determinism ----------------------------------------------------------------------------------------------------

// What the cache did and said, line by line.
template <int kPlace>
std::vector<std::string> trace(const Sequence& sequence, Bench<kPlace>& bench, const std::function<void()>& between) {
  std::vector<std::string> lines;
  for (const Operation& operation : sequence.operations) {
    if (between) between();
    const Spec& which = sequence.specs[operation.which];
    std::string line = text_of(operation, sequence.specs) + ": ";
    switch (operation.kind) {
      case Operation::kPin:
        line += bench.cache.pin(which.key) ? "yes" : "no";
        break;
      case Operation::kUnpin:
        line += bench.cache.unpin(which.key) ? "yes" : "no";
        break;
      case Operation::kErase:
        line += bench.cache.erase(which.key) ? "yes" : "no";
        break;
      case Operation::kClear:
        bench.cache.clear();
        break;
      case Operation::kWarm:
        line += absl::StatusCodeToString(bench.warm(which, operation.values).code());
        break;
      case Operation::kRun: {
        const absl::StatusOr<Outcome> outcome = bench.go(which, operation.values);
        line += outcome.ok() ? to_string(*outcome) : outcome.status().ToString();
      }
    }
    lines.push_back(line + "\n" + text_of(bench.cache.stats()) + "\n" + text_of(bench.cache.entries()));
  }
  return lines;
}

// Another thread that runs a cache of its own as fast as it can. Made and destroyed while nobody captures: its memory
// comes and goes with synchronizations, which break captures of other threads.
class Neighbour {
 public:
  ~Neighbour() {
    stop_ = true;
    thread_.join();
  }

 private:
  void live() {
    for (std::size_t i = 0; !stop_; i = (i + 1) % sequence_.operations.size()) {
      const Operation& operation = sequence_.operations[i];
      EXPECT_TRUE(bench_.run(sequence_.specs[operation.which], operation.values).ok());
      const std::vector<char> memory(1 + i * 100);
      std::this_thread::yield();
    }
  }

  const Sequence sequence_ = random_sequence(4711);
  Bench<2> bench_{sequence_.options};
  std::atomic<bool> stop_{false};
  std::thread thread_{[this] { live(); }};
};

TEST_F(PolicyTest, DecisionsDependOnTheCallsAlone) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Sequence sequence = random_sequence(1'000'000 + seed);
    std::vector<std::string> quiet;
    {
      Bench<0> bench(sequence.options);
      quiet = trace(sequence, bench, nullptr);
    }

    Sequence again = sequence;
    for (Spec& which : again.specs) {
      const Key rebuilt = key(which.name.c_str());
      ASSERT_EQ(rebuilt, which.key);
      which.key = rebuilt;
    }
    Random random(seed);
    std::vector<void*> device_memory;
    std::vector<std::vector<char>> host_memory;
    const auto shift = [&] {
      if (random.chance(60)) return;
      host_memory.emplace_back(static_cast<std::size_t>(random.between(1, 5000)));
      CUDA_OK(cudaMalloc(&device_memory.emplace_back(), static_cast<std::size_t>(random.between(1, 700))));
    };
    std::vector<std::string> disturbed;
    {
      shift();
      const Stream another;
      Bench<1> bench(again.options);
      bench.in_fn = [&] {
        if (random.chance(30)) std::this_thread::sleep_for(std::chrono::microseconds(random.between(1, 60)));
      };
      const Neighbour neighbour;
      disturbed = trace(again, bench, shift);
    }
    for (void* const memory : device_memory) CUDA_OK(cudaFree(memory));
    ASSERT_EQ(quiet.size(), disturbed.size());
    for (std::size_t i = 0; i < quiet.size(); ++i) {
      ASSERT_EQ(quiet[i], disturbed[i]) << "seed " << seed << ", operation " << i;
    }
  }
}

// ---- Rule by rule ---------------------------------------------------------------------------------------------------

std::vector<Spec> family(Profile profile, int members, std::size_t nodes) {
  Tenants tenants;
  tenants.add_family(profile, members, nodes);
  return tenants.specs;
}
// Of a topology that no other number of nodes has.
Spec lone(std::size_t nodes) { return spec("lone" + std::to_string(nodes), std::vector<Node>(nodes)); }

EntryInfo entry_of(const Bench<>& bench, const Spec& which) {
  for (const EntryInfo& entry : bench.cache.entries()) {
    if (entry.label == which.name) return entry;
  }
  ADD_FAILURE() << "no entry of " << which.name;
  return {};
}

Options at_most(int executables, Sharing sharing = Sharing::kAuto) {
  Options options;
  options.max_executables = executables;
  options.sharing = sharing;
  return options;
}

TEST_F(PolicyTest, KeyRentsUntilTheRentWouldPassThePriceThenKeepsWhatItBought) {
  Tenants tenants;
  tenants.add_family(Profile::kValues, 3, 6);
  const std::vector<Spec>& f = tenants.specs;
  Bench<> bench(at_most(8, Sharing::kAuto));
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  EXPECT_RUN(kUpdated, bench.go(f[1]));
  const auto rents = static_cast<int>(tenants.prices[0] / tenants.rents[0]);
  ASSERT_GT(rents, 5);
  for (int i = 1; i < rents; ++i) {
    EXPECT_RUN(kSwitched, bench.go(f[0]));
    EXPECT_RUN(kSwitched, bench.go(f[1]));
  }
  EXPECT_EQ(bench.cache.stats().live_executables, 1u);
  EXPECT_RUN(kSwitched, bench.go(f[0]));  // The first one's price was not its rent.
  EXPECT_RUN(kRestored, bench.go(f[1]));
  EXPECT_RUN(kUpdated, bench.go(f[2]));  // From the one who rented last, not from the one who bought.
  EXPECT_RUN(kReplayed, bench.go(f[1]));
  EXPECT_FALSE(entry_of(bench, f[0]).live);
  EXPECT_EQ(bench.cache.stats().instantiations, 2u);
  EXPECT_EQ(bench.calls, 3);
}

TEST_F(PolicyTest, PinnedExecutableIsNotTakenBySiblings) {
  const std::vector<Spec> f = family(Profile::kValues, 3, 2);
  Bench<> bench;
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  EXPECT_TRUE(bench.cache.pin(f[0].key));
  EXPECT_RUN(kInstantiated, bench.go(f[1]));
  EXPECT_RUN(kUpdated, bench.go(f[2]));
  EXPECT_FALSE(entry_of(bench, f[1]).live);
  EXPECT_RUN(kReplayed, bench.go(f[0]));
  EXPECT_TRUE(bench.cache.unpin(f[0].key));
  EXPECT_FALSE(entry_of(bench, f[0]).pinned);
}

TEST_F(PolicyTest, PinnedExecutableIsNotEvicted) {
  Bench<> bench(at_most(2));
  EXPECT_RUN(kInstantiated, bench.go(lone(1)));
  EXPECT_RUN(kInstantiated, bench.go(lone(2)));
  bench.cache.pin(lone(1).key);
  EXPECT_RUN(kInstantiated, bench.go(lone(3)));
  EXPECT_FALSE(entry_of(bench, lone(2)).live);
  EXPECT_RUN(kReplayed, bench.go(lone(1)));
  EXPECT_RUN(kRestored, bench.go(lone(2)));
  bench.cache.unpin(lone(1).key);
  EXPECT_RUN(kRestored, bench.go(lone(3)));
  EXPECT_FALSE(entry_of(bench, lone(1)).live);
  EXPECT_EQ(bench.cache.stats().evictions, 3u);
}

TEST_F(PolicyTest, KeysRunDirectlyAndKeepTheirTemplatesWhileAllIsPinned) {
  const std::vector<Spec> f = family(Profile::kValues, 2, 2);
  for (const auto& [other, back] : {std::pair(lone(3), Outcome::kRestored), std::pair(f[1], Outcome::kSwitched)}) {
    Bench<> bench(at_most(1));
    ASSERT_TRUE(bench.go(other).ok());
    ASSERT_TRUE(bench.go(f[0]).ok());
    bench.cache.pin(f[0].key);
    bench.calls = 0;
    EXPECT_RUN(kEager, bench.go(other));
    EXPECT_RUN(kEager, bench.go(other));
    EXPECT_RUN(kEager, bench.go(lone(4)));  // Not captured, since it could not be instantiated.
    EXPECT_EQ(bench.calls, 3);
    EXPECT_EQ(bench.cache.stats().eager(EagerReason::kBudget), 3u);
    EXPECT_EQ(bench.cache.stats().captures, 2u);
    EXPECT_TRUE(bench.cache.contains(other.key));
    EXPECT_FALSE(bench.cache.contains(lone(4).key));
    EXPECT_RUN(kReplayed, bench.go(f[0]));
    bench.cache.unpin(f[0].key);
    EXPECT_TRUE(did(back, bench.go(other)));
    EXPECT_EQ(bench.calls, 3);
  }
}

TEST_F(PolicyTest, PinnedKeyDoesNotRent) {
  const std::vector<Spec> f = family(Profile::kValues, 3, 2);
  Bench<> bench;
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  EXPECT_RUN(kUpdated, bench.go(f[1]));
  bench.cache.pin(f[0].key);
  EXPECT_RUN(kRestored, bench.go(f[0]));  // An executable of its own at once,
  EXPECT_RUN(kReplayed, bench.go(f[1]));
  EXPECT_RUN(kUpdated, bench.go(f[2]));  // which is not for rent.
  EXPECT_RUN(kReplayed, bench.go(f[0]));
  bench.cache.pin(f[2].key);  // What it has rented it keeps.
  EXPECT_RUN(kRestored, bench.go(f[1]));
  EXPECT_RUN(kReplayed, bench.go(f[2]));
  EXPECT_EQ(bench.cache.stats().live_executables, 3u);
}

TEST_F(PolicyTest, PinnedKeyTakesTheExecutableThatWouldHaveToLeave) {
  const std::vector<Spec> f = family(Profile::kValues, 2, 2);
  Bench<> bench(at_most(1));
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  EXPECT_RUN(kUpdated, bench.go(f[1]));
  bench.cache.pin(f[0].key);
  EXPECT_RUN(kSwitched, bench.go(f[0]));
  EXPECT_RUN(kEager, bench.go(f[1]));
  EXPECT_EQ(bench.cache.stats().instantiations, 1u);
  EXPECT_EQ(bench.cache.stats().evictions, 0u);
}

// ---- Warming --------------------------------------------------------------------------------------------------------

TEST_F(PolicyTest, AnyNumberOfKeysIsWarmedAndNoneLeavesForThem) {
  std::vector<Spec> strangers;
  for (std::size_t nodes = 1; nodes <= 10; ++nodes) strangers.push_back(lone(nodes));
  for (const std::vector<Spec>& keys : {strangers, family(Profile::kGrids, 10, 2)}) {
    Bench<> bench(at_most(3));
    hostrt::reset_calls();
    for (const Spec& which : keys) EXPECT_TRUE(bench.warm(which).ok());
    for (const Spec& which : keys) EXPECT_TRUE(bench.warm(which).ok());
    EXPECT_EQ(bench.calls, 10);
    EXPECT_EQ(hostrt::kernels_run(), 0u);
    EXPECT_EQ(hostrt::calls("cudaGraphLaunch"), 0u);
    EXPECT_EQ(hostrt::calls("cudaGraphUpload"), 3u);
    const Stats stats = bench.cache.stats();
    EXPECT_EQ(stats.captures, 10u);
    EXPECT_EQ(stats.instantiations, 3u);
    EXPECT_EQ(stats.live_templates, 10u);
    EXPECT_EQ(stats.runs() + stats.evictions + stats.updates, 0u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_RUN(kReplayed, bench.go(keys[i]));
    for (const Spec& which : keys) EXPECT_TRUE(bench.go(which).ok());
    EXPECT_EQ(bench.calls, 10);
    EXPECT_EQ(bench.cache.stats().hits(), 13u);
  }
}

TEST_F(PolicyTest, WarmNeedsNotTheValuesOfTheRun) {
  Node node;
  node.value_slot = 0;
  const Spec which = spec("varying", {node, Node()});
  Bench<> bench;
  EXPECT_TRUE(bench.warm(which, {1, 0}).ok());
  EXPECT_RUN(kPatched, bench.go(which, {2, 0}));
  EXPECT_RUN(kReplayed, bench.go(which, {2, 0}));
  EXPECT_EQ(bench.calls, 1);
}

TEST_F(PolicyTest, WarmReturnsWhatFailedAndLeavesNothingUndone) {
  Bench<> bench;
  const Key k = key("k");
  const auto work = [&](cudaStream_t on) { return launch(mix<0>, 1, 1, on, bench.state.get(), 1); };
  EXPECT_FAILURE(kDataLoss, bench.cache.warm(k, bench.stream, [&](cudaStream_t on) {
    (void)work(on);
    return absl::DataLossError("lost");
  }));
  EXPECT_FALSE(bench.cache
                   .warm(k, bench.stream,
                         [&](cudaStream_t on) {
                           (void)work(on);
                           return cudaErrorInvalidConfiguration;
                         })
                   .ok());
  EXPECT_THROW((void)bench.cache.warm(k, bench.stream,
                                      [&](cudaStream_t on) { (void)work(on), throw std::runtime_error("thrown"); }),
               std::runtime_error);
  const absl::Status broken = bench.cache.warm(k, bench.stream, [&](cudaStream_t on) {
    (void)work(on);
    return cudaStreamSynchronize(on);
  });
  EXPECT_FALSE(broken.ok());
  EXPECT_TRUE(mentions(broken, "k")) << broken;
  EXPECT_FAILURE(kInvalidArgument, bench.cache.warm(k, cudaStreamLegacy, work));
  EXPECT_FAILURE(kInvalidArgument, bench.cache.warm(k, nullptr, work));
  EXPECT_FAILURE(kInvalidArgument, bench.cache.warm(k, bench.stream, std::function<void(cudaStream_t)>()));
  CUDA_OK(cudaStreamBeginCapture(bench.stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_FAILURE(kFailedPrecondition, bench.cache.warm(k, bench.stream, work));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(bench.stream, &graph));
  CUDA_OK(cudaGraphDestroy(graph));

  EXPECT_FALSE(bench.cache.contains(k));
  EXPECT_EQ(hostrt::kernels_run(), 0u);
  EXPECT_FALSE(is_capturing(bench.stream));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(hostrt::ledger().graphs, 0u);
  EXPECT_TRUE(bench.cache.warm(k, bench.stream, work).ok());
  EXPECT_RUN(kReplayed, bench.cache.run(k, bench.stream, work));
  EXPECT_EQ(hostrt::kernels_run(), 1u);
}

TEST_F(PolicyTest, WarmInsideARunIsRefusedAndTheRunGoesOn) {
  Bench<> bench;
  const Stream other;
  const auto nothing = [](cudaStream_t) {};
  std::vector<absl::Status> inside;
  bench.in_fn = [&] {
    inside = {bench.cache.warm(key("inner"), bench.stream, nothing), bench.cache.warm(key("inner"), other, nothing)};
  };
  EXPECT_RUN(kInstantiated, bench.go(lone(1)));
  ASSERT_EQ(inside.size(), 2u);
  for (const absl::Status& status : inside) EXPECT_FAILURE(kFailedPrecondition, status);
  EXPECT_FALSE(bench.cache.contains(key("inner")));
  EXPECT_RUN(kReplayed, bench.go(lone(1)));
}

TEST_F(PolicyTest, WarmThatCannotInstantiateOrUploadKeepsTheTemplate) {
  for (const char* const call : {"cudaGraphInstantiate", "cudaGraphUpload"}) {
    Bench<> bench;
    hostrt::fail_call(call, 1, cudaErrorInvalidValue);
    const absl::Status status = bench.warm(lone(2));
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(mentions(status, call)) << status;
    EXPECT_TRUE(bench.cache.contains(lone(2).key));
    EXPECT_EQ(bench.cache.stats().live_executables, 0u);
    EXPECT_RUN(kRestored, bench.go(lone(2)));
    EXPECT_EQ(bench.calls, 1);
    EXPECT_EQ(hostrt::ledger().executables, 1u);
  }
  hostrt::clear_failures();
}

TEST_F(PolicyTest, WarmOfACacheThatCapturesNothingDoesNothing) {
  Bench<> bench(at_most(0));
  EXPECT_TRUE(bench.warm(lone(1)).ok());
  EXPECT_EQ(bench.calls, 0);
  EXPECT_RUN(kEager, bench.go(lone(1)));
  Bench<> wrong(at_most(-1));
  EXPECT_FAILURE(kInvalidArgument, wrong.warm(lone(1)));
}

// ---- Budgets and sharing --------------------------------------------------------------------------------------------

TEST_F(PolicyTest, KeyTooBigForTheBudgetRunsDirectlyAndIsCapturedOnce) {
  Options options;
  options.max_device_bytes = 2 * estimated_device_bytes(3);
  Bench<> bench(options);
  const Spec big = lone(60);
  ASSERT_GT(estimated_device_bytes(60), options.max_device_bytes);
  ASSERT_TRUE(bench.go(lone(3)).ok());
  bench.calls = 0;
  for (int i = 0; i < 4; ++i) EXPECT_RUN(kEager, bench.go(big));
  EXPECT_EQ(bench.calls, 5);
  const Stats stats = bench.cache.stats();
  EXPECT_EQ(stats.captures, 2u);
  EXPECT_EQ(stats.eager(EagerReason::kBudget), 4u);
  EXPECT_EQ(stats.evictions, 0u);
  EXPECT_TRUE(bench.warm(big).ok());
  EXPECT_FALSE(entry_of(bench, big).live);
  EXPECT_RUN(kReplayed, bench.go(lone(3)));
}

TEST_F(PolicyTest, TemplateUsedLongestAgoIsForgotten) {
  Options options = at_most(1);
  options.max_templates = 3;
  Bench<> bench(options);
  for (const std::size_t nodes : {1, 2, 3}) EXPECT_RUN(kInstantiated, bench.go(lone(nodes)));
  EXPECT_RUN(kRestored, bench.go(lone(1)));
  EXPECT_RUN(kInstantiated, bench.go(lone(4)));
  EXPECT_EQ(bench.cache.stats().forgotten, 1u);
  EXPECT_EQ(bench.cache.stats().live_templates, 3u);
  EXPECT_FALSE(bench.cache.contains(lone(2).key));
  EXPECT_FALSE(entry_of(bench, lone(2)).recorded);
  bench.cache.pin(lone(3).key);
  EXPECT_RUN(kInstantiated, bench.go(lone(2)));
  EXPECT_TRUE(bench.cache.contains(lone(3).key));
  EXPECT_FALSE(bench.cache.contains(lone(1).key));
  EXPECT_RUN(kRestored, bench.go(lone(4)));
  EXPECT_EQ(bench.calls, 5);
}

TEST_F(PolicyTest, WithoutTemplatesAKeyThatLostItsExecutableIsCapturedAgain) {
  Options options = at_most(1);
  options.max_templates = 0;
  Bench<> bench(options);
  for (int i = 0; i < 6; ++i) EXPECT_RUN(kInstantiated, bench.go(lone(1 + static_cast<std::size_t>(i) % 2)));
  EXPECT_RUN(kReplayed, bench.go(lone(2)));
  EXPECT_EQ(bench.cache.stats().live_templates, 1u);
  EXPECT_EQ(hostrt::ledger().graphs, 1u);
}

TEST_F(PolicyTest, AlwaysSharingFamilyHasOneExecutable) {
  const std::vector<Spec> f = family(Profile::kGrids, 5, 3);
  Bench<> bench(at_most(64, Sharing::kAlways));
  for (const Spec& which : f) EXPECT_TRUE(bench.warm(which).ok());
  EXPECT_EQ(bench.cache.stats().instantiations, 1u);
  Random random(3);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(bench.go(f[static_cast<std::size_t>(random.below(5))]).ok());
  const Stats stats = bench.cache.stats();
  EXPECT_EQ(stats.instantiations, 1u);
  EXPECT_EQ(stats.live_executables, 1u);
  EXPECT_EQ(stats.families, 1u);
  EXPECT_EQ(stats.outcome(Outcome::kSwitched) + stats.outcome(Outcome::kReplayed), 200u);
  EXPECT_RUN(kInstantiated, bench.go(lone(1)));
  EXPECT_EQ(bench.cache.stats().families, 2u);
}

TEST_F(PolicyTest, NeverSharingNeverComparesNorUpdates) {
  const std::vector<Spec> f = family(Profile::kValues, 3, 3);
  Bench<> bench(at_most(2, Sharing::kNever));
  hostrt::reset_calls();
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(did(i < 3 ? Outcome::kInstantiated : Outcome::kRestored, bench.go(f[static_cast<std::size_t>(i % 3)])));
  }
  EXPECT_EQ(hostrt::calls("cudaGraphExecUpdate"), 0u);
  EXPECT_EQ(hostrt::calls("cudaGraphExecKernelNodeSetParams"), 0u);
  EXPECT_EQ(hostrt::calls("cudaGraphKernelNodeGetParams"), 0u);
  EXPECT_EQ(bench.cache.stats().families, 0u);
  EXPECT_EQ(bench.cache.stats().evictions, 10u);
  EXPECT_EQ(entry_of(bench, f[0]).family, 0u);
}

// ---- Refused updates ------------------------------------------------------------------------------------------------

TEST_F(PolicyTest, PairWhoseUpdateWasRefusedIsNotTriedAgain) {
  const std::vector<Spec> f = family(Profile::kGrids, 3, 2);
  Bench<> bench(at_most(1));
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  hostrt::reset_calls();
  hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
  EXPECT_RUN(kInstantiated, bench.go(f[1]));
  EXPECT_EQ(hostrt::calls("cudaGraphExecUpdate"), 1u);
  EXPECT_EQ(bench.cache.stats().refused(UpdateRefusal::kNotSupported), 1u);
  EXPECT_EQ(bench.cache.stats().families, 2u);
  EXPECT_NE(entry_of(bench, f[0]).family, entry_of(bench, f[1]).family);
  for (int i = 0; i < 4; ++i) {
    EXPECT_RUN(kRestored, bench.go(f[0]));
    EXPECT_RUN(kRestored, bench.go(f[1]));
  }
  EXPECT_EQ(hostrt::calls("cudaGraphExecUpdate"), 1u);
  EXPECT_EQ(bench.cache.stats().updates, 0u);

  // A third one tries the families one after the other.
  EXPECT_RUN(kRestored, bench.go(f[0]));
  hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
  EXPECT_RUN(kInstantiated, bench.go(f[2]));
  EXPECT_EQ(entry_of(bench, f[2]).family, entry_of(bench, f[1]).family);
  EXPECT_RUN(kSwitched, bench.go(f[1]));
  EXPECT_EQ(bench.cache.stats().refused(UpdateRefusal::kNotSupported), 2u);
}

TEST_F(PolicyTest, ExecutableWhoseUpdateWasRefusedStaysWhatItWas) {
  std::vector<Node> nodes(8);
  nodes[0].value_slot = 0;
  const Spec a = spec("a", nodes);
  for (Node& node : nodes) node.grid = 2;
  const Spec b = spec("b", nodes);
  Bench<> bench;
  EXPECT_RUN(kInstantiated, bench.go(a, {5, 0}));
  EXPECT_RUN(kPatched, bench.go(a, {6, 0}));
  hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
  EXPECT_RUN(kInstantiated, bench.go(b, {5, 0}));
  hostrt::reset_calls();
  EXPECT_RUN(kReplayed, bench.go(a, {6, 0}));
  EXPECT_RUN(kReplayed, bench.go(b, {5, 0}));
  EXPECT_EQ(hostrt::calls(), 2u);
  EXPECT_RUN(kPatched, bench.go(a, {7, 0}));
  EXPECT_RUN(kPatched, bench.go(b, {7, 0}));
}

// The first patch, or a later one, fails, and so does the update that would make it good.
TEST_F(PolicyTest, ExecutableThatWasPatchedHalfwayIsMadeWhatItWas) {
  for (const int nth : {1, 2}) {
    std::vector<Node> nodes(12);
    nodes[3].value_slot = 0;
    const Spec a = spec("a", nodes);
    nodes[5].value = nodes[7].value = 1;
    const Spec b = spec("b", nodes);
    Bench<> bench;
    EXPECT_RUN(kInstantiated, bench.go(a, {5, 0}));
    EXPECT_RUN(kPatched, bench.go(a, {6, 0}));
    hostrt::reset_calls();
    hostrt::fail_call("cudaGraphExecKernelNodeSetParams", nth, cudaErrorInvalidValue);
    hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
    EXPECT_RUN(kInstantiated, bench.go(b, {5, 0}));
    EXPECT_EQ(hostrt::calls("cudaGraphExecUpdate"), 2u);
    EXPECT_EQ(bench.cache.stats().refused(UpdateRefusal::kNotSupported), 1u);
    EXPECT_NE(entry_of(bench, a).family, entry_of(bench, b).family);
    EXPECT_RUN(kReplayed, bench.go(a, {6, 0}));
    EXPECT_RUN(kReplayed, bench.go(b, {5, 0}));
    EXPECT_RUN(kPatched, bench.go(a, {8, 0}));
    EXPECT_RUN(kReplayed, bench.go(b, {5, 0}));
  }
}

TEST_F(PolicyTest, PatchThatFailsIsMadeGoodByAnUpdate) {
  const std::vector<Spec> f = family(Profile::kOneValue, 2, 12);
  Bench<> bench;
  EXPECT_RUN(kInstantiated, bench.go(f[0]));
  hostrt::fail_call("cudaGraphExecKernelNodeSetParams", 1, cudaErrorInvalidValue);
  EXPECT_RUN(kUpdated, bench.go(f[1]));
  EXPECT_EQ(bench.cache.stats().updates, 1u);
  EXPECT_RUN(kSwitched, bench.go(f[0]));
  EXPECT_EQ(bench.cache.stats().updates, 1u);
  EXPECT_EQ(bench.cache.stats().live_executables, 1u);
}

}  // namespace
}  // namespace graphcache::test
