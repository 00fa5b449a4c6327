// LaunchConfig: the shape of one kernel launch, for the recorder and for keys.
//
//   const graphcache::LaunchConfig config{grid, block, 256 * sizeof(float)};
//   cache.run(graphcache::key("reduce", config), [&](graphcache::Recorder& rec) { rec.launch(reduce, config, in, out);
//   });
#pragma once

#include <vector_types.h>

#include <cstddef>

namespace graphcache {

struct LaunchConfig {
  dim3 grid;                // The grid's size in blocks.
  dim3 block;               // The block's size in threads.
  size_t shared_bytes = 0;  // Dynamic shared memory for each block.
};

}  // namespace graphcache
