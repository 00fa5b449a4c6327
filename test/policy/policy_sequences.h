// Random sequences of operations on a cache, and the cache's reports as text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "policy_work.h"

namespace graphcache::test {

struct Operation {
  enum Kind { kRun, kWarm, kPin, kUnpin, kErase, kClear } kind;
  std::size_t which = 0;
  Values values{};
  std::size_t stream = 0;
};

struct Sequence {
  Options options;
  std::vector<Spec> specs;
  std::vector<Operation> operations;
};

inline void add_slots(std::vector<Node>& nodes, Random& random) {
  for (Node& node : nodes) {
    if (random.chance(50)) node.value_slot = random.below(2);
  }
}

inline std::vector<Spec> random_specs(Random& random) {
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
    const int slots = random.below(3);  // on no member, on some, on all
    for (int member = 0; member < members; ++member) {
      std::vector<Node> mine = nodes;
      vary(mine, profile, member, random);
      if (random.chance(50 * slots)) add_slots(mine, random);
      add(mine);
    }
  }
  add(std::vector<Node>(7));                           // a topology that no other key has
  add(std::vector<Node>(random.chance(50) ? 50 : 8));  // twice the size of others
  std::vector<Node> fragile(2);                        // its capture breaks while its size is 0
  fragile[0].sets = true;
  fragile[0].size_slot = 0;
  fragile[0].value_slot = 1;
  if (random.chance(50)) add(fragile);
  return specs;
}

inline void draw_tables(Random random, Sequence* sequence) {
  Options& options = sequence->options;
  force(static_cast<Patching>(random.below(3)));
  if (options.share == Share::kWhenFull && random.chance(50)) force(&options, Sharing::kTable);
  if (random.chance(30)) options.share = static_cast<Share>(random.below(3));
}

inline void draw_operations(int length, Random* from, Sequence* sequence) {
  Random& random = *from;
  const std::vector<Spec>& specs = sequence->specs;
  const int count = static_cast<int>(specs.size());
  std::vector<Values> last(specs.size(), Values{3, 3});
  int first = 0, span = count;
  for (int i = 0; i < length; ++i) {
    if (i % 16 == 0) {  // phases, each with some of the keys
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
    sequence->operations.push_back(operation);
  }
}

// Each key has a usual stream, which may change.
inline void draw_streams(Random random, Sequence* sequence) {
  const int streams = random.chance(50) ? 1 : random.between(2, 4);
  const int strays = random.chance(50) ? 5 : 30;  // percent
  std::vector<std::size_t> usual(sequence->specs.size());
  for (std::size_t& stream : usual) stream = static_cast<std::size_t>(random.below(streams));
  for (Operation& operation : sequence->operations) {
    std::size_t& stream = usual[operation.which];
    operation.stream = random.chance(strays) ? static_cast<std::size_t>(random.below(streams)) : stream;
    if (random.chance(5)) stream = operation.stream;
  }
}

inline Sequence random_sequence(std::uint64_t seed) {
  Random random(seed);
  Sequence sequence;
  sequence.specs = random_specs(random);
  const int count = static_cast<int>(sequence.specs.size());
  Options& options = sequence.options;
  options.max_executables = random.between(1, 4);
  options.max_templates = random.chance(30) ? 512 : random.between(0, 8);
  const Sharing ways[] = {Sharing::kAuto, Sharing::kUpdates, Sharing::kNever, Sharing::kUpdatesAcross};
  force(&options, ways[random.below(4)]);
  if (random.chance(40)) {
    const std::size_t nodes = sequence.specs[static_cast<std::size_t>(random.below(count))].nodes.size();
    options.max_device_bytes = static_cast<std::size_t>(random.between(1, 3)) * estimated_device_bytes(nodes) +
                               static_cast<std::size_t>(random.below(20'000)) - static_cast<std::size_t>(5'000);
  }
  options.capture_after = random.chance(15) ? random.between(1, 2) : 0;
  draw_tables(Random(~seed), &sequence);

  draw_operations(random.between(30, 80), &random, &sequence);
  draw_streams(Random(seed + 1'000'000'007), &sequence);
  return sequence;
}

// Without times.
inline std::string text_of(const Stats& stats) {
  std::ostringstream text;
  const auto list = [&](const char* name, const auto& counts) {
    text << name;
    for (const std::uint64_t number : counts) text << ' ' << number;
    text << "; ";
  };
  list("outcomes", stats.outcomes);
  list("eager", stats.eager_reasons);
  text << "failed " << stats.failed << ", captures " << stats.captures << ", broken " << stats.capture_failures
       << ", instantiations " << stats.instantiations << ", updates " << stats.updates << ", by sets "
       << stats.set_switches << ", refused " << stats.refused_updates << ", refused by the device "
       << stats.refused_device_updates << ", patched " << stats.patched_nodes << ", evictions " << stats.evictions
       << ", forgotten " << stats.forgotten << ", live " << stats.live_executables << ", templates "
       << stats.live_templates << ", families " << stats.families << ", bytes " << stats.estimated_device_bytes;
  return text.str();
}

inline std::string text_of(const std::vector<EntryInfo>& entries) {
  std::ostringstream text;
  for (const EntryInfo& entry : entries) {
    text << entry.last_use_order << ' ' << entry.label << ' ' << entry.key.to_string() << (entry.live ? " live" : "")
         << (entry.recorded ? " recorded" : "") << (entry.pinned ? " pinned" : "") << " family " << entry.family
         << ", nodes " << entry.nodes << '/' << entry.slot_nodes << ", bytes " << entry.estimated_device_bytes
         << ", outcomes";
    for (const std::uint64_t count : entry.outcomes) text << ' ' << count;
    text << '\n';
  }
  return text.str();
}

inline std::string text_of(const Options& options) {
  std::ostringstream text;
  text << "max_executables " << options.max_executables << ", max_templates " << options.max_templates
       << ", max_device_bytes " << options.max_device_bytes << ", share " << static_cast<int>(options.share)
       << ", capture_after " << options.capture_after << ", tables "
       << static_cast<int>(mechanisms_of_new_caches.tables) << ", patching "
       << static_cast<int>(mechanisms_of_new_caches.patching);
  return text.str();
}

inline std::string text_of(const Operation& operation, const std::vector<Spec>& specs) {
  const char* const names[] = {"run", "warm", "pin", "unpin", "erase", "clear"};
  std::ostringstream text;
  text << names[operation.kind] << ' ' << specs[operation.which].name << " (" << operation.values[0] << ", "
       << operation.values[1] << ") on stream " << operation.stream;
  return text.str();
}

}  // namespace graphcache::test
