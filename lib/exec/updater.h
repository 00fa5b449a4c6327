// The data that the updater kernel reads, shared by the device code, the host code and hostrt's CPU version. The kernel
// is the updater node of a device-updated executable. It writes a member's parameter set into the other nodes, and then
// the run's values over it.
#pragma once

#include <cuda_runtime_api.h>

namespace graphcache::updater {

// Used in place of an offset for a node's grid, whose bytes are those of a dim3.
inline constexpr unsigned kGrid = ~0u;

// A value of a run: its offset in the run's values, and its offset in the node's arguments.
struct Update {
  unsigned source;
  unsigned offset;
  unsigned size;
};

// Arguments are written in pieces, each by its own thread, because a device-side call takes 16 ns per byte.
inline constexpr unsigned kPiece = 32;

// cudaGraphKernelNodeSetParam copies by the largest power of two that divides offset and size, at most 8 bytes. The
// value must be aligned to that, or the context is lost (docs/semantics.md, "What a kernel writes into nodes").
using Unit = unsigned long long;
inline constexpr unsigned kUnit = sizeof(Unit);

// A piece of a node's arguments, or its grid, and the updates that go there.
struct Piece {
  cudaGraphDeviceNode_t node;
  unsigned offset;
  unsigned size;
  unsigned first;
  unsigned count;
};

// A member's parameter set. It begins with one offset per piece: where in the set the piece's bytes are, or 0 if they
// are the base's. The bytes follow; each piece is padded with zeros to whole units.
using ParameterSet = const unsigned char*;
inline constexpr unsigned kSetAlignment = 16;

// What a block wrote last. A launch with the same token has nothing to write.
struct Written {
  ParameterSet set;
  unsigned token;
};

// All of it is in device memory except `error`, which is in host memory. A failed update writes its error code there.
struct Plan {
  const Piece* pieces;
  const Update* updates;
  ParameterSet base;  // The set of all pieces, or null if there are no other sets.
  Written* written;
  int* error;
  unsigned piece_count;
};

// The kernel's parameter, passed by value.
template <unsigned kBytes>
struct Values {
  Plan plan;
  ParameterSet set;  // Null for the base's set.
  unsigned token;
  alignas(kUnit) unsigned char bytes[kBytes];
};

// Kernel parameters have at most 32,764 bytes. The whole parameter is copied at each patch, so a run uses the smallest
// variant that fits its values.
inline constexpr unsigned kSmall = 192;
inline constexpr unsigned kLarge = 4000;
inline constexpr unsigned kHuge = 32000;
inline constexpr unsigned kThreads = 64;
static_assert(sizeof(Values<kLarge>) <= 4096 && sizeof(Values<kHuge>) <= 32764);

inline constexpr char kSmallName[] = "graphcache_update_small";
inline constexpr char kLargeName[] = "graphcache_update_large";
inline constexpr char kHugeName[] = "graphcache_update_huge";
inline constexpr char kPlainName[] = "graphcache_plain";  // Does nothing.

// Compares at most kPiece bytes. All are loaded at once, because loading them one after the other would take several
// times as long. `__device__` is empty for compilers other than nvcc.
__device__ inline bool equal_units(const unsigned char* a, const unsigned char* b, unsigned size) {
  Unit differing = 0;
  for (unsigned k = 0; k < kPiece; k += kUnit) {
    if (k < size) differing |= *reinterpret_cast<const Unit*>(a + k) ^ *reinterpret_cast<const Unit*>(b + k);
  }
  return differing == 0;
}

// The work of one thread, for piece `i`. Writes the wanted set's bytes if they differ from those of the held set, and
// then the run's values. `write(node, offset, value, size)` calls the runtime on the device, and hostrt on the host.
template <class Write>
__device__ void update_piece(const Plan& plan, unsigned i, const Piece& piece, ParameterSet held, ParameterSet wanted,
                             const unsigned char* values, const Write& write) {
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

}  // namespace graphcache::updater
