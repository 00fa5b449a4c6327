// Mistakes with memory: memory that `fn` allocates and hands out, and host memory that its copies use.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "cache_support.h"

namespace graphcache::test {
namespace {

class MistakesMemoryTest : public CacheTest {
 protected:
  static constexpr std::size_t kBytes = kSize * sizeof(float);

  // Allocates memory and fills it with `value`.
  cudaError_t hand_out(cudaStream_t on, float value) {
    ++calls;
    const cudaError_t error = cudaMallocAsync(reinterpret_cast<void**>(&handed_out), kBytes, on);
    return error != cudaSuccess ? error : launch(fill, kGrid, kBlock, on, handed_out, kSize, value);
  }
  // A run that hands out such memory in `handed_out` or, if it is cured, copies and frees it.
  absl::StatusOr<Outcome> run_allocating(Cache& cache, const char* label, float value) {
    return cache.run(key(label), stream, [&, value](cudaStream_t on) {
      cudaError_t error = hand_out(on, value);
      if (error != cudaSuccess || !is_cured) return error;
      error = launch(scale, kGrid, kBlock, on, data.get(), handed_out, kSize, 1.0f);
      return error == cudaSuccess ? cudaFreeAsync(handed_out, on) : error;
    });
  }
  // Returns the contents of the handed-out memory, which it frees.
  float use_and_free() {
    CUDA_OK(launch(scale, kGrid, kBlock, stream, data.get(), handed_out, kSize, 1.0f));
    CUDA_OK(cudaFreeAsync(handed_out, stream));
    return data.first();
  }

  float* handed_out = nullptr;
  bool is_cured = false;
};

// Each run hands out its own memory, even while that of earlier runs is allocated. fn is called twice by the first run
// and once by each later one. Verify mode compares hits only, and there are none.
TEST_F(MistakesMemoryTest, AKeyThatHandsMemoryOutRunsDirectlyFromItsFirstRunOn) {
  for (const int verify_every : {0, 1}) {
    SCOPED_TRACE(verify_every);
    Cache cache({.verify_every = verify_every});
    calls = 0;
    std::vector<float*> all;
    for (int i = 0; i < 12; ++i) {
      EXPECT_RUN(kEager, run_allocating(cache, "k", static_cast<float>(i)));
      EXPECT_EQ(calls, i + 2);
      for (const float* other : all) EXPECT_NE(handed_out, other);
      all.push_back(handed_out);
    }
    for (int i = 0; i < 12; ++i) {
      handed_out = all[static_cast<std::size_t>(i)];
      EXPECT_EQ(use_and_free(), static_cast<float>(i));
    }
    const EntryInfo entry = cache.entries()[0];
    EXPECT_EQ(entry.eager_reason, EagerReason::kHandsOutMemory);
    EXPECT_STREQ(to_string(EagerReason::kHandsOutMemory), "hands_out_memory");
    EXPECT_TRUE(says(entry.error, "fn hands out memory that the graph would allocate"));
    EXPECT_TRUE(says(entry.error, "Free the memory in fn, or allocate it before the run"));
    EXPECT_FALSE(entry.recorded);
    stats = cache.stats();
    EXPECT_EQ(stats.eager(EagerReason::kHandsOutMemory), 12u);
    EXPECT_EQ(stats.captures + stats.instantiations + stats.live_templates, 0u);
    EXPECT_EQ(stats.capture_failures, 1u);
    EXPECT_EQ(stats.stale, 0u);
  }
}

// The key stays direct until it is erased.
TEST_F(MistakesMemoryTest, AfterAnEraseAKeyThatNoLongerHandsMemoryOutIsCaptured) {
  Cache cache;
  EXPECT_RUN(kEager, run_allocating(cache, "k", 3));
  EXPECT_EQ(use_and_free(), 3);
  is_cured = true;
  EXPECT_RUN(kEager, run_allocating(cache, "k", 4));
  expect_sum(4);
  EXPECT_EQ(cache.entries()[0].eager_reason, EagerReason::kHandsOutMemory);
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_RUN(kInstantiated, run_allocating(cache, "k", 5));
  expect_sum(5);
  data.write(std::vector<float>(kSize));
  EXPECT_RUN(kReplayed, run_allocating(cache, "k", 5));
  expect_sum(5);
  EXPECT_EQ(calls, 4);
}

TEST_F(MistakesMemoryTest, AKeyThatHandsMemoryOutFailsIfTheOptionSaysSo) {
  Cache cache(called_once());
  for (int i = 1; i <= 2; ++i) {
    const absl::StatusOr<Outcome> outcome = run_allocating(cache, "k", 3);
    EXPECT_FAILURE(kFailedPrecondition, outcome);
    EXPECT_TRUE(mentions(outcome.status(), "hands out memory")) << outcome.status();
    EXPECT_EQ(calls, i);
  }
  expect_sum(0);
  // Memory of a graph that was never launched is not allocated.
  EXPECT_EQ(cache.stats().failed, 2u);
  EXPECT_EQ(cache.stats().captures, 0u);
}

TEST_F(MistakesMemoryTest, AWarmUpOfAKeyThatHandsMemoryOutFailsAndALaterRunIsDirect) {
  Cache cache;
  const auto fn = [&](cudaStream_t on) { return hand_out(on, 5); };
  const absl::Status warmed = cache.warm(key("k"), stream, fn);
  EXPECT_FALSE(warmed.ok());
  EXPECT_TRUE(mentions(warmed, "hands out memory")) << warmed;
  EXPECT_EQ(calls, 1);
  EXPECT_RUN(kEager, cache.run(key("k"), stream, fn));
  EXPECT_EQ(use_and_free(), 5);
}

// One of two allocations is freed. The other one may be on a forked stream, or freed only by a later run.
TEST_F(MistakesMemoryTest, OneAllocationOfSeveralThatIsNotFreedIsEnough) {
  Cache cache;
  Stream side;
  for (const bool on_side : {false, true}) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_RUN(kEager, cache.run(key("k", on_side), stream, [&](cudaStream_t on) {
        float* freed = nullptr;
        CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&freed), kBytes, on));
        let_follow(side, on);
        const cudaStream_t where = on_side ? static_cast<cudaStream_t>(side) : on;
        CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&handed_out), kBytes, where));
        CUDA_OK(launch(fill, kGrid, kBlock, where, handed_out, kSize, 7.0f));
        let_follow(on, side);
        CUDA_OK(cudaFreeAsync(freed, on));
      }));
      EXPECT_EQ(use_and_free(), 7);
    }
  }
  EXPECT_EQ(cache.stats().eager(EagerReason::kHandsOutMemory), 4u);
}

