// What the devices of the ranks do together, as work in a stream: NCCL on GPUs, and its twin on hostrt.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ranks.h"

namespace demo {

class Collective {
 public:
  virtual ~Collective() = default;
  // The mean over all ranks, element by element: of the gradient in place, and of the loss. May be captured.
  virtual void average(float* gradient, int count, const float* loss, float* mean_loss, cudaStream_t stream) = 0;
  // The numbers of all ranks, by rank. Waits for the stream.
  virtual std::vector<std::uint64_t> gather(std::uint64_t mine, cudaStream_t stream) = 0;
};

// On the current device. All ranks must make one at the same time, and what was captured with it must be destroyed
// before it is. Ends the program if that cannot be done.
std::unique_ptr<Collective> make_collective(Ranks& ranks);

}  // namespace demo
