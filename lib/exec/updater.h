// What the updater kernel reads: one layout for the device, the host and the twin of hostrt. The kernel is the updater
// node of a device-updated executable, and writes into the other nodes the set of the member of the family that a
// run is of, and over it the run's values.
#pragma once

#include <cuda_runtime_api.h>

namespace graphcache::updater {

// Instead of where in a node's arguments bytes go: they are those of a dim3, for its grid.
inline constexpr unsigned kGrid = ~0u;

// A value of a run: where among the run's values it is, and where in the node's arguments it goes.
struct Update {
  unsigned source;
  unsigned offset;
  unsigned size;
};

// Arguments are written in pieces, each by a thread of its own: a call takes 16 ns for each byte (tried).
inline constexpr unsigned kPiece = 32;

// A piece of a node's arguments, or its grid, and which updates go there.
struct Piece {
  cudaGraphDeviceNode_t node;
  unsigned offset;
  unsigned size;
  unsigned first;
  unsigned count;
};

// What a member of the family has for each piece: where in the set its bytes are; 0: they are the base's. The bytes
// follow, each piece's filled up by zeros to whole units.
using ParameterSet = const unsigned char*;
using Unit = unsigned long long;
inline constexpr unsigned kSetAlignment = 16;

// What a block has written last. A launch that brings the same token has nothing to write.
struct Written {
  ParameterSet set;
  unsigned token;
};

// In device memory, except `error`, which is in host memory. A failed update writes its error code there.
struct Plan {
  const Piece* pieces;
  const Update* updates;
  ParameterSet base;  // Of all pieces. Null if there are no other sets.
  Written* written;
  int* error;
  unsigned piece_count;
};

// The parameter of the kernel, by value.
template <unsigned kBytes>
struct Values {
  Plan plan;
  ParameterSet set;  // Null: the base's.
  unsigned token;
  alignas(8) unsigned char bytes[kBytes];
};

// A kernel's parameters take 32,764 bytes at most; what is set is copied as a whole, so a run takes the smallest that
// will do.
inline constexpr unsigned kSmall = 192;
inline constexpr unsigned kLarge = 4000;
inline constexpr unsigned kHuge = 32000;
inline constexpr unsigned kThreads = 64;
static_assert(sizeof(Values<kLarge>) <= 4096 && sizeof(Values<kHuge>) <= 32764);

inline constexpr char kSmallName[] = "graphcache_update_small";
inline constexpr char kLargeName[] = "graphcache_update_large";
inline constexpr char kHugeName[] = "graphcache_update_huge";
inline constexpr char kPlainName[] = "graphcache_plain";  // Does nothing.

#ifdef __CUDACC__
#define GRAPHCACHE_ON_DEVICE __device__
#else
#define GRAPHCACHE_ON_DEVICE
#endif

// At most kPiece bytes. All are read at once: one after the other would take as many times as long.
GRAPHCACHE_ON_DEVICE inline bool equal_units(const unsigned char* a, const unsigned char* b, unsigned size) {
  Unit differing = 0;
  for (unsigned k = 0; k < kPiece; k += sizeof(Unit)) {
    if (k < size) differing |= *reinterpret_cast<const Unit*>(a + k) ^ *reinterpret_cast<const Unit*>(b + k);
  }
  return differing == 0;
}

// What one thread does, for piece `i`: the set's bytes where they are others than those that are held, and over them
// the run's values. `write(node, offset, value, size)` is the runtime's on the device, and hostrt's on the host.
template <class Write>
GRAPHCACHE_ON_DEVICE void update_piece(const Plan& plan, unsigned i, const Piece& piece, ParameterSet held,
                                       ParameterSet wanted, const unsigned char* values, const Write& write) {
  if (held != wanted) {
    const auto bytes_of = [&](ParameterSet set) {
      const unsigned source = set == nullptr ? 0 : reinterpret_cast<const unsigned*>(set)[i];
      return source != 0 ? set + source : plan.base + reinterpret_cast<const unsigned*>(plan.base)[i];
    };
    const unsigned char* const from = bytes_of(held);
    const unsigned char* const to = bytes_of(wanted);
    if (from != to && !equal_units(from, to, piece.size)) write(piece.node, piece.offset, to, piece.size);
  }
  for (unsigned k = piece.first; k < piece.first + piece.count; ++k) {
    const Update one = plan.updates[k];
    write(piece.node, one.offset, values + one.source, one.size);
  }
}

#undef GRAPHCACHE_ON_DEVICE

}  // namespace graphcache::updater
