// Values that device code writes into the nodes of an executable, and when they are lost. Only what hostrt can show.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <device_launch_parameters.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <thread>

#include "exec/updater.h"
#include "graphcache/hostrt.h"
#include "hostrt_support.h"

namespace graphcache::test {
namespace {

struct Seen {
  unsigned grid;
  unsigned blocks;
  int value;
};

void see_launch(Seen* seen, int value) { *seen = {gridDim.x, seen->blocks + 1, value}; }

}  // namespace
}  // namespace graphcache::test

GRAPHCACHE_HOST_KERNEL(graphcache::test::see_launch)

namespace graphcache::test {
namespace {

// An executable with a kernel of two blocks that records its launch, and an updater before all other nodes that writes
// the kernel's grid and argument.
class HostrtUpdates : public HostrtLogTest {
 protected:
  static constexpr unsigned kGrid = 2;
  static constexpr int kValue = 100;

  // `beside` enqueues the graph's other nodes.
  void build(unsigned long long flags = 0, const std::function<void()>& beside = {}) {
    const cudaGraph_t graph = capture([&] {
      EXPECT_EQ(cudaSuccess, test::launch(see_launch, kGrid, 1, stream_, &seen_, kValue));
      if (beside) beside();
    });
    node_ = nodes_of(graph)[0];
    cudaLaunchAttributeValue updatable;
    std::memset(&updatable, 0, sizeof updatable);
    updatable.deviceUpdatableKernelNode.deviceUpdatable = 1;
    OK(cudaGraphKernelNodeSetAttribute(node_, cudaLaunchAttributeDeviceUpdatableKernelNode, &updatable));
    const cudaGraphDeviceNode_t on_device = updatable.deviceUpdatableKernelNode.devNode;
    pieces_[0] = {on_device, updater::kGrid, sizeof(dim3), 0, 1};
    pieces_[1] = {on_device, sizeof(Seen*), sizeof(int), 1, 1};
    written_ = {};
    values_ = {};
    values_.plan = {pieces_, updates_, nullptr, &written_, &device_error_, 2};

    cudaGraphNode_t root = nullptr;
    std::size_t count = 1;
    OK(cudaGraphGetRootNodes(graph, &root, &count));
    OK(cudaGraphAddKernelNode(&updater_, graph, nullptr, 0, updater_params().get()));
#if CUDART_VERSION >= 13000
    OK(cudaGraphAddDependencies(graph, &updater_, &root, nullptr, 1));
#else
    OK(cudaGraphAddDependencies(graph, &updater_, &root, 1));
#endif
    executable_ = instantiate(graph, flags);
    seen_ = {};
    device_error_ = 0;
    value_ = kValue;
  }

  // Sets what the next launch writes.
  void write(unsigned grid, int value) {
    const dim3 written(grid);
    std::memcpy(values_.bytes, &written, sizeof written);
    std::memcpy(values_.bytes + sizeof written, &value, sizeof value);
    ++values_.token;
    value_ = value;
    OK(cudaGraphExecKernelNodeSetParams(executable_, updater_, updater_params().get()));
  }

  void launch(cudaStream_t stream) {
    seen_.blocks = 0;
    OK(cudaGraphLaunch(executable_, stream));
  }

  // A launch on a stream. `grid` is the grid to be written, or 0. The rest is what is observed: the grid, and the
  // number of blocks that ran.
  struct Step {
    cudaStream_t stream;
    unsigned written, grid, blocks;
  };
  void expect(std::initializer_list<Step> steps) {
    int step = 0;
    for (const Step& wanted : steps) {
      SCOPED_TRACE(++step);
      if (wanted.written != 0) write(wanted.written, value_ + 1);
      launch(wanted.stream);
      OK(cudaDeviceSynchronize());
      EXPECT_EQ(wanted.grid, seen_.grid);
      EXPECT_EQ(wanted.blocks, seen_.blocks);
      EXPECT_EQ(value_, seen_.value);
      EXPECT_EQ(0, device_error_);
    }
  }

  static cudaStream_t with_priority(int priority, unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaSuccess, cudaStreamCreateWithPriority(&stream, flags, priority));
    return stream;
  }

