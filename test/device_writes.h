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

}  // namespace graphcache::test