// CUDA gives an address in a graph again after its memory was freed there.
TEST_F(MistakesMemoryTest, AnAllocationAfterAFreedOneThatIsNotFreedIsEnough) {
  Cache cache;
  for (int i = 0; i < 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
      for (int n = 0; n < 2; ++n) {
        float* freed = nullptr;
        CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&freed), kBytes, on));
        CUDA_OK(cudaFreeAsync(freed, on));
      }
      CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&handed_out), kBytes, on));
      CUDA_OK(launch(fill, kGrid, kBlock, on, handed_out, kSize, 8.0f));
    }));
    EXPECT_EQ(use_and_free(), 8);
  }
  EXPECT_EQ(cache.stats().eager(EagerReason::kHandsOutMemory), 3u);
}

// A run inside another run's fn is part of the outer graph, which then hands the memory out.
TEST_F(MistakesMemoryTest, AnInnerRunThatHandsMemoryOutMakesTheOuterOneDirect) {
  Cache cache;
  for (int i = 0; i < 3; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream,
                                 [&](cudaStream_t) { return run_allocating(cache, "inner", 4).status(); }));
    EXPECT_EQ(use_and_free(), 4);
  }
  for (const EntryInfo& entry : cache.entries()) {
    EXPECT_EQ(entry.eager_reason, EagerReason::kHandsOutMemory) << entry.label;
  }
}

// ---- Host memory ----------------------------------------------------------------------------------------------------

// The memory that slots point to belongs to the caller.
TEST_F(MistakesMemoryTest, CopiesMayReadPageableMemoryThroughSlotsAndPinnedMemorySideBySide) {
  Cache cache({.verify_every = 1, .on_stale = OnStale::kReturnError});
  DeviceBuffer<float> other(kSize);
  std::vector<float> first(kSize, 1), second(kSize, 2);
  PinnedBuffer<float> pinned(kSize, 2);
  const auto run = [&](const float* one, const float* two) {
    return cache.run(key("slots"), stream, params(one, two),
                     [&](Recorder& rec, Slot<const float*> from_one, Slot<const float*> from_two) {
                       rec.memcpy(data.get(), from_one, kBytes, cudaMemcpyHostToDevice);
                       rec.memcpy(other.get(), from_two, kBytes, cudaMemcpyHostToDevice);
                     });
  };
  EXPECT_RUN(kInstantiated, run(first.data(), second.data()));
  EXPECT_EQ(data.first() + 10 * other.first(), 21);
  EXPECT_RUN(kPatched, run(second.data(), second.data()));
  EXPECT_EQ(data.first() + 10 * other.first(), 22);
  EXPECT_RUN(kPatched, run(first.data(), first.data()));
  EXPECT_EQ(data.first() + 10 * other.first(), 11);
  for (const bool is_first : {true, false}) {
    EXPECT_TRUE(did(is_first ? Outcome::kInstantiated : Outcome::kReplayed,
                    cache.run(key("side by side"), stream, [&](cudaStream_t on) {
                      CUDA_OK(cudaMemcpyAsync(data.get(), pinned.get(), 8, cudaMemcpyHostToDevice, on));
                      CUDA_OK(cudaMemcpyAsync(other.get(), pinned.get() + 1, 8, cudaMemcpyHostToDevice, on));
                    })));
    EXPECT_EQ(data.first() + 10 * other.first(), 22);
  }
  EXPECT_EQ(cache.stats().stale, 0u);
}

