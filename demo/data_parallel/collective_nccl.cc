// NCCL. The program loads it when there are several ranks, instead of being linked with it, so that it starts on
// machines without NCCL. If nccl.h was missing at build time, it trains on one device.
#include <absl/strings/str_format.h>

#include <cstdlib>

#include "../support.h"
#include "collective.h"

#if __has_include(<nccl.h>)

#include <dlfcn.h>
#include <nccl.h>

namespace demo {
namespace {

[[noreturn]] void fail(const char* what, const char* why) {
  absl::FPrintF(stderr, "%s: %s\n", what, why);
  std::exit(1);
}

// The NCCL functions that this demo uses.
struct Nccl {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRank) comm_init_rank;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclGetErrorString) error_string;

  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess) fail(call, error_string(result));
  }
};

template <class Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) fail(name, dlerror());
}

Nccl load() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW);
  if (library == nullptr) fail("NCCL cannot be loaded", dlerror());
  Nccl nccl{};
  find(library, "ncclGetUniqueId", &nccl.get_unique_id);
  find(library, "ncclCommInitRank", &nccl.comm_init_rank);
  find(library, "ncclCommDestroy", &nccl.comm_destroy);
  find(library, "ncclGroupStart", &nccl.group_start);
  find(library, "ncclGroupEnd", &nccl.group_end);
  find(library, "ncclAllReduce", &nccl.all_reduce);
  find(library, "ncclAllGather", &nccl.all_gather);
  find(library, "ncclGetErrorString", &nccl.error_string);
  return nccl;
}

const Nccl& nccl() {
  static const Nccl loaded = load();
  return loaded;
}

#define DEMO_NCCL(function, ...) nccl().check(nccl().function(__VA_ARGS__), #function)

class NcclCollective : public Collective {
 public:
  explicit NcclCollective(Ranks& ranks) : numbers_(static_cast<std::size_t>(ranks.count()) + 1) {
    ncclUniqueId id{};
    if (ranks.rank() == 0) DEMO_NCCL(get_unique_id, &id);
    DEMO_NCCL(comm_init_rank, &comm_, ranks.count(), ranks.gather(id)[0], ranks.rank());
    void* memory = nullptr;
    DEMO_CUDA(cudaMalloc(&memory, numbers_.size() * sizeof(std::uint64_t)));
    on_device_ = static_cast<std::uint64_t*>(memory);
  }

  // Waits until all graphs that contain its work have been destroyed.
  ~NcclCollective() override {
    DEMO_CUDA(cudaFree(on_device_));
    DEMO_NCCL(comm_destroy, comm_);
  }
  NcclCollective(const NcclCollective&) = delete;
  NcclCollective& operator=(const NcclCollective&) = delete;

  // Grouped into one kernel.
  void average(float* gradient, int count, const float* loss, float* mean_loss, cudaStream_t stream) override {
    DEMO_NCCL(group_start);
    DEMO_NCCL(all_reduce, gradient, gradient, static_cast<std::size_t>(count), ncclFloat, ncclAvg, comm_, stream);
    DEMO_NCCL(all_reduce, loss, mean_loss, 1, ncclFloat, ncclAvg, comm_, stream);
    DEMO_NCCL(group_end);
  }

  std::vector<std::uint64_t> gather(std::uint64_t mine, cudaStream_t stream) override {
    const std::size_t bytes = numbers_.size() * sizeof(std::uint64_t);
    numbers_.back() = mine;
    std::uint64_t* const own = on_device_ + numbers_.size() - 1;
    DEMO_CUDA(cudaMemcpyAsync(own, &numbers_.back(), sizeof mine, cudaMemcpyHostToDevice, stream));
    DEMO_NCCL(all_gather, own, on_device_, 1, ncclUint64, comm_, stream);
    DEMO_CUDA(cudaMemcpyAsync(numbers_.data(), on_device_, bytes, cudaMemcpyDeviceToHost, stream));
    DEMO_CUDA(cudaStreamSynchronize(stream));
    return {numbers_.begin(), numbers_.end() - 1};
  }

 private:
  ncclComm_t comm_ = nullptr;
  std::vector<std::uint64_t> numbers_;  // those of all ranks, then this rank's own
  std::uint64_t* on_device_ = nullptr;
};

}  // namespace

std::unique_ptr<Collective> make_collective(Ranks& ranks) { return std::make_unique<NcclCollective>(ranks); }

}  // namespace demo

#else

namespace demo {

std::unique_ptr<Collective> make_collective(Ranks&) {
  absl::FPrintF(stderr, "this program was built without NCCL (nccl.h): one rank alone can train, --ranks 1\n");
  std::exit(2);
}

}  // namespace demo

#endif
