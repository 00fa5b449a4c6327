// The shape of one kernel launch.
//
//   rec.launch(sgd, {grid, block}, weights, gradient);                  // no dynamic shared memory
//   rec.launch(reduce, {grid, block, 256 * sizeof(float)}, in, out);
//   graphcache::key("reduce", graphcache::LaunchConfig{grid, block});   // as a part of a key
#pragma once

#include <vector_types.h>

#include <cstddef>

namespace graphcache {

struct LaunchConfig {
  dim3 grid;                // in blocks
  dim3 block;               // in threads
  size_t shared_bytes = 0;  // dynamic shared memory per block
};

}  // namespace graphcache