  // How often, over many seeds, the writes of the first launch arrived, were refused, and were lost. The second launch
  // must always be right.
  enum Fate { kArrived, kRefused, kLost };
  static constexpr int kSeeds = 400;
  std::map<Fate, int> fates(const std::function<void()>& beside, const std::function<void()>& upload) {
    std::map<Fate, int> all;
    for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
      hostrt::reset();
      hostrt::defer(seed);
      create_streams();
      build(0, beside);
      upload();
      write(3, 7);
      launch(stream_);
      EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
      const bool arrived = seen_.grid == 3 && seen_.blocks == 3 && seen_.value == 7;
      if (!arrived) {
        EXPECT_EQ(kGrid, seen_.grid);
        EXPECT_EQ(kGrid, seen_.blocks);
        EXPECT_EQ(kValue, seen_.value);
      }
      ++all[arrived ? kArrived : device_error_ != 0 ? kRefused : kLost];
      EXPECT_EQ(!arrived && device_error_ != 0 ? cudaErrorInvalidValue : cudaSuccess, device_error_);
      device_error_ = 0;
      expect({{stream_, 4, 4, 4}});
    }
    return all;
  }
  void expect_right(const std::function<void()>& beside, const std::function<void()>& upload) {
    EXPECT_EQ((std::map<Fate, int>{{kArrived, kSeeds}}), fates(beside, upload));
  }
  void expect_doubtful(const std::function<void()>& beside, const std::function<void()>& upload) {
    std::map<Fate, int> all = fates(beside, upload);
    EXPECT_NEAR(kSeeds / 2, all[kArrived], kSeeds / 8);
    EXPECT_NEAR(kSeeds / 4, all[kRefused], kSeeds / 8);
    EXPECT_NEAR(kSeeds / 4, all[kLost], kSeeds / 8);
  }

  // For build(): nodes beside the kernel, and nodes after it.
  void fork() {
    int* const log = log_;
    EXPECT_EQ(cudaSuccess, cudaEventRecord(event_, stream_));
    EXPECT_EQ(cudaSuccess, cudaStreamWaitEvent(other_, event_, 0));
    EXPECT_EQ(cudaSuccess, cudaMemsetAsync(log, 1, 4, other_));
    EXPECT_EQ(cudaSuccess, cudaMemsetAsync(log + 1, 1, 4, stream_));
    EXPECT_EQ(cudaSuccess, cudaEventRecord(event_, other_));
    EXPECT_EQ(cudaSuccess, cudaStreamWaitEvent(stream_, event_, 0));
  }
  void chain() {
    EXPECT_EQ(cudaSuccess, cudaMemsetAsync(log_, 1, 4, stream_));
    EXPECT_EQ(cudaSuccess, cudaMemsetAsync(log_ + 1, 1, 4, stream_));
  }

  void upload(cudaStream_t stream) { EXPECT_EQ(cudaSuccess, cudaGraphUpload(executable_, stream)); }

  void patch(unsigned grid) {
    value_ = kValue;
    const Params patched(see_launch, grid, 1, &seen_, kValue);
    OK(cudaGraphExecKernelNodeSetParams(executable_, node_, patched.get()));
  }

  cudaGraphExec_t executable_ = nullptr;
  cudaGraphNode_t node_ = nullptr;
  Seen seen_ = {};
  int device_error_ = 0;
  int value_ = 0;  // the value that the kernel should see

 private:
  // Any loaded library has these kernels.
  Params<updater::Values<updater::kSmall>> updater_params() {
    const auto load = driver_function<CUresult (*)(CUlibrary*, const void*, CUjit_option*, void**, unsigned,
                                                   CUlibraryOption*, void**, unsigned)>("cuLibraryLoadData");
    const auto get = driver_function<CUresult (*)(CUkernel*, CUlibrary, const char*)>("cuLibraryGetKernel");
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, load(&library, "any", nullptr, nullptr, 0, nullptr, nullptr, 0));
    EXPECT_EQ(CUDA_SUCCESS, get(&kernel, library, updater::kSmallName));
    using Kernel = void (*)(updater::Values<updater::kSmall>);
    return {reinterpret_cast<Kernel>(kernel), 1, updater::kThreads, values_};
  }

  const updater::Update updates_[2] = {{0, updater::kGrid, sizeof(dim3)}, {sizeof(dim3), sizeof(Seen*), sizeof(int)}};
  updater::Piece pieces_[2] = {};
  updater::Written written_ = {};
  updater::Values<updater::kSmall> values_ = {};
  cudaGraphNode_t updater_ = nullptr;
};

