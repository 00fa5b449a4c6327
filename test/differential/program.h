// The fuzzer's random programs, as data. enqueue.h enqueues their work.
#pragma once

#include <array>
#include <vector>

#include "stress/stress_model.h"

namespace graphcache::test::differential {

using stress::Random;

// ---- Memory: places of kWords words ----

enum class MemoryKind { kDevice, kManaged, kPinned, kPageable };
inline constexpr int kMemoryKinds = 4;

// Operations with constants use places 0 to 7. The host never accesses a place that is in flight: sources are written
// only before the first run, and kSink and the pageable target are only ever copied to. Only the host accesses kResult.
inline constexpr std::array kKindOfPlace = {
    MemoryKind::kDevice,   MemoryKind::kDevice,   MemoryKind::kDevice,   // 0 to 5: also reached from a base pointer
    MemoryKind::kDevice,   MemoryKind::kDevice,   MemoryKind::kDevice,   //
    MemoryKind::kManaged,  MemoryKind::kPinned,   MemoryKind::kPinned,   // kPinnedWork is 7, kSink is 8.
    MemoryKind::kDevice,   MemoryKind::kDevice,   MemoryKind::kManaged,  // from 9 on: targets of slots
    MemoryKind::kPinned,   MemoryKind::kPageable,                        //
    MemoryKind::kDevice,   MemoryKind::kDevice,   MemoryKind::kManaged,  // from 14 on: sources of slots
    MemoryKind::kPinned,   MemoryKind::kPageable,                        //
    MemoryKind::kPageable,                                               // kResult is 19.
};
inline constexpr int kPlaces = static_cast<int>(kKindOfPlace.size());
inline constexpr int kBasePlaces = 6, kWorkPlaces = 8, kPinnedWork = 7, kSink = 8;
inline constexpr int kTargets = 9, kSources = 14, kResult = 19;
inline constexpr int kSlotKernelPlaces = 3, kSlotPlaces = 5;  // kernels and sets use the first three of each

// ---- Programs ----

enum class Kind {
  kMix,
  kMixAt,
  kSmall,
  kBig,
  kAligned,
  kNumbers,
  kStructure,  // a structure of 1 to 4,000 bytes at some offset
  kCopy,
  kSet,
  kClusterOf2,
  kWrite,  // values that Recorder::write() writes to memory of the lane
  // The following are not made by the recorder.
  kCluster,
  kProgrammatic,
  kCooperative,
  kDirectMix,
  kSet2d,
  kFromTemporary,  // copies from memory that is freed before the program has ended
  kFromKept,       // copies from pageable memory that the graph keeps
  kToLocal,        // copies to a local variable of the run's caller, for kResult
  kHostFunction,
  kAllocate,  // also works in that memory, and frees it
  kNested,    // runs another program
  kNestedWithValues,
  kQuery,            // queries the stream, which breaks a capture
  kNotUnderCapture,  // a library that refuses to work under capture, by an error or an exception of type cudaError_t
};
inline constexpr int kKinds = static_cast<int>(Kind::kNotUnderCapture) + 1;
// clang-format off
inline constexpr std::array<const char*, kKinds> kKindNames = {
    "mix", "mix_at", "small", "big", "aligned", "numbers", "structure", "copy", "set", "cluster_of_2", "write", "cluster",
    "programmatic", "cooperative", "direct_mix", "set_2d", "from_temporary", "from_kept", "to_local", "host_function", "allocate", "nested",
    "nested_with_values",
    "query", "not_under_capture"};
// clang-format on

// Operands that are slots if the program takes values.
enum SlotBit : unsigned {
  kSlotOut = 1,
  kSlotIn = 2,
  kSlotAny = 4,  // slots of a copy, which reach every kind of memory
  kSlotGrid = 8,
  kSlotBlock = 16,
  kSlotShared = 32,
  kSlotA = 64,
  kSlotB = 128,
  kSlotBytes = 256,
  kSlotWhole = 512,  // the structure
};
inline constexpr unsigned kAllSlots = 1023;

struct Op {
  bool has(SlotBit bit) const { return (slots & bit) != 0; }
  // Of kNotUnderCapture: whether it refuses every capture. Others refuse some.
  bool always_refuses() const { return a % 2 == 0; }

  Kind kind;
  int stream;          // 0 is the run's own; others are forked from it and joined at the end
  int out, in, other;  // places, if they are constants
  int a, b;
  unsigned grid_x, grid_y, block;
  unsigned slots;  // bits of SlotBit
  bool variant;    // another kernel, cluster size or kind of copy
  int structure;   // its index among GRAPHCACHE_TEST_STRUCTURES
};

struct Program {
  // Whether an operation copies from or to pageable memory that is no slot, or refuses every capture.
  bool must_be_direct() const;

  std::vector<Op> ops;
  bool takes_values;
  bool shared;  // by all lanes; their memory differs, so all pointers are slots
  bool nests;
};

inline constexpr int kStreams = 4;  // of a program
inline constexpr int kMaxOps = 60;  // of a program

// What a world's programs may contain.
struct Flavor {
  bool tiny;       // constants and values are 0 or 1, so a slot often holds a relative's constant
  bool allocates;  // graphs may have allocations; such graphs share nothing
  bool breaks;     // captures are broken on purpose
  bool related;    // most programs are relatives of a few
  bool pageable;   // constants of copies may be pageable memory; such programs run directly
  bool refuses;    // libraries refuse to work under capture, or fail
};

// A new program, or a relative of an earlier one: the same topology with other constants and shapes.
Program random_program(Random& random, const std::vector<Program>& before, const Flavor& flavor);

}  // namespace graphcache::test::differential
