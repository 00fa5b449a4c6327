// Random programs with values() at random places, on either runtime: each run through the cache is made again directly
// on other memory, and the memories are compared after each. 0 differences are allowed, whatever the values do.
//
// A world is made from a seed: the options of its cache, the types of its values, and some keys, whose programs pass
// values on as they are, converted, or, in some worlds, as something derived from them. A derived word changes whenever
// its value does, and never equals another value, so that the cache can notice it.
//
//   GRAPHCACHE_VALUES_SEED=n     that world alone, as a failure says; or, with seconds, the first one
//   GRAPHCACHE_VALUES_SECONDS=n  worlds for so many seconds
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <any>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "seeds.h"
#include "size.h"
#include "values_random_calls.h"

namespace graphcache::test::values_random {
namespace {

// ---- Worlds ----

// What the tests of a process use one after the other.
struct Bench {
  Memory cached, direct;
  Stream streams[2], forked;
  DeviceBuffer<unsigned> first_wrong{1, ~0u};
};

struct Tally {
  std::uint64_t worlds = 0, runs = 0, patched = 0, captures = 0, value_captures = 0;
  std::uint64_t later_runs = 0, later_hits = 0, later_patched = 0;  // In the calm worlds, behind their first quarter.
};

class World {
 public:
  enum class Kind {
    kAny,
    kExact,  // One key, whose values can all be found.
  };
  World(std::uint64_t seed, Bench& bench, Kind kind);

  // Makes the runs. Returns what is wrong, or an empty text.
  std::string run(Tally* tally);
  // Makes some runs in each of which all values change. Returns what is wrong.
  std::string learn();

  // Whether values are mostly found.
  bool teaches() const { return is_calm_ && !style_.derives && options_.max_executables >= 4; }

 private:
  struct OneKey {
    Key key;
    std::vector<Chosen> values;
    std::deque<std::vector<Chosen>> former;
    std::unique_ptr<Work> work;
    bool takes_recorder;
    std::any step;
  };

  Options random_options();
  void add_key();
  void change(OneKey* key);
  void redraw(OneKey* key, std::size_t value);
  void make_special(Chosen* value, const Variable& variable);
  std::vector<Passed> resolve(const std::vector<Chosen>& values, const Memory& memory) const;
  absl::Status run_cached(OneKey* key);
  absl::Status run_both(OneKey* key, unsigned number);
  void disturb(OneKey* key);
  std::vector<int> random_moves(const OneKey& key);
  std::string difference();

