// Reports to a cache which calls break its captures and which work they miss (Options::diagnose).

#ifndef GRAPHCACHE_LIB_HOSTRT_DIAGNOSE_H_
#define GRAPHCACHE_LIB_HOSTRT_DIAGNOSE_H_

#include <cuda_runtime_api.h>

#include "diagnose/watch.h"
#include "functions.h"

namespace graphcache::hostrt {

struct Kernel;
struct State;
struct Stream;

// Records a call that returned `error` to the code at `address`. Requires diagnose::watches_any(). Locked; a
// Teller reports to the cache what was found, when the lock is released.
void note_result(const State& state, Function function, cudaError_t error, const void* address);

struct Teller {
  Teller() = default;
  ~Teller() {
    if (is_needed) diagnose::tell();
  }
  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;

  bool is_needed = false;
};

// Records work that was enqueued outside of captures. `kernel` is null unless it is a kernel. Locked.
void note_stray(const State& state, Function function, const Stream& stream, const Kernel* kernel);

// Records a launch by this thread. Locked.
void note_launch(const Kernel& kernel);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_DIAGNOSE_H_
