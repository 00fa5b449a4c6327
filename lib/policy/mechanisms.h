// Mechanisms: forces the ways in which caches serve their keys, for tests and benchmarks.
#pragma once

#include <cstdint>

namespace graphcache {

struct Mechanisms {
  // Whether keys of one class share an executable with a table.
  enum class Tables : std::uint8_t {
    kAuto,    // As docs/policy.md says.
    kNever,   // By updates alone.
    kAlways,  // The first key of a class has a table as well.
  };
  // How new values of slots get into the nodes.
  enum class Patching : std::uint8_t {
    kAuto,           // The cheaper of the following two, if Options::share is kWhenFull.
    kPerNode,        // By a call for each node. An executable with a parameter table is updated by the device anyway.
    kDeviceUpdated,  // By an updater node, whatever the number of nodes (docs/design.md).
  };
  bool reads = true;            // Whether graphs are read. If not, no key has siblings.
  bool across_streams = false;  // Whether keys that run on different streams can be siblings.
  Tables tables = Tables::kAuto;
  Patching patching = Patching::kAuto;
};

// Read when a cache is made.
inline Mechanisms mechanisms_of_new_caches;

}  // namespace graphcache
