// Share: when keys share executables (Options::share). This header includes no header of CUDA.
#pragma once

namespace graphcache {

// Keys can share an executable if their graphs are alike: equal in everything that an update cannot change, such as
// their nodes' types and edges. Kernels, launch shapes and values may differ. docs/policy.md has the rules.
enum class Share {
  // Each key has an executable of its own. Where there is no room for another one, the one that was used longest ago
  // gives way. No device time is spent to save host time. Choose this if the device is the bottleneck.
  kNever,
  // Each key has an executable of its own while there is room. Where there is none, it borrows one from a key like it.
  kWhenFull,
  // Keys that are alike use one executable from the second key on. It takes the least memory and starts fastest, and
  // costs some microseconds for each change of the key.
  kAlways,
};

}  // namespace graphcache
