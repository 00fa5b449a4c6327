// Failures of Recorder::write(), and what it leaves. On hostrt.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "failing_calls.h"
#include "graph_support.h"

namespace graphcache::test {
namespace {

class WriteFailuresTest : public testing::Test {
 protected:
  void TearDown() override { CUDA_OK(cudaPeekAtLastError()); }

  // data = 3 * data + value
  absl::StatusOr<Outcome> run(Cache& cache, const Key& key, int value) {
    int* const to = memory.get();
    return cache.run(key, stream, params(data.get(), value), [to](Recorder& rec, Slot<int*> p, Slot<int> v) {
      rec.write(to, v);
      rec.launch(blend_in, {1, 1}, p, to, 1, 3);
    });
  }
  absl::StatusOr<Outcome> run(Cache& cache, int value) { return run(cache, key("k"), value); }

  FreshHostrt fresh;
  Stream stream;
  DeviceBuffer<int> data{1, 1}, memory{1};
};

// Memory of the caller's belongs to the key: its executables share it. So a caller orders the runs of a key that write.
TEST_F(WriteFailuresTest, AKeyEvictedInFlightIsRestoredAndItsRunsOfOneStreamAreInOrder) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdatesAcross, Sharing::kTable}) {
    SCOPED_TRACE(static_cast<int>(sharing));
    Cache cache(forced(sharing, 1));
    DeviceBuffer<int> c(1, 1);
    data.write({1});
    memory.write({0});
    EXPECT_RUN(kInstantiated, run(cache, 5));
    hostrt::hold(stream);
    EXPECT_RUN(kPatched, run(cache, 7));
    EXPECT_RUN(kInstantiated, cache.run(key("other"), stream, [&](Recorder& rec) {
      rec.launch(blend, {1, 1}, c.get(), 1, 1, 1);  // another topology, so no sibling returns the executable
    }));
    EXPECT_RUN(kRestored, run(cache, 11));
    EXPECT_EQ(cache.stats().captures, 2u);
    hostrt::release(stream);
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(data.first(), 3 * (3 * (3 * 1 + 5) + 7) + 11);
    EXPECT_EQ(c.first(), 1 + 1);
    EXPECT_EQ(memory.first(), 11);
  }
}

TEST_F(WriteFailuresTest, AFailedCallIsReportedAndTriedAgain) {
  struct Many {
    int values[16];
  };
  for (const int executables : {0, 8}) {
    for (const std::string function : {"LibraryLoadData", "LibraryGetKernel", "LaunchKernel"}) {
      for (const std::size_t bytes : {4u, 64u}) {
        SCOPED_TRACE(testing::Message() << executables << ", " << function << ", " << bytes);
        Cache cache({.max_executables = executables, .on_capture_failure = OnCaptureFailure::kReturnError});
        DeviceBuffer<int> to(16, 1);
        const auto write = [&](int value) {
          const auto run_with = [&](auto v) {
            return cache.run(key("k"), stream, params(v), [&](Recorder& rec, Slot<decltype(v)> slot) {
              rec.write(reinterpret_cast<decltype(v)*>(to.get()), slot);
            });
          };
          return bytes == 4 ? run_with(value) : run_with(Many{{value}});
        };
        hostrt::fail_call(("cuda" + function).c_str(), 1, cudaErrorMemoryAllocation);
        const absl::Status failed = write(5).status();
        EXPECT_EQ(cuda_error(failed), cudaErrorMemoryAllocation) << failed;
        EXPECT_TRUE(mentions(failed, "cu" + function)) << failed;
        EXPECT_EQ(mentions(failed, "Recorder::write"), function != "LaunchKernel") << failed;
        EXPECT_EQ(to.first(), 1);
        EXPECT_TRUE(did(executables == 0 ? Outcome::kEager : Outcome::kInstantiated, write(6)));
        EXPECT_EQ(to.first(), 6);
      }
    }
  }
}

// With the default, the run then calls fn directly, which writes.
TEST_F(WriteFailuresTest, AFailureUnderCaptureMakesTheRunDirect) {
  Cache cache;
  hostrt::fail_call("cudaLibraryLoadData", 1, cudaErrorMemoryAllocation);
  EXPECT_RUN(kEager, run(cache, 5));
  EXPECT_EQ(data.first(), 3 + 5);
  EXPECT_EQ(cache.stats().eager(EagerReason::kCaptureFailed), 1u);
  EXPECT_NE(cache.entries()[0].error.find("Recorder::write, cuLibraryLoadData"), std::string::npos)
      << cache.entries()[0].error;
}

// A patch that fails does not write the value of another run.
TEST_F(WriteFailuresTest, APatchThatFailsMakesTheRunDirectWithItsValue) {
  Cache cache;
  EXPECT_RUN(kInstantiated, run(cache, 5));
  hostrt::fail_call("cudaGraphExecKernelNodeSetParams", 1, cudaErrorInvalidValue);
  EXPECT_SUCCESS(run(cache, 6));
  EXPECT_EQ(data.first(), 3 * (3 + 5) + 6);
  EXPECT_EQ(memory.first(), 6);
}

