// What device_writes_test.cc and its kernels share.
#pragma once

namespace graphcache::test {

// What a kernel saw of its launch.
struct Seen {
  int blocks, grid, block, value, shared_bytes;
};

// What the device is to write into the nodes of its graph.
struct Write {
  bool value, grid, disable;
  int new_value;
  unsigned new_grid;
};

}  // namespace graphcache::test
