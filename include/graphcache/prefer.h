// What an option asks for where one cost can be had for another. Includes no header of CUDA.
#pragma once

namespace graphcache {

// What matters most where the host's time, the device's and memory can be had for each other.
enum class Prefer {
  kTotalTime,   // The host's and the device's time count alike.
  kDeviceTime,  // The device is the bottleneck, as where several threads keep it busy (docs/demos/decode.md): no time
                // of it is spent to save the host's.
  kMemory,      // Keys that can share an executable do, and get none of their own while they can.
};

}  // namespace graphcache
