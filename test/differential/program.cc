#include "program.h"

#include <algorithm>
#include <cstddef>

#include "kernels.h"

namespace graphcache::test::differential {
namespace {

int random_constant(Random& random, const Flavor& flavor) { return random.below(flavor.tiny ? 2 : 1000); }

unsigned random_block(Random& random) { return 16u << random.below(3); }

Kind random_kind(Random& random, const Flavor& flavor, bool only_kernels, bool shared) {
  constexpr int kByKernels = static_cast<int>(Kind::kCopy);
  constexpr int kByRecorder = static_cast<int>(Kind::kClusterOf2);
  while (true) {
    const auto kind = static_cast<Kind>(random.below(only_kernels ? kByKernels : shared ? kByRecorder : kKinds));
    switch (kind) {
      case Kind::kAllocate:
        if (!flavor.allocates) continue;
        break;
      case Kind::kNotUnderCapture:
        if (!flavor.refuses || !random.one_in(3)) continue;
        break;
      case Kind::kQuery:
      case Kind::kNestedWithValues:
        if (!flavor.breaks || !random.one_in(4)) continue;
        break;
      case Kind::kFromTemporary:
      case Kind::kToLocal:
        if (!flavor.pageable || !random.one_in(3)) continue;
        break;
      case Kind::kFromKept:
      case Kind::kNested:
      case Kind::kHostFunction:
        if (!random.one_in(3)) continue;
        break;
      default:
        break;
    }
    return kind;
  }
}

int random_structure(Random& random) {
#define GRAPHCACHE_TEST_COUNT(name, size, alignment, before, other) +1
  constexpr int kStructures = GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_COUNT);
#undef GRAPHCACHE_TEST_COUNT
  return random.below(kStructures);
}

unsigned random_slots(Random& random, bool many) {
  auto slots = static_cast<unsigned>(random.next());
  if (!many) slots &= static_cast<unsigned>(random.next() & random.next());
  // These slots keep a node from being device-updated.
  if (!random.one_in(4)) slots &= ~unsigned{kSlotBlock | kSlotShared};
  return slots & kAllSlots;
}

Program fresh_program(Random& random, const Flavor& flavor) {
  Program program{};
  program.shared = random.one_in(4);
  program.takes_values = program.shared || !random.one_in(4);
  constexpr int kSizes[] = {0, 1, 1, 2, 3, 3, 5, 8, 8, 12, 30, kMaxOps};
  program.ops.resize(static_cast<std::size_t>(random.of(kSizes)));
  const int streams = random.one_in(2) ? 1 : 1 + random.below(kStreams);
  const bool many_slots = random.one_in(2), only_kernels = random.one_in(2);
  const int structure = random_structure(random);  // Often used, so that a slot goes to both of its kernels.
  for (Op& op : program.ops) {
    op.kind = random_kind(random, flavor, only_kernels, program.shared);
    op.stream = random.below(streams);
    op.out = random.below(op.kind == Kind::kCopy ? kSink + 1 : kWorkPlaces);
    op.in = random.below(kWorkPlaces);
    if (op.kind == Kind::kCopy && random.one_in(3))
      op.in = kSources + random.below(flavor.pageable ? kSlotPlaces : kSlotPlaces - 1);
    if (op.kind == Kind::kCopy && op.in == op.out) op.in = (op.in + 1) % kWorkPlaces;
    if (op.kind == Kind::kMixAt) op.out %= kBasePlaces, op.in %= kBasePlaces;
    op.other = random.below(kWorkPlaces);
    op.a = random_constant(random, flavor);
    op.b = random_constant(random, flavor);
    op.grid_x = static_cast<unsigned>(1 + random.below(5));
    op.grid_y = static_cast<unsigned>(1 + random.below(2));
    op.block = random_block(random);
    op.slots = random_slots(random, many_slots) | (program.shared ? kSlotOut | kSlotIn : 0u);
    op.variant = random.one_in(2);
    if (op.kind == Kind::kStructure) op.structure = random.one_in(2) ? structure : random_structure(random);
    program.nests |= op.kind == Kind::kNested || op.kind == Kind::kNestedWithValues;
  }
  return program;
}

bool is_pageable(int place) { return kKindOfPlace[static_cast<std::size_t>(place)] == MemoryKind::kPageable; }

}  // namespace

bool Program::must_be_direct() const {
  return std::any_of(ops.begin(), ops.end(), [&](const Op& op) {
    const auto is_raw = [&](SlotBit bit) { return !takes_values || !op.has(bit); };
    if (op.kind == Kind::kCopy) {
      return (is_raw(kSlotOut) && is_pageable(op.out)) || (is_raw(kSlotIn) && is_pageable(op.in));
    }
    if (op.kind == Kind::kNotUnderCapture) return op.always_refuses();
    return op.kind == Kind::kFromTemporary || op.kind == Kind::kToLocal;
  });
}

Program random_program(Random& random, const std::vector<Program>& before, const Flavor& flavor) {
  if (before.empty() || random.one_in(flavor.related ? 12 : 3)) return fresh_program(random, flavor);
  Program program = before[static_cast<std::size_t>(random.below(static_cast<int>(before.size())))];
  const bool grids = random.one_in(2), blocks = random.one_in(4), variants = random.one_in(4);
  const bool slots = random.one_in(flavor.tiny ? 2 : 5);
  for (Op& op : program.ops) {
    if (op.kind == Kind::kNested || op.kind == Kind::kNestedWithValues) continue;
    if (random.one_in(2)) op.a = random_constant(random, flavor);
    if (random.one_in(2)) op.b = random_constant(random, flavor);
    if (grids && random.one_in(2)) op.grid_x = static_cast<unsigned>(1 + random.below(6));
    if (grids && random.one_in(2)) op.grid_y = static_cast<unsigned>(1 + random.below(3));
    if (blocks) op.block = random_block(random);
    if (variants) op.variant = random.one_in(2);
    if (slots && random.one_in(4)) op.slots = random_slots(random, true) | (program.shared ? kSlotOut | kSlotIn : 0u);
    if (random.one_in(8) && op.kind == Kind::kMix) op.in = random.below(kWorkPlaces);
  }
  return program;
}

}  // namespace graphcache::test::differential