  Random random_;
  Bench& bench_;
  bool is_calm_ = false;
  Style style_;
  const Signature* signature_ = nullptr;
  std::vector<Variable> variables_;
  Options options_;
  std::optional<Cache> cache_;
  std::vector<OneKey> keys_;
  std::uint64_t structure_ = 0;
  int stream_ = 0;
};

World::World(std::uint64_t seed, Bench& bench, Kind kind) : random_(seed), bench_(bench) {
  style_.has_noise = random_.one_in(3);
  style_.forks = random_.one_in(3);
  signature_ = &kSignatures[random_.below(static_cast<int>(std::size(kSignatures)))];
  for (const Type type : signature_->types) {
    variables_.push_back({type, random_.one_in(2) ? 0 : random_.below(style_.forks ? kPools : kPools / 2)});
  }
  int keys = 1;
  is_calm_ = kind == Kind::kExact || random_.one_in(2);
  if (kind == Kind::kAny) {
    style_.derives = random_.one_in(3);
    style_.decides = random_.one_in(3);
    style_.areas = is_calm_ ? 1 + random_.below(2) : 1 + random_.below(kAreas);
    options_ = random_options();
    // To verify mode, what is another one in each call of `fn` is a mistake.
    style_.has_noise = style_.has_noise && options_.verify_every == 0;
    keys += random_.below(5);
  }
  cache_.emplace(options_);
  mechanisms_of_new_caches = {};
  while (keys-- > 0) add_key();
  for (const Memory* memory : {&bench_.cached, &bench_.direct}) {
    CUDA_OK(launch(fill_areas, 1, 256, bench_.streams[stream_], memory->areas(kAreas), 1234u));
  }
}

Options World::random_options() {
  Options options;
  const Sharing sharings[] = {Sharing::kAuto, Sharing::kNever, Sharing::kUpdates, Sharing::kUpdatesAcross,
                              Sharing::kTable};
  const Patching patchings[] = {Patching::kAuto, Patching::kPerNode, Patching::kDeviceUpdated};
  force(&options, sharings[random_.below(5)]);
  force(patchings[random_.below(3)]);
  if (random_.one_in(2)) options.max_executables = 1 + random_.below(6);
  if (random_.one_in(3)) options.max_templates = random_.below(6);
  if (random_.one_in(4)) options.verify_every = 1;
  if (random_.one_in(8)) options.capture_after = 1;
  return options;
}

void World::add_key() {
  OneKey key{graphcache::key("random", keys_.size()),
             std::vector<Chosen>(variables_.size()),
             {},
             nullptr,
             random_.one_in(2),
             {}};
  for (std::size_t i = 0; i < variables_.size(); ++i) redraw(&key, i);
  if (keys_.empty() || random_.one_in(2)) structure_ = random_.word();  // Otherwise it may be a sibling.
  key.work.reset(
      new Work{Program(style_, variables_, key.values, structure_, random_.word()), &bench_.cached, bench_.forked});
  keys_.push_back(std::move(key));
}

// A new value of the usual kind. In a calm world it is no other value's address.
void World::redraw(OneKey* key, std::size_t value) {
  const Variable& variable = variables_[value];
  Chosen& chosen = key->values[value];
  if (variable.is_number()) {
    // Where a word is 0 before them, 2 and -2 could be of several types.
    const bool is_two = random_.one_in(4);
    chosen.number = !is_two ? random_number(random_, variable.type) : random_.one_in(2) ? 2 : -2;
    return;
  }
  const auto is_taken = [&] {
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (i == value || variables_[i].is_number() || variables_[i].pool != variable.pool) continue;
      if (key->values[i].place == chosen.place) return true;
    }
    return false;
  };
  for (int i = 0; i == 0 || (i < 20 && is_calm_ && is_taken()); ++i) chosen.place = random_place(random_, style_.areas);
}

// Another identity, or NaN.
void World::make_special(Chosen* value, const Variable& variable) {
  if (variable.is_number()) {
    const double numbers[] = {0.0, -0.0, 1.0, std::numeric_limits<double>::quiet_NaN()};
    value->number = numbers[random_.below(4)];
  } else if (random_.one_in(2)) {
    value->place = Place();
  } else {
    value->place.is_shifted = !value->place.is_shifted;
  }
}

void World::change(OneKey* key) {
  key->former.push_back(key->values);
  if (key->former.size() > 4) key->former.pop_front();
  const auto one = static_cast<std::size_t>(random_.below(static_cast<int>(variables_.size())));
  const auto other = static_cast<std::size_t>(random_.below(static_cast<int>(variables_.size())));
  const Variable &a = variables_[one], &b = variables_[other];
  const bool are_alike = a.is_number() ? b.is_number() : !b.is_number() && a.pool == b.pool;
  switch (random_.below(is_calm_ ? 12 : 16)) {
    case 0:
    case 1:
      return;
    case 2:
    case 3:
    case 4:
      return redraw(key, one);
    case 5:
    case 6:
    case 7:
      for (std::size_t i = 0; i < variables_.size(); ++i) redraw(key, i);
      return;
    case 8:
    case 9:  // As the in and out of each step are swapped.
      if (are_alike && (!a.is_number() || a.type == b.type)) std::swap(key->values[one], key->values[other]);
      return;
    case 10:
      key->values = key->former[static_cast<std::size_t>(random_.below(static_cast<int>(key->former.size())))];
      return;
    case 11:  // All pointers move by the same distance.
      for (Chosen& value : key->values) {
        if (value.place.area == kDevice) value.place.block = (value.place.block + 1) % kBlocks[kDevice];
      }
      return;
    case 12:
      if (are_alike && !a.is_number()) key->values[one].place = key->values[other].place;
      return;
    default:
      return make_special(&key->values[one], a);
  }
}

std::vector<Passed> World::resolve(const std::vector<Chosen>& values, const Memory& memory) const {
  std::vector<Passed> all(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    all[i].number = values[i].number;
    if (!variables_[i].is_number()) all[i].pointer = memory.at(variables_[i].pool, values[i].place);
  }
  return signature_->pass(all);
}

absl::Status World::run_cached(OneKey* key) {
  const std::vector<Passed> values = resolve(key->values, bench_.cached);
  const Way way = random_.one_in(40) ? Way::kWarm : random_.one_in(3) ? Way::kStep : Way::kRun;
  const bool may_fail = !is_calm_ && options_.verify_every == 0 && way != Way::kWarm;
  key->work->fails_under_capture = may_fail && random_.one_in(100);
  const Request request{&*cache_, key->key,  bench_.streams[stream_], key->work.get(), values, key->takes_recorder,
                        way,      &key->step};
  absl::StatusOr<Outcome> outcome;
  if (random_.one_in(200)) {
    std::thread([&] { outcome = signature_->make(request); }).join();
  } else {
    outcome = signature_->make(request);
  }
  key->work->fails_under_capture = false;
  return outcome.status();
}

absl::Status World::run_both(OneKey* key, unsigned number) {
  if (random_.one_in(20)) {
    CUDA_OK(cudaStreamSynchronize(bench_.streams[stream_]));
    stream_ = 1 - stream_;
  }
  const cudaStream_t stream = bench_.streams[stream_];
  // Verify mode compares host memory, to which earlier work must not write meanwhile.
  if (options_.verify_every != 0) {
    CUDA_OK(cudaStreamSynchronize(stream));
  }
  if (absl::Status status = run_cached(key); !status.ok()) return status;
  CUDA_OK(key->work->program.enqueue(stream, bench_.forked, bench_.direct, resolve(key->values, bench_.direct)));
  CUDA_OK(launch(compare_areas, 1, 256, stream, bench_.cached.areas(style_.areas), bench_.direct.areas(style_.areas),
                 number, bench_.first_wrong.get()));
  return absl::OkStatus();
}

// Now and then a key is forgotten or pinned.
void World::disturb(OneKey* key) {
  switch (random_.below(8)) {
    case 0:
      cache_->erase(key->key);
      break;
    case 1:
      cache_->erase_if([&](const Key& one) { return one.hash() % 2 == 0; });
      break;
    case 2:
      cache_->clear();
      break;
    case 3:
    case 4:
      cache_->pin(key->key);
      break;
    default:
      for (const OneKey& one : keys_) cache_->unpin(one.key);
  }
}

std::string World::difference() {
  const unsigned first = bench_.first_wrong.first();
  bench_.first_wrong.write({~0u});
  return first == ~0u ? "" : "run " + std::to_string(first) + ": memory differs from that of direct runs";
}

std::string World::run(Tally* tally) {
  const int runs = by_size(100, 200, 400);
  std::string fault;
  Stats early;
  for (int i = 0; i < runs && fault.empty(); ++i) {
    OneKey& key = keys_[static_cast<std::size_t>(random_.below(static_cast<int>(keys_.size())))];
    if (i != 0) change(&key);
    if (random_.one_in(is_calm_ ? 400 : 50)) disturb(&key);
    if (const absl::Status status = run_both(&key, static_cast<unsigned>(i)); !status.ok()) {
      fault = "run " + std::to_string(i) + ": " + status.ToString();
    }
    if (i == runs / 4) early = cache_->stats();
    if (i % 64 == 63 && fault.empty()) fault = difference();
  }
  if (fault.empty()) fault = difference();
  const Stats stats = cache_->stats();
  if (fault.empty() && stats.stale != 0) {
    fault = "verify mode has findings";
    for (const EntryInfo& entry : cache_->entries()) {
      for (const Counted& found : entry.stale) fault += "\n  " + to_string(found);
    }
  }
  ++tally->worlds;
  tally->runs += stats.runs();
  tally->patched += stats.outcome(Outcome::kPatched);
  tally->captures += stats.captures;
  tally->value_captures += stats.value_captures;
  if (teaches()) {
    const Stats later = stats - early;
    tally->later_runs += later.runs();
    tally->later_hits += later.hits();
    tally->later_patched += later.outcome(Outcome::kPatched);
  }
  return fault;
}

// A block for each pointer. All pointers move, by different distances, to different blocks.
std::vector<int> World::random_moves(const OneKey& key) {
  std::vector<int> blocks(variables_.size());
  std::set<int> taken, distances;
  std::size_t pointers = 0;
  do {
    taken.clear();
    distances.clear();
    pointers = 0;
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (variables_[i].is_number()) continue;
      ++pointers;
      blocks[i] = random_.below(kBlocks[kDevice]);
      taken.insert(blocks[i]);
      if (blocks[i] != key.values[i].place.block) distances.insert(blocks[i] - key.values[i].place.block);
    }
  } while (taken.size() < pointers || distances.size() < pointers);
  return blocks;
}

