// Failures of Recorder::write(), and what it leaves. On hostrt.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "graphcache/status.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {
namespace {

class WriteFailuresTest : public testing::Test {
 protected:
  void SetUp() override { hostrt::reset(); }
  void TearDown() override {
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    CUDA_OK(cudaPeekAtLastError());
    hostrt::reset();
  }

  // data = 3 * data + value
  static absl::StatusOr<Outcome> run(Cache& cache, const Key& key, cudaStream_t stream, int* data, int* memory,
                                     int value) {
    return cache.run(key, stream, params(data, value), [memory](Recorder& rec, Slot<int*> p, Slot<int> v) {
      rec.write(memory, v);
      rec.launch(blend_in, {1, 1}, p, memory, 1, 3);
    });
  }
};

// Memory of the caller's belongs to the key: its executables share it. So a caller orders the runs of a key that write.
TEST_F(WriteFailuresTest, AKeyEvictedInFlightIsRestoredAndItsRunsOfOneStreamAreInOrder) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdatesAcross, Sharing::kTable}) {
    Options options;
    options.max_executables = 1;
    force(&options, sharing);
    Cache cache(options);
    Stream stream;
    DeviceBuffer<int> a(1, 1), c(1, 1), memory(1);
    EXPECT_RUN(kInstantiated, run(cache, key("k"), stream, a.get(), memory.get(), 5));
    hostrt::hold(stream);
    EXPECT_RUN(kPatched, run(cache, key("k"), stream, a.get(), memory.get(), 7));
    EXPECT_RUN(kInstantiated, cache.run(key("other"), stream, [&](Recorder& rec) {
      rec.launch(blend, {1, 1}, c.get(), 1, 1, 1);  // another topology, so no sibling returns the executable
    }));
    EXPECT_RUN(kRestored, run(cache, key("k"), stream, a.get(), memory.get(), 11));
    EXPECT_EQ(cache.stats().captures, 2u);
    hostrt::release(stream);
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(a.first(), 3 * (3 * (3 * 1 + 5) + 7) + 11);
    EXPECT_EQ(c.first(), 1 + 1);
    EXPECT_EQ(memory.first(), 11);
  }
}

TEST_F(WriteFailuresTest, AFailedCallIsReportedAndTriedAgain) {
  for (const int executables : {0, 8}) {
    for (const char* const function : {"cudaLibraryLoadData", "cudaLibraryGetKernel", "cudaLaunchKernel"}) {
      for (const std::size_t bytes : {4u, 64u}) {
        hostrt::reset();
        Options options;
        options.max_executables = executables;
        options.on_capture_failure = OnCaptureFailure::kReturnError;
        Cache cache(options);
        Stream stream;
        DeviceBuffer<int> memory(16, 1);
        struct Many {
          int values[16];
        };
        const auto write = [&](int value) {
          const auto run_with = [&](auto v) {
            return cache.run(key("k"), stream, params(v), [&](Recorder& rec, Slot<decltype(v)> slot) {
              rec.write(reinterpret_cast<decltype(v)*>(memory.get()), slot);
            });
          };
          return bytes == 4 ? run_with(value) : run_with(Many{{value}});
        };
        hostrt::fail_call(function, 1, cudaErrorMemoryAllocation);
        const auto outcome = write(5);
        ASSERT_FALSE(outcome.ok()) << function;
        EXPECT_EQ(cuda_error(outcome.status()), cudaErrorMemoryAllocation);
        EXPECT_TRUE(mentions(outcome.status(), function)) << outcome.status();
        EXPECT_EQ(mentions(outcome.status(), "Recorder::write"), function != std::string("cudaLaunchKernel"))
            << outcome.status();
        EXPECT_EQ(memory.first(), 1);
        EXPECT_TRUE(did(executables == 0 ? Outcome::kEager : Outcome::kInstantiated, write(6)));
        EXPECT_EQ(memory.first(), 6);
      }
    }
  }
}

// With the default, the run then calls fn directly, which writes.
TEST_F(WriteFailuresTest, AFailureUnderCaptureMakesTheRunDirect) {
  Cache cache;
  Stream stream;
  DeviceBuffer<int> data(1, 1), memory(1);
  hostrt::fail_call("cudaLibraryLoadData", 1, cudaErrorMemoryAllocation);
  EXPECT_RUN(kEager, run(cache, key("k"), stream, data.get(), memory.get(), 5));
  EXPECT_EQ(data.first(), 3 + 5);
  EXPECT_EQ(cache.stats().eager(EagerReason::kCaptureFailed), 1u);
  EXPECT_NE(cache.entries()[0].error.find("Recorder::write, cudaLibraryLoadData"), std::string::npos)
      << cache.entries()[0].error;
}

// A patch that fails does not write the value of another run.
TEST_F(WriteFailuresTest, APatchThatFailsMakesTheRunDirectWithItsValue) {
  Cache cache;
  Stream stream;
  DeviceBuffer<int> data(1, 1), memory(1);
  EXPECT_RUN(kInstantiated, run(cache, key("k"), stream, data.get(), memory.get(), 5));
  hostrt::fail_call("cudaGraphExecKernelNodeSetParams", 1, cudaErrorInvalidValue);
  EXPECT_TRUE(run(cache, key("k"), stream, data.get(), memory.get(), 6).ok());
  EXPECT_EQ(data.first(), 3 * (3 + 5) + 6);
  EXPECT_EQ(memory.first(), 6);
}