TEST_F(MistakesMemoryTest, PinnedMemoryAndMemoryOfTheGraphMayBeReadByTwoCopiesAndPageableMemoryRunsDirectly) {
  Cache cache;
  DeviceBuffer<float> other(kSize);
  const PinnedBuffer<float> pinned(kSize, 4);
  for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
    EXPECT_TRUE(did(outcome, cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(cudaMemcpyAsync(data.get(), pinned.get(), kBytes, cudaMemcpyHostToDevice, on));
      CUDA_OK(cudaMemcpyAsync(other.get(), pinned.get(), kBytes, cudaMemcpyDefault, on));
    })));
    EXPECT_EQ(data.first() + other.first(), 8);
    EXPECT_TRUE(did(outcome, cache.run(key("of the graph"), stream, [&](cudaStream_t on) {
      float* memory = nullptr;
      CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&memory), kBytes, on));
      CUDA_OK(launch(fill, kGrid, kBlock, on, memory, kSize, 5.0f));
      CUDA_OK(cudaMemcpyAsync(data.get(), memory, kBytes, cudaMemcpyDefault, on));
      CUDA_OK(cudaMemcpyAsync(other.get(), memory, kBytes, cudaMemcpyDefault, on));
      CUDA_OK(cudaFreeAsync(memory, on));
    })));
    EXPECT_EQ(data.first() + other.first(), 10);
  }
  std::vector<float> staging(kSize);
  for (int i = 0; i < 2; ++i) {
    EXPECT_RUN(kEager, cache.run(key("a buffer that fn refills"), stream, [&](cudaStream_t on) {
      staging.assign(kSize, 1);
      CUDA_OK(cudaMemcpyAsync(data.get(), staging.data(), kBytes, cudaMemcpyHostToDevice, on));
      staging.assign(kSize, 2);
      CUDA_OK(cudaMemcpyAsync(other.get(), staging.data(), kBytes - sizeof(float), cudaMemcpyDefault, on));
    }));
    EXPECT_EQ(data.first() + 10 * other.first(), 21);
  }
  EXPECT_TRUE(says(cache.entries()[0].error, "pageable host memory"));
}

// Managed memory belongs to host and device. A copy of 0 bytes is replaced by a copy of one byte of device memory.
TEST_F(MistakesMemoryTest, ACopyOfManagedMemoryMayHaveNoBytes) {
  Cache cache;
  char* managed = nullptr;
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), 64));
  DeviceBuffer<char> device(64);
  for (const bool from_managed : {true, false}) {
    for (const int bytes : {64, 0, 1, 0, 64}) {
      CUDA_OK(cudaMemset(managed, from_managed ? 5 : 0, 64));
      CUDA_OK(cudaMemset(device.get(), from_managed ? 0 : 5, 64));
      CUDA_OK(cudaDeviceSynchronize());
      char* const to = from_managed ? device.get() : managed;
      const char* const from = from_managed ? managed : device.get();
      absl::StatusOr<Outcome> outcome = cache.run(key("k", from_managed), stream, params(bytes),
                                                  [&](Recorder& rec, Slot<int> size) { rec.memcpy(to, from, size); });
      ASSERT_SUCCESS(outcome);
      EXPECT_NE(*outcome, Outcome::kEager);
      CUDA_OK(cudaStreamSynchronize(stream));
      std::vector<char> copied(64), wanted(64);
      CUDA_OK(cudaMemcpy(copied.data(), to, 64, cudaMemcpyDefault));
      std::memset(wanted.data(), 5, static_cast<std::size_t>(bytes));
      EXPECT_EQ(copied, wanted) << bytes << " bytes";
    }
  }
  CUDA_OK(cudaFree(managed));
}

}  // namespace
}  // namespace graphcache::test
