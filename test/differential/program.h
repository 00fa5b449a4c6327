// What the fuzzer runs: random programs, as data. enqueue.h makes work of them.
#pragma once

#include <array>
#include <vector>

#include "stress_model.h"

namespace graphcache::test::differential {

using stress::Random;

// ---- Memory: places of kWords words ----

enum class MemoryKind { kDevice, kManaged, kPinned, kPageable };
inline constexpr int kMemoryKinds = 4;

// Numbers 0 to 7 are what constants work on. The host never reads or writes a place that is in flight: sources are
// written before the first run alone, and kSink and the pageable target are only ever copied to.
inline constexpr std::array kKindOfPlace = {
    MemoryKind::kDevice,  MemoryKind::kDevice,   MemoryKind::kDevice,    // 0 to 5: reached from a base pointer, too.
    MemoryKind::kDevice,  MemoryKind::kDevice,   MemoryKind::kDevice,    //
    MemoryKind::kManaged, MemoryKind::kPinned,   MemoryKind::kPageable,  // kPinnedWork is 7, kSink is 8.
    MemoryKind::kDevice,  MemoryKind::kDevice,   MemoryKind::kManaged,   // From 9 on: targets of slots.
    MemoryKind::kPinned,  MemoryKind::kPageable,                         //
    MemoryKind::kDevice,  MemoryKind::kDevice,   MemoryKind::kManaged,   // From 14 on: sources of slots.
    MemoryKind::kPinned,  MemoryKind::kPageable,
};
inline constexpr int kPlaces = static_cast<int>(kKindOfPlace.size());
inline constexpr int kBasePlaces = 6, kWorkPlaces = 8, kPinnedWork = 7, kSink = 8;
inline constexpr int kTargets = 9, kSources = 14;
inline constexpr int kSlotKernelPlaces = 3, kSlotPlaces = 5;  // Kernels and sets take the first three of either.

// ---- Programs ----

enum class Kind {
  kMix,
  kMixAt,
  kSmall,
  kBig,
  kAligned,
  kNumbers,
  kOnDevice,  // Values read through Recorder::on_device().
  kCopy,
  kSet,
  kClusterOf2,
  // From here on not by the recorder:
  kCluster,
  kProgrammatic,
  kCooperative,
  kDirectMix,
  kSet2d,
  kHostFunction,
  kAllocate,  // And work in that memory, and free.
  kNested,    // Another program's run.
  kNestedWithValues,
  kQuery,  // Of the stream, which breaks a capture.
};
inline constexpr int kKinds = static_cast<int>(Kind::kQuery) + 1;
// clang-format off
inline constexpr std::array<const char*, kKinds> kKindNames = {
    "mix", "mix_at", "small", "big", "aligned", "numbers", "on_device", "copy", "set", "cluster_of_2", "cluster",
    "programmatic", "cooperative", "direct_mix", "set_2d", "host_function", "allocate", "nested", "nested_with_values",
    "query"};
// clang-format on

// Operands that are slots where the program takes values.
enum SlotBit : unsigned {
  kSlotOut = 1,
  kSlotIn = 2,
  kSlotAny = 4,  // The slots of a copy are those that reach every kind of memory.
  kSlotGrid = 8,
  kSlotBlock = 16,
  kSlotShared = 32,
  kSlotA = 64,
  kSlotB = 128,
  kSlotBytes = 256,
  kSlotWhole = 512,  // The structure.
};
inline constexpr unsigned kAllSlots = 1023;

struct Op {
  bool has(SlotBit bit) const { return (slots & bit) != 0; }

  Kind kind;
  int stream;          // 0: the run's own. Others are forked from it, and joined in the end.
  int out, in, other;  // Places, where they are constants.
  int a, b;
  unsigned grid_x, grid_y, block;
  unsigned slots;  // SlotBit.
  bool variant;    // Another kernel, cluster size or kind of copy.
};

struct Program {
  std::vector<Op> ops;
  bool takes_values;
  bool shared;  // By all lanes, whose memory differs: all pointers are slots.
  bool nests;
};

inline constexpr int kStreams = 4;  // Of a program.

// What a world's programs may contain.
struct Flavor {
  bool tiny;       // Constants and values are 0 or 1: a slot often holds what a relative has as a constant.
  bool allocates;  // Graphs may have allocations; such graphs share nothing.
  bool on_device;  // Graphs may have values on the device; such graphs share nothing.
  bool breaks;     // Captures are broken on purpose.
  bool related;    // Most programs are relatives of a few.
};

// A new program, or a relative of one of those before: of the same topology, with other constants and shapes.
Program random_program(Random& random, const std::vector<Program>& before, const Flavor& flavor);

}  // namespace graphcache::test::differential
