// What a cache has on its device besides graphs and executables.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "cuda/device_memory.h"
#include "exec/graveyard.h"
#include "graph/write.h"
#include "graphcache/options.h"

namespace graphcache {

struct Device {
  // `options` name the actual device, of so many.
  Device(const Options& options, int devices, std::shared_ptr<const Audience> audience)
      : memory(std::make_shared<DeviceMemory>(options.device, devices > 1)),
        setter(options.device, memory, options.capture_mode),
        graveyard(options.device, std::move(audience)) {}

  // Called outside of captures.
  ~Device() {
    (void)graveyard.collect_all(/*waits=*/true);
    memory->trim();
  }
  Device(const Device&) = delete;

  // The runs from now on are in the context with this id. If they were in another one before, that one is lost.
  void begin(std::uint64_t context) {
    if (graveyard.context() != 0 && graveyard.context() != context) abandon();
    graveyard.begin(context);
  }
  // Drops all handles, because the context is lost, and until begin() those of graphs and executables that are added to
  // the graveyard.
  void abandon() {
    graveyard.abandon();
    setter.abandon();
    updater_refused = cudaSuccess;
    memory->abandon();
  }

  const std::shared_ptr<DeviceMemory> memory;  // Device memory that launches use.
  Setter setter;                               // The library's kernels.
  // Why the driver has refused the kernels of updater nodes, or success. It is not asked again in this context.
  std::atomic<cudaError_t> updater_refused{cudaSuccess};
  Graveyard graveyard;
};

}  // namespace graphcache