TEST_F(WriteFailuresTest, AFatalErrorOfAWriteEndsTheCache) {
  Cache cache;
  hostrt::fail_call("cudaLibraryLoadData", 1, cudaErrorIllegalAddress);
  const absl::Status failed = run(cache, 5).status();
  EXPECT_EQ(cuda_error(failed), cudaErrorIllegalAddress) << failed;
  EXPECT_EQ(cuda_error(cache.status()), cudaErrorIllegalAddress) << cache.status();
  hostrt::clear_failures();
}

// The library allocates nothing for a write, and its code goes with the cache.
TEST_F(WriteFailuresTest, WritesAllocateNoDeviceMemory) {
  {
    Options options = unshared(1);
    options.max_templates = 0;
    std::optional<Cache> cache(options);
    EXPECT_SUCCESS(run(*cache, 0));
    const hostrt::Ledger before = hostrt::ledger();
    for (int i = 1; i < 40; ++i) EXPECT_SUCCESS(run(*cache, key("k", i), i));
    EXPECT_EQ(hostrt::ledger().allocations, before.allocations);
    options.max_executables = 0;
    cache.emplace(options);
    for (int i = 1; i < 4; ++i) EXPECT_RUN(kEager, run(*cache, i));
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
  Stream other;
  EXPECT_RUN(kInstantiated, run(*ends, 5));
  hostrt::hold(stream);
  EXPECT_RUN(kPatched, run(*ends, 7));
  const std::uint64_t unloaded = hostrt::calls("cudaLibraryUnload");
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), other, [&](cudaStream_t on) {
    ends.reset();
    EXPECT_EQ(hostrt::calls("cudaLibraryUnload"), unloaded);
    return launch(do_nothing, 1, 1, on);
  }));
  EXPECT_EQ(hostrt::calls("cudaLibraryUnload"), unloaded + 1);
  EXPECT_EQ(data.first(), 3 * (3 * 1 + 5) + 7);
}

// Device memory of updater nodes. It is used again, and clear() frees it.
TEST_F(WriteFailuresTest, DeviceMemoryOfErasedKeysIsUsedAgain) {
  force(Patching::kDeviceUpdated);
  Cache cache(unshared());
  const std::size_t before = hostrt::ledger().allocations;
  for (int i = 0; i < 4; ++i) EXPECT_SUCCESS(run(cache, key("k", i), i));
  const std::size_t of_four = hostrt::ledger().allocations;
  EXPECT_GT(of_four, before);
  CUDA_OK(cudaDeviceSynchronize());
  const std::uint64_t freed = hostrt::calls("cudaFree");
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(cache.erase(key("k", i)));
  for (int i = 0; i < 4; ++i) EXPECT_SUCCESS(run(cache, key("other", i), i));
  EXPECT_EQ(hostrt::ledger().allocations, of_four);
  EXPECT_EQ(hostrt::calls("cudaFree"), freed) << "it would wait for the device";
  cache.clear();
  EXPECT_EQ(hostrt::ledger().allocations, before);
}

// The copy to the memory of an updater node that could not be used is ahead of the copies of the node that gets this
// memory. None of them waits for work of the caller.
TEST_F(WriteFailuresTest, MemoryOfATableThatWasNotMadeIsUsedAgain) {
  Cache cache(forced(Sharing::kTable, 2));
  Stream first, second;
  DeviceBuffer<int> a(64, 1), b(64, 1);
  const auto run_member = [&](cudaStream_t on, int* data, int which, int launches) {
    return cache.run(key("member", which, launches), on, [&, data, which, launches](Recorder& rec) {
      for (int i = 0; i < launches; ++i) {
        rec.launch(blend, {static_cast<unsigned>(1 + which), 8}, data, 64, 3 + which, which);
      }
    });
  };
  hostrt::hold(first);
  hostrt::fail_call("cudaGraphInstantiate", 2, cudaErrorUnknown);  // after the instantiation that probes grids
  const std::uint64_t freed = hostrt::calls("cudaFree");
  EXPECT_RUN(kInstantiated, run_member(first, a.get(), 1, /*launches=*/1));
  EXPECT_EQ(cache.stats().refused_device_updates, 1u);
  EXPECT_EQ(hostrt::calls("cudaFree"), freed) << "a cudaFree would wait for the stream that is held";
  const std::uint64_t taken = hostrt::calls("cudaMallocHost");
  for (const int which : {0, 1}) EXPECT_TRUE(run_member(second, b.get(), which, /*launches=*/2).ok());
  EXPECT_EQ(hostrt::calls("cudaMallocHost"), taken) << "the memory is used again";
  hostrt::release(first);
  CUDA_OK(cudaDeviceSynchronize());
  std::vector<int> wanted(64, 1);
  const auto blended = [&](int which) {
    for (int i = 0; i < 8 * (1 + which); ++i) wanted[i] = (3 + which) * wanted[i] + which + i;
  };
  for (const int which : {0, 0, 1, 1}) blended(which);
  for (const int which : {0, 1, 0}) {
    EXPECT_RUN(kSwitched, run_member(second, b.get(), which, /*launches=*/2));
    blended(which);
    blended(which);
  }
  EXPECT_EQ(b.read(), wanted);
  EXPECT_EQ(cache.stats().refused_device_updates, 1u);
}

}  // namespace
}  // namespace graphcache::test