std::string World::learn() {
  OneKey& key = keys_[0];
  for (int run = 0; run < 16; ++run) {
    const std::vector<int> blocks = random_moves(key);
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      // A number of no other value in this run or another one.
      key.values[i].number = 2 + run * static_cast<int>(variables_.size()) + static_cast<int>(i);
      key.values[i].place = {kDevice, blocks[i], false};
    }
    if (const absl::Status status = run_both(&key, static_cast<unsigned>(run)); !status.ok()) return status.ToString();
  }
  std::uint64_t misses = 0;
  for (const Outcome outcome : {Outcome::kUpdated, Outcome::kInstantiated, Outcome::kEager}) {
    misses += cache_->stats().outcome(outcome);
  }
  if (misses > 4) return std::to_string(misses) + " runs called fn:\n" + to_string(cache_->entries().at(0));
  return difference();
}

// ---- Tests ----

TEST(ValuesRandomTest, RunsEqualDirectOnes) {
  const std::uint64_t first = number_of("GRAPHCACHE_VALUES_SEED", 1);
  const double seconds = static_cast<double>(number_of("GRAPHCACHE_VALUES_SECONDS", 0));
  const std::uint64_t worlds = seconds > 0 ? UINT64_MAX - first
                               : std::getenv("GRAPHCACHE_VALUES_SEED") != nullptr
                                   ? 1
                                   : by_size<std::uint64_t>(50, 300, 3000);
  watch_seeds("GRAPHCACHE_VALUES_SEED");
  const auto begin = std::chrono::steady_clock::now();
  const auto is_time_left = [&] {
    return seconds == 0 || std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds;
  };
  Bench bench;
  Tally tally;
  for (std::uint64_t seed = first; seed < first + worlds && is_time_left() && !HasFailure(); ++seed) {
    begin_seed(seed);
    const std::string fault = World(seed, bench, World::Kind::kAny).run(&tally);
    if (!fault.empty() || HasFailure()) {
      ADD_FAILURE() << "seed " << seed << ", " << fault << "\nto replay: GRAPHCACHE_VALUES_SEED=" << seed;
    }
  }
  end_seeds();
  std::printf("%llu worlds from seed %llu, %llu runs, %llu patched, %llu captures, %llu for changed values\n",
              static_cast<unsigned long long>(tally.worlds), static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(tally.runs), static_cast<unsigned long long>(tally.patched),
              static_cast<unsigned long long>(tally.captures), static_cast<unsigned long long>(tally.value_captures));
  if (tally.worlds < 20 || HasFailure()) return;
  // Otherwise the worlds hardly test what was learned.
  EXPECT_GT(tally.later_hits, tally.later_runs * 3 / 10);
  EXPECT_GT(tally.later_patched, tally.later_runs / 10);
}

TEST(ValuesRandomTest, AKeyWhoseValuesAllChangeInEachRunIsCapturedAtMostFourTimes) {
  const std::uint64_t first = number_of("GRAPHCACHE_VALUES_SEED", 1);
  const std::uint64_t end = first + by_size<std::uint64_t>(20, 100, 1000);
  Bench bench;
  for (std::uint64_t seed = first; seed < end && !HasFailure(); ++seed) {
    EXPECT_EQ(World(seed, bench, World::Kind::kExact).learn(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace graphcache::test::values_random
