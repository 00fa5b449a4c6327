// Communication between the devices of the ranks, as work in a stream: NCCL on GPUs, and a CPU version on hostrt.
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
  // The mean over all ranks of the gradient (in place, element by element) and of the loss. May be captured.
  virtual void average(float* gradient, int count, const float* loss, float* mean_loss, cudaStream_t stream) = 0;
  // The numbers of all ranks, by rank. Waits for the stream.
  virtual std::vector<std::uint64_t> gather(std::uint64_t mine, cudaStream_t stream) = 0;
};

// Makes one for the current device. All ranks must do so at the same time, and everything that was captured with it
// must be destroyed before it is. Ends the program on an error.
std::unique_ptr<Collective> make_collective(Ranks& ranks);

}  // namespace demo
