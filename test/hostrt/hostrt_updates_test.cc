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
#include "hostrt_support.h"

namespace graphcache::test {
namespace {

struct Seen {
  unsigned grid;
  unsigned blocks;
  int value;
};

void see_launch(Seen* seen, int value) { *seen = {gridDim.x, seen->blocks + 1, value}; }
GRAPHCACHE_HOST_KERNEL(see_launch)

struct Bytes {
  unsigned char v[64];
};

void see_bytes(Bytes value, Bytes* seen) { *seen = value; }
GRAPHCACHE_HOST_KERNEL(see_bytes)

using UpdaterValues = updater::Values<updater::kSmall>;

// The library's updater with these values.
Params<UpdaterValues> updater_params(const UpdaterValues& values) {
  const CUkernel kernel = library_kernel(updater::kSmallName);
  return {reinterpret_cast<void (*)(UpdaterValues)>(kernel), 1, updater::kThreads, values};
}

// Adds the updater before the graph's only root.
cudaGraphNode_t add_updater(cudaGraph_t graph, const UpdaterValues& values) {
  cudaGraphNode_t root = nullptr, updater = nullptr;
  std::size_t count = 1;
  GIVES(cudaSuccess, cudaGraphGetRootNodes(graph, &root, &count));
  GIVES(cudaSuccess, cudaGraphAddKernelNode(&updater, graph, nullptr, 0, updater_params(values).get()));
  GIVES(cudaSuccess, add_dependency(graph, updater, root));
  return updater;
}

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
    const cudaGraphDeviceNode_t on_device = test::on_device(node_);
    pieces_[0] = {on_device, updater::kGrid, sizeof(dim3), 0, 1};
    pieces_[1] = {on_device, sizeof(Seen*), sizeof(int), 1, 1};
    written_ = {};
    values_ = {};
    values_.plan = {pieces_, updates_, nullptr, &written_, &device_error_, 2};

    updater_ = add_updater(graph, values_);
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
    OK(cudaGraphExecKernelNodeSetParams(executable_, updater_, updater_params(values_).get()));
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
      begin(seed);
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
  const updater::Update updates_[2] = {{0, updater::kGrid, sizeof(dim3)}, {sizeof(dim3), sizeof(Seen*), sizeof(int)}};
  updater::Piece pieces_[2] = {};
  updater::Written written_ = {};
  UpdaterValues values_ = {};
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

// ---- Alignment: "What a kernel writes into nodes" in docs/semantics.md ----

// Launches a kernel whose parameter is all zero except the bytes that the updater writes.
class HostrtWrites : public HostrtTest {
 protected:
  static constexpr unsigned kOffsets[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24};
  static constexpr unsigned kSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 31, 32, 33, 40};
  static constexpr unsigned kUnit = 8;

