// The CPU version of NCCL for hostrt: a kernel that meets the kernels of the other ranks. It may wait inside, because
// each rank is a process of its own there.
#include <cstddef>

#include "../support.h"
#include "collective.h"
#include "graphcache/hostrt.h"

namespace demo {

// Runs in one thread. Adds in the order of the ranks, so that all of them get the same bits.
void average(const float* from, float* to, int count, Ranks* ranks) {
  const auto size = static_cast<std::size_t>(count);
  std::vector<float> all(size * static_cast<std::size_t>(ranks->count()));
  ranks->gather(from, size * sizeof(float), all.data());
  for (std::size_t i = 0; i < size; ++i) {
    float sum = 0.0f;
    for (std::size_t at = i; at < all.size(); at += size) sum += all[at];
    to[i] = sum / static_cast<float>(ranks->count());
  }
}

}  // namespace demo

GRAPHCACHE_HOST_KERNEL(demo::average)

namespace demo {
namespace {

class HostCollective : public Collective {
 public:
  explicit HostCollective(Ranks& ranks) : ranks_(ranks) {}

  void average(float* gradient, int count, const float* loss, float* mean_loss, cudaStream_t stream) override {
    launch(gradient, gradient, count, stream);
    launch(loss, mean_loss, 1, stream);
  }

  std::vector<std::uint64_t> gather(std::uint64_t mine, cudaStream_t stream) override {
    DEMO_CUDA(cudaStreamSynchronize(stream));
    return ranks_.gather(mine);
  }

 private:
  void launch(const float* from, float* to, int count, cudaStream_t stream) {
    Ranks* ranks = &ranks_;
    void* arguments[] = {&from, &to, &count, &ranks};
    DEMO_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(&demo::average), dim3(1), dim3(1), arguments, 0, stream));
  }

  Ranks& ranks_;
};

}  // namespace

std::unique_ptr<Collective> make_collective(Ranks& ranks) { return std::make_unique<HostCollective>(ranks); }

}  // namespace demo