TEST_F(WriteFailuresTest, AFatalErrorOfAWriteEndsTheCache) {
  Cache cache;
  Stream stream;
  DeviceBuffer<int> data(1, 1), memory(1);
  hostrt::fail_call("cudaLibraryLoadData", 1, cudaErrorIllegalAddress);
  const auto outcome = run(cache, key("k"), stream, data.get(), memory.get(), 5);
  EXPECT_EQ(cuda_error(outcome.status()), cudaErrorIllegalAddress) << outcome.status();
  EXPECT_EQ(cuda_error(cache.status()), cudaErrorIllegalAddress) << cache.status();
  hostrt::clear_failures();
}

// The library allocates nothing for a write, and its code goes with the cache.
TEST_F(WriteFailuresTest, WritesAllocateNoDeviceMemory) {
  Stream stream;
  DeviceBuffer<int> data(1, 1), memory(1);
  {
    Options options;
    options.max_executables = 1;
    options.max_templates = 0;
    force(&options, Sharing::kNever);
    std::optional<Cache> cache(options);
    EXPECT_TRUE(run(*cache, key("k"), stream, data.get(), memory.get(), 0).ok());
    const hostrt::Ledger before = hostrt::ledger();
    for (int i = 1; i < 40; ++i) EXPECT_TRUE(run(*cache, key("k", i), stream, data.get(), memory.get(), i).ok());
    EXPECT_EQ(hostrt::ledger().allocations, before.allocations);
    options.max_executables = 0;
    cache.emplace(options);
    for (int i = 1; i < 4; ++i) EXPECT_RUN(kEager, run(*cache, key("k"), stream, data.get(), memory.get(), i));
    EXPECT_EQ(hostrt::ledger().allocations, before.allocations);
  }
  const hostrt::Ledger after = hostrt::ledger();
  EXPECT_EQ(after.allocations, 2u);
  EXPECT_EQ(after.executables + after.graphs, 0u);
}

// A cache that ends inside another one's capture leaves launches in flight behind, which still run the kernel of
// writes.
TEST_F(WriteFailuresTest, TheCodeOfWritesOutlivesTheLaunchesOfACacheThatHasEnded) {
  Cache cache;
  std::optional<Cache> ends(std::in_place);
  Stream stream, other;
  DeviceBuffer<int> data(1, 1), memory(1);
  EXPECT_RUN(kInstantiated, run(*ends, key("k"), stream, data.get(), memory.get(), 5));
  hostrt::hold(stream);
  EXPECT_RUN(kPatched, run(*ends, key("k"), stream, data.get(), memory.get(), 7));
  const std::uint64_t unloaded = hostrt::calls("cudaLibraryUnload");
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), other, [&](cudaStream_t on) {
    ends.reset();
    return launch(do_nothing, 1, 1, on);
  }));
  EXPECT_EQ(hostrt::calls("cudaLibraryUnload"), unloaded);
  CUDA_OK(hostrt::release(stream));
  EXPECT_EQ(data.first(), 3 * (3 * 1 + 5) + 7);
  CUDA_OK(cudaDeviceSynchronize());
  for (int i = 0; i < 2; ++i) cache.erase(key("nothing"));
  EXPECT_EQ(hostrt::calls("cudaLibraryUnload"), unloaded + 1);
}

// Device memory of updater nodes.
TEST_F(WriteFailuresTest, DeviceMemoryThatWasGivenBackIsFreedByAnErase) {
  Options options;
  force(Patching::kDeviceUpdated);
  force(&options, Sharing::kNever);
  Cache cache(options);
  Stream stream;
  DeviceBuffer<int> data(1, 1), memory(1);
  const std::size_t before = hostrt::ledger().allocations;
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(run(cache, key("k", i), stream, data.get(), memory.get(), i).ok());
  EXPECT_GT(hostrt::ledger().allocations, before);
  CUDA_OK(cudaDeviceSynchronize());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(cache.erase(key("k", i)));
  EXPECT_EQ(hostrt::ledger().allocations, before);
}

// A copy may still write to the memory of an updater node that could not be used. The memory is not reused, although no
// launch uses it.
TEST_F(WriteFailuresTest, MemoryThatACopyWillFillIsNotUsedAgain) {
  Options options;
  options.max_executables = 1;
  force(&options, Sharing::kTable);
  Cache cache(options), other(options);
  Stream first, second;
  DeviceBuffer<int> a(64, 1), b(64, 1);
  const auto run_member = [&](Cache& of, cudaStream_t on, int* data, int which) {
    return of.run(key("member", which), on, [&, data, which](Recorder& rec) {
      rec.launch(blend, {static_cast<unsigned>(1 + which), 8}, data, 64, 3 + which, which);
    });
  };
  hostrt::hold(first);
  hostrt::fail_call("cudaGraphInstantiate", 2, cudaErrorUnknown);  // after the instantiation that probes grids
  const std::uint64_t freed = hostrt::calls("cudaFree");
  EXPECT_RUN(kInstantiated, run_member(cache, first, a.get(), 1));
  EXPECT_EQ(cache.stats().refused_device_updates, 1u);
  EXPECT_EQ(hostrt::calls("cudaFree"), freed) << "a cudaFree would wait for the stream that is held";
  for (const int which : {0, 1}) EXPECT_TRUE(run_member(other, second, b.get(), which).ok());
  hostrt::release(first);
  CUDA_OK(cudaDeviceSynchronize());
  std::vector<int> wanted(64, 1);
  const auto blended = [&](int which) {
    for (int i = 0; i < 8 * (1 + which); ++i) wanted[i] = (3 + which) * wanted[i] + which + i;
  };
  for (const int which : {0, 1}) blended(which);
  for (const int which : {0, 1, 0}) {
    EXPECT_RUN(kSwitched, run_member(other, second, b.get(), which));
    blended(which);
  }
  EXPECT_EQ(b.read(), wanted);
  EXPECT_EQ(other.stats().refused_device_updates, 0u);
}

}  // namespace
}  // namespace graphcache::test
