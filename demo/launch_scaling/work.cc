#include "work.h"

#include <absl/strings/str_format.h>

#include "../support.h"
#include "kernels.h"

namespace demo {
namespace {

std::uint32_t salt(int chain, int node) { return static_cast<std::uint32_t>(2 * (10000 * chain + node) + 1); }

std::uint32_t expected(int chain, int length, int runs) {
  std::uint32_t value = 0;
  for (int run = 0; run < runs; ++run) {
    for (int node = 0; node < length; ++node) value = (value ^ salt(chain, node)) * 16777619u + salt(chain, node);
  }
  return value;
}

}  // namespace

std::vector<Topology> topologies() {
  return {{"line_10", 1, 10},
          {"line_100", 1, 100},
          {"line_1025", 1, 1025},
          {"chains_4x10", 4, 10},
          {"chains_4x100", 4, 100}};
}

Work::Work(const Topology& topology)
    : topology_(topology),
      streams_(static_cast<std::size_t>(topology.chains)),
      joined_(static_cast<std::size_t>(topology.chains - 1)) {
  for (cudaStream_t& stream : streams_) DEMO_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  DEMO_CUDA(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming));
  for (cudaEvent_t& event : joined_) DEMO_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  void* values = nullptr;
  DEMO_CUDA(cudaMalloc(&values, streams_.size() * sizeof(values_[0])));
  values_ = static_cast<std::uint32_t*>(values);
}

Work::~Work() {
  DEMO_CUDA(cudaFree(values_));
  for (cudaEvent_t event : joined_) DEMO_CUDA(cudaEventDestroy(event));
  DEMO_CUDA(cudaEventDestroy(forked_));
  for (cudaStream_t stream : streams_) DEMO_CUDA(cudaStreamDestroy(stream));
}

void Work::launch(int chain, int node) const {
  std::uint32_t* value = values_ + chain;
  std::uint32_t with = salt(chain, node);
  void* arguments[] = {&value, &with};
  DEMO_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(&mix), dim3(1), dim3(1), arguments, 0,
                             streams_[static_cast<std::size_t>(chain)]));
}

void Work::enqueue() const {
  if (topology_.chains > 1) DEMO_CUDA(cudaEventRecord(forked_, streams_[0]));
  for (std::size_t i = 1; i < streams_.size(); ++i) DEMO_CUDA(cudaStreamWaitEvent(streams_[i], forked_, 0));
  for (int chain = 0; chain < topology_.chains; ++chain) {
    for (int node = 0; node < topology_.length; ++node) launch(chain, node);
  }
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    DEMO_CUDA(cudaEventRecord(joined_[i - 1], streams_[i]));
    DEMO_CUDA(cudaStreamWaitEvent(streams_[0], joined_[i - 1], 0));
  }
}

void Work::synchronize() const { DEMO_CUDA(cudaStreamSynchronize(streams_[0])); }

void Work::clear() const {
  DEMO_CUDA(cudaMemsetAsync(values_, 0, streams_.size() * sizeof(values_[0]), streams_[0]));
  synchronize();
}

bool Work::equals(int runs, const std::string& way) const {
  std::vector<std::uint32_t> values(streams_.size());
  DEMO_CUDA(cudaMemcpy(values.data(), values_, values.size() * sizeof(values[0]), cudaMemcpyDeviceToHost));
  for (int chain = 0; chain < topology_.chains; ++chain) {
    const std::uint32_t value = values[static_cast<std::size_t>(chain)];
    const std::uint32_t reference = expected(chain, topology_.length, runs);
    if (value == reference) continue;
    absl::FPrintF(stderr, "%s, %s: chain %d left %08x, the host reference %08x\n", topology_.name, way, chain, value,
                  reference);
    return false;
  }
  return true;
}

}  // namespace demo
