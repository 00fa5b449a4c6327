// Prefer: which cost a cache minimises (Options::prefer). This header includes no header of CUDA.
#pragma once

namespace graphcache {

// Which cost counts most where host time, device time and memory can be traded for one another.
enum class Prefer {
  // Host time and device time count alike.
  kTotalTime,
  // Device time is never spent to save host time. Choose this if the device is the bottleneck, for example because
  // several threads keep it busy (docs/demos/decode.md).
  kDeviceTime,
  // Keys share executables wherever they can, and get their own executables only where they cannot.
  kMemory,
};

}  // namespace graphcache
