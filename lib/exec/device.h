// What a cache has on its device besides graphs and executables.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/device_memory.h"
#include "exec/executable.h"
#include "exec/graveyard.h"
#include "exec/updater_code.h"
#include "graph/write.h"
#include "graphcache/options.h"

namespace graphcache {

struct Device {
  // `options` name the actual device.
  explicit Device(const Options& options)
      : scratch(options.device),
        memory(std::make_shared<DeviceMemory>()),
        setter(options.device, memory, options.capture_mode),
        graveyard(options.device) {}

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
    scratch.abandon();
    updater.abandon();
    setter.abandon();
    memory->abandon();
  }

  Scratch scratch;                             // Memory for copies and sets of 0 bytes.
  const std::shared_ptr<DeviceMemory> memory;  // Device memory of updater nodes.
  Updater updater;                             // The kernels of updater nodes.
  Setter setter;                               // The kernels of Recorder::write().
  Graveyard graveyard;
};

}  // namespace graphcache