// These sequences were measured on a GPU (docs/semantics.md).
TEST_F(HostrtUpdates, AGridThatTheDeviceWroteIsLostAtAnotherPriority) {
  const cudaStream_t low = with_priority(0), high = with_priority(-5);
  build();
  expect({{low, 0, 2, 2},
          {low, 3, 3, 3},
          {low, 0, 3, 3},
          {high, 0, 3, 2},
          {high, 0, 3, 2},
          {low, 0, 3, 2},
          {high, 5, 5, 5},
          {high, 0, 5, 5},
          {low, 0, 5, 2},
          {low, 7, 7, 7},
          {high, 0, 7, 2},
          {high, 9, 9, 9},
          {low, 11, 11, 11},
          {low, 0, 11, 11}});
}

TEST_F(HostrtUpdates, NothingIsLostUnderUseNodePriorityOrAtOnePriority) {
  const cudaStream_t low = with_priority(0), high = with_priority(-5);
  build(cudaGraphInstantiateFlagUseNodePriority);
  expect({{low, 3, 3, 3}, {high, 0, 3, 3}, {low, 0, 3, 3}, {high, 5, 5, 5}, {low, 0, 5, 5}});
  build();
  const cudaStream_t blocking = with_priority(0, cudaStreamDefault);
  expect({{low, 3, 3, 3},
          {blocking, 0, 3, 3},
          {cudaStreamPerThread, 0, 3, 3},
          {nullptr, 0, 3, 3},
          {stream_, 0, 3, 3},
          {high, 0, 3, 2}});
}

TEST_F(HostrtUpdates, ALostGridIsReplacedByTheHosts) {
  const cudaStream_t low = with_priority(0), high = with_priority(-5);
  build();
  patch(4);
  expect({{low, 0, 4, 4}, {high, 0, 4, 4}, {high, 3, 3, 3}, {low, 0, 3, 4}});
  patch(6);
  expect({{low, 0, 6, 6}, {high, 0, 6, 6}});
}

TEST_F(HostrtUpdates, ItIsTheOrderOfTheLaunchesThatCounts) {
  const cudaStream_t low = with_priority(0), high = with_priority(-5);
  build();
  hostrt::hold(low);
  write(3, 7);
  launch(low);
  launch(high);  // runs after the other launch, which writes the grid when it runs
  OK(hostrt::release(low));
  OK(cudaDeviceSynchronize());
  EXPECT_EQ(3u, seen_.grid);
  EXPECT_EQ(5u, seen_.blocks);  // 3 of the first launch, 2 of the second
  expect({{high, 0, 3, 2}, {high, 4, 4, 4}});
}

// ---- Uploads ----

TEST_F(HostrtUpdates, WithoutDeferralNoUploadIsLate) {
  build(0, [this] { fork(); });
  expect({{stream_, 3, 3, 3}});
}

TEST_F(HostrtUpdates, AnUploadThatWasNotAwaitedMayBeTooLate) {
  const auto forked = [this] { fork(); };
  expect_doubtful(forked, [this] { upload(stream_); });
  expect_doubtful(forked, [this] { upload(other_); });
  expect_doubtful(forked, [this] {
    OK(cudaStreamSynchronize(stream_));
    upload(stream_);
    upload(stream_);
  });
  expect_doubtful(forked, [this] {  // the host must wait, and for the right stream and event
    OK(cudaEventRecord(event_, other_));
    upload(other_);
    OK(cudaEventSynchronize(event_));
    OK(cudaEventRecord(event_, other_));
    OK(cudaStreamWaitEvent(stream_, event_, 0));
  });
  expect_doubtful(forked, [] {});
  expect_doubtful([this] { chain(); }, [] {});
}

TEST_F(HostrtUpdates, AnUploadThatTheHostAwaitedIsDone) {
  const std::function<void()> waits[] = {
      [this] { OK(cudaStreamSynchronize(other_)); },
      [] { OK(cudaDeviceSynchronize()); },
      [this] {
        OK(cudaEventRecord(event_, other_));
        OK(cudaEventSynchronize(event_));
      },
      [this] { std::thread([this] { OK(cudaStreamSynchronize(other_)); }).join(); },
  };
  for (const auto& wait : waits) {
    SCOPED_TRACE(&wait - waits);
    expect_right([this] { fork(); }, [&] { upload(other_), wait(); });
  }
  expect_right([this] { fork(); },
               [this] {  // the legacy stream waits for blocking ones
                 const cudaStream_t blocking = with_priority(0, cudaStreamDefault);
                 upload(blocking);
                 OK(cudaStreamSynchronize(nullptr));
               });
  expect_right([this] { chain(); }, [this] { upload(stream_); });
}

}  // namespace
}  // namespace graphcache::test