  // `at` is the value's residue modulo 8.
  cudaError_t write(unsigned offset, unsigned size, unsigned at) {
    hostrt::reset();
    GIVES(cudaSuccess, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    seen_ = {};
    device_error_ = 0;
    const cudaGraph_t graph =
        capture([&] { GIVES(cudaSuccess, test::launch(see_bytes, 1, 1, stream_, Bytes{}, &seen_)); });
    piece_ = {on_device(nodes_of(graph)[0]), offset, size, 0, 1};
    update_ = {at, offset, size};
    written_ = {};
    UpdaterValues values = {};
    values.plan = {&piece_, &update_, nullptr, &written_, &device_error_, 1};
    values.token = 1;
    for (unsigned i = 0; i < size; ++i) values.bytes[at + i] = byte(i);
    add_updater(graph, values);
    const cudaError_t error = cudaGraphLaunch(instantiate(graph), stream_);
    return error != cudaSuccess ? error : cudaStreamSynchronize(stream_);
  }
  static unsigned char byte(unsigned i) { return static_cast<unsigned char>(i + 1); }

  Bytes seen_ = {};
  int device_error_ = 0;

 private:
  updater::Piece piece_ = {};
  updater::Update update_ = {};
  updater::Written written_ = {};
};

TEST_F(HostrtWrites, AValueMustBeAlignedToThePowerOfTwoThatDividesOffsetAndSize) {
  unsigned right = 0, misaligned = 0;
  for (const unsigned offset : kOffsets) {
    for (const unsigned size : kSizes) {
      unsigned unit = kUnit;
      while (offset % unit != 0 || size % unit != 0) unit /= 2;
      for (unsigned at = 0; at < kUnit; ++at) {
        SCOPED_TRACE(testing::Message() << "offset " << offset << ", size " << size << ", value at " << at);
        if (at % unit != 0) {
          GIVES(cudaErrorMisalignedAddress, write(offset, size, at));
          ++misaligned;
          continue;
        }
        GIVES(cudaSuccess, write(offset, size, at));
        EXPECT_EQ(0, device_error_);
        for (unsigned i = 0; i < sizeof seen_; ++i) {
          ASSERT_EQ(i - offset < size ? byte(i - offset) : 0, seen_.v[i]) << "byte " << i;
        }
        ++right;
      }
    }
  }
  EXPECT_EQ(1152u, right);
  EXPECT_EQ(480u, misaligned);
}

// As for a device, whose context is lost.
TEST_F(HostrtWrites, AMisalignedValueIsLastingAndIsWrittenNowhere) {
  GIVES(cudaErrorMisalignedAddress, write(8, 8, 4));
  for (const unsigned char one : seen_.v) EXPECT_EQ(0, one);
  EXPECT_EQ(0, device_error_);
  GIVES(cudaErrorMisalignedAddress, cudaDeviceSynchronize());
  void* memory = nullptr;
  GIVES(cudaErrorMisalignedAddress, cudaMalloc(&memory, 8));
}

TEST_F(HostrtWrites, AMisalignedGridIsAMisalignedAddress) {
  GIVES(cudaErrorMisalignedAddress, write(updater::kGrid, 3 * sizeof(unsigned), 2));
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
  expect_doubtful(forked, [this] {  // the host must wait, and for the stream
    upload(other_);
    OK(cudaEventRecord(event_, other_));
    OK(cudaEventSynchronize(event_));
    OK(cudaStreamWaitEvent(stream_, event_, 0));
  });
  expect_doubtful(forked, [] {});
  expect_doubtful([this] { chain(); }, [] {});
}

TEST_F(HostrtUpdates, AnUploadThatTheHostAwaitedIsDone) {
  const std::function<void()> waits[] = {
      [this] { OK(cudaStreamSynchronize(other_)); },
      [] { OK(cudaDeviceSynchronize()); },
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

// On a GPU the context may be lost, or never become idle (docs/semantics.md, "Executables in flight").
TEST_F(HostrtUpdates, AnExecutableIsNotDestroyedBehindAnUploadThatWasNotAwaited) {
  const auto destroy = [&](bool is_right, const std::function<void()>& beside, const std::function<void()>& between) {
    build(0, beside);
    upload(other_);
    between();
    OK(cudaGraphExecDestroy(executable_));
    if (!is_right) {
      expect_misuse("cudaGraphExecDestroy: an executable is destroyed behind an upload that the host did not wait for");
    }
    EXPECT_EQ(expected_misuses_, hostrt::misuses());
  };
  const auto forked = [this] { fork(); };
  destroy(false, forked, [] {});
  destroy(false, forked, [this] {
    OK(cudaEventRecord(event_, other_));
    OK(cudaEventSynchronize(event_));
    OK(cudaEventQuery(event_));
  });
  destroy(false, forked, [this] { OK(cudaStreamSynchronize(stream_)); });
  destroy(true, forked, [this] { OK(cudaStreamSynchronize(other_)); });
  destroy(true, forked, [] { OK(cudaDeviceSynchronize()); });
  destroy(true, forked, [this] { launch(stream_); });
  destroy(false, forked, [this] {
    launch(other_);
    upload(other_);
  });
  destroy(
      true, [this] { chain(); }, [] {});
}

}  // namespace
}  // namespace graphcache::test
