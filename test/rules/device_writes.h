// Shared by device_writes_test.cc and its kernels.
#pragma once

namespace graphcache::test {

// What a kernel observed of its launch.
struct Seen {
  int blocks, grid, block, value, shared_bytes;
};

// What the device should write into the nodes of its graph.
struct Write {
  bool value, grid, disable;
  int new_value;
  unsigned new_grid;
};

// A parameter, and the value that the device writes into it.
struct alignas(16) Parameter {
  unsigned char v[64];
};

enum class ValueIn { kParameters, kLocalMemory, kGlobalMemory };

// One write: the bytes of a value from `at` on.
struct Span {
  unsigned offset, size, at;
  ValueIn in;
};

}  // namespace graphcache::test
