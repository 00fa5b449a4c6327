// Verify mode reports nothing if hits are right, whatever they consist of, on either runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "rules/rules.h"
#include "support.h"
#include "verify_support.h"

namespace graphcache::test {
namespace {

class VerifyQuietTest : public StreamTest {
 protected:
  // Every hit was verified, and none was stale.
  static void expect_quiet(const Cache& cache) {
    const Stats stats = cache.stats();
    EXPECT_EQ(stats.stale, 0u) << findings(cache);
    EXPECT_NE(stats.hits(), 0u);
    EXPECT_EQ(stats.verified, stats.hits());
  }

  DeviceBuffer<float> data{kSize}, other{kSize};
};

TEST_F(VerifyQuietTest, KernelsWithSlotsOfEveryKind) {
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
    Options options = verifying();
    force(patching);
    Cache cache(options);
    for (int i = 0; i < 6; ++i) {
      float* const to = i % 2 == 0 ? data.get() : other.get();
      const dim3 grid(1 + i % 2), block(50 + i);
      const double value = i / 2;
      ASSERT_TRUE(cache
                      .run(key("k"), stream, params(to, value, grid, block, kSize - i),
                           [&](Recorder& rec, Slot<float*> p, Slot<double> v, Slot<dim3> g, Slot<dim3> b, Slot<int> n) {
                             rec.launch(fill, {g, kBlock}, p, n, v);
                             rec.launch(add, {kGrid, b}, p, n, 1.0f);
                             rec.launch(do_nothing, {1, 1, 16});
                           })
                      .ok());
    }
    expect_quiet(cache);
  }
}

TEST_F(VerifyQuietTest, CopiesAndSetsWithSlots) {
  Cache cache(verifying());
  DeviceBuffer<float> third(kSize);
  for (const std::size_t bytes : {16u, 8u, 16u, 400u}) {
    void* const to = bytes == 8 ? data.get() : other.get();
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(to, bytes, static_cast<int>(bytes)),
                         [&](Recorder& rec, Slot<void*> p, Slot<std::size_t> n, Slot<int> v) {
                           rec.memset(p, v, n);
                           rec.memset(p, 1, 4);
                           rec.memcpy(third.get(), p, n);
                           rec.memcpy(p, third.get(), 4);
                         })
                    .ok());
  }
  expect_quiet(cache);
}

// As libraries pass them. Each call of `fn` has other padding bytes; the members themselves are compared.
TEST_F(VerifyQuietTest, BytesThatFnLeavesUndefined) {
  DeviceBuffer<Mixed> out(1);
  for (const bool changes : {false, true}) {
    Cache cache(verifying());
    unsigned char noise = 0;
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(cache
                      .run(key("k"), stream,
                           [&](Recorder& rec) {
                             Mixed value;
                             std::memset(static_cast<void*>(&value), ++noise, sizeof value);
                             value.letter = 'a';
                             value.real = changes && i == 3 ? 2.5 : 1.5;
                             value.small = 2;
                             for (int& number : value.numbers) number = 7;
                             value.last = 9;
                             rec.launch(copy_struct, {1, 1}, out.get(), value);
                           })
                      .ok());
    }
    EXPECT_EQ(cache.stats().stale, changes ? 1u : 0u) << findings(cache);
    EXPECT_EQ(cache.stats().verified, 3u);
    const std::vector<std::string> words = {"argument 1, bytes 8 to 15", "1.5", "2.5"};
    EXPECT_TRUE(holds_all(findings(cache), changes ? words : std::vector<std::string>()));
  }
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
// The compiler knows where the padding of a recorder's argument is, so it is not even in the graph.
TEST_F(VerifyQuietTest, PaddingThatWasOtherInTheFirstRunAlone) {
  Cache cache(verifying());
  DeviceBuffer<Mixed> out(1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream,
                         [&](Recorder& rec) {
                           Mixed value;
                           std::memset(static_cast<void*>(&value), i == 0 ? 0xff : 0, sizeof value);
                           value.letter = 'a';
                           value.real = 1.5;
                           value.small = 2;
                           for (int& number : value.numbers) number = 7;
                           value.last = 9;
                           rec.launch(copy_struct, {1, 1}, out.get(), value);
                         })
                    .ok());
  }
  EXPECT_EQ(out.read()[0].real, 1.5);
  expect_quiet(cache);
}
#endif
#endif

// As cuBLAS passes some that its kernels do not read.
TEST_F(VerifyQuietTest, AddressesOfLocalVariables) {
  Cache cache(verifying());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream,
                         [&](Recorder& rec) {
                           float local = 0;
                           rec.launch(scale, {1, 1}, data.get(), static_cast<const float*>(&local), 0, 1.0f);
                         })
                    .ok());
  }
  expect_quiet(cache);
}

// The upper bytes of the addresses of one variable may differ between the two threads, or between the run that captured
// it and the verified one, and be equal in both new recordings.
TEST_F(VerifyQuietTest, AddressesOfLocalVariablesAtAnyDepth) {
  Cache cache(verifying());
  const auto run_at = [&](int depth) {
    // Moves the frames of what it calls.
    auto* const shift = static_cast<volatile char*>(__builtin_alloca(static_cast<std::size_t>(depth) * 512));
    shift[0] = 0;
    ASSERT_TRUE(cache
                    .run(key("k", depth), stream,
                         [&](Recorder& rec) {
                           float local = 0;
                           rec.launch(scale, {1, 1}, data.get(), static_cast<const float*>(&local), 0, 1.0f);
                         })
                    .ok());
  };
  constexpr int kDepths = 200;
  for (int depth = 1; depth < kDepths; ++depth) {
    run_at(depth);
    run_at(depth);
    std::thread(run_at, depth).join();
  }
  expect_quiet(cache);
}

TEST_F(VerifyQuietTest, SizesThatBecomeZero) {
  Cache cache(verifying());
  for (const std::size_t bytes : {16u, 0u, 16u}) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(bytes),
                         [&](Recorder& rec, Slot<std::size_t> n) { rec.memset(data.get(), 1, n); })
                    .ok());
  }
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
  EXPECT_EQ(cache.stats().verified, 2u);
}

// The program fills it between the runs, or a launch does that is in flight meanwhile.
TEST_F(VerifyQuietTest, HostMemoryThatFnDoesNotFill) {
  float* pinned = nullptr;
  CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), kSize * sizeof(float)));
  const auto up = [&](cudaStream_t on) {
    CUDA_OK(cudaMemcpyAsync(data.get(), pinned, kSize * sizeof(float), cudaMemcpyHostToDevice, on));
  };
  Cache cache(verifying());
  for (int i = 1; i <= 4; ++i) {
    pinned[0] = static_cast<float>(i);
    ASSERT_TRUE(cache.run(key("filled between"), stream, [&](cudaStream_t on) { up(on); }).ok());
    EXPECT_EQ(data.first(), i);
  }
  std::fill_n(pinned, kSize, 0.0f);
  for (int i = 1; i <= 4; ++i) {
    ASSERT_TRUE(cache
                    .run(key("there and back"), stream,
                         [&](cudaStream_t on) {
                           up(on);
                           CUDA_OK(launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f));
                           CUDA_OK(
                               cudaMemcpyAsync(pinned, data.get(), kSize * sizeof(float), cudaMemcpyDeviceToHost, on));
                         })
                    .ok());
  }
  EXPECT_EQ(data.first(), 4);
  {
    Busy busy(stream);
    const auto run = [&] {
      return cache.run(key("in flight"), stream, [&](cudaStream_t on) {
        pinned[kSize - 1] += 1;  // As the launch in flight may.
        up(on);
      });
    };
    EXPECT_RUN(kInstantiated, run());
    EXPECT_RUN(kReplayed, run());
    busy.end();
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
  CUDA_OK(cudaFreeHost(pinned));
}

// A key with an address in it is right for every allocation there.
TEST_F(VerifyQuietTest, MemoryWhoseAddressIsInTheKey) {
  std::vector<float> memory(kSize, 2);
  Cache cache(verifying());
  for (int i = 0; i < 4; ++i) {
    CUDA_OK(cudaHostRegister(memory.data(), kSize * sizeof(float), cudaHostRegisterDefault));
    ASSERT_TRUE(cache
                    .run(key("k", memory.data()), stream,
                         [&](cudaStream_t on) {
                           return launch(scale, kGrid, kBlock, on, data.get(), memory.data() + 1, 1, 3.0f);
                         })
                    .ok());
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaHostUnregister(memory.data()));
  }
  EXPECT_EQ(cache.stats().verified, 3u);
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
}

// Each recording gets memory of its own, which its graph keeps.
TEST_F(VerifyQuietTest, DeviceMemoryThatAKeptObjectOwns) {
  Options options = verifying();
  options.capture_mode = cudaStreamCaptureModeRelaxed;  // So fn may allocate.
  Cache cache(options);
  struct Own {
    Own() { CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory), sizeof(float))); }
    ~Own() { CUDA_OK(cudaFree(memory)); }
    float* memory = nullptr;
  };
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream,
                         [&](Recorder& rec) {
                           const auto own = std::make_shared<Own>();
                           rec.keep(own);
                           rec.launch(fill, {1, 1}, own->memory, 1, 1.0f);
                           rec.launch(scale, {1, 1}, data.get(), static_cast<const float*>(own->memory), 1, 1.0f);
                         })
                    .ok());
  }
  EXPECT_EQ(data.first(), 1);
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
}

// Kept memory may be the device's, which the host must not read.
TEST_F(VerifyQuietTest, DeviceMemoryThatIsKeptByItsAddress) {
  Cache cache(verifying());
  float* memory = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory), sizeof(float)));
  const std::shared_ptr<float> kept(memory, [](float* at) { CUDA_OK(cudaFree(at)); });
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream,
                         [&](Recorder& rec) {
                           rec.keep(kept);
                           rec.launch(fill, {kGrid, kBlock}, kept.get(), 1, 1.0f);
                           rec.memcpy(data.get(), static_cast<const float*>(kept.get()), sizeof(float));
                         })
                    .ok());
  }
  EXPECT_EQ(data.first(), 1);
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
}

// This is an error of that run and of no other.
TEST_F(VerifyQuietTest, ShapesThatCudaRefuses) {
  Cache cache(verifying());
  const auto run = [&](unsigned blocks) {
    return cache.run(key("k"), stream, params(dim3(blocks)), [&](Recorder& rec, Slot<dim3> grid) {
      rec.launch(fill, {grid, kBlock}, data.get(), kSize, 2.0f);
    });
  };
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_FALSE(run(0).ok());
  cudaGetLastError();
  ASSERT_TRUE(run(2).ok());
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
}

// If an end of a copy is a slot, it may have memory of another kind.
TEST_F(VerifyQuietTest, SlotsInOtherKindsOfMemory) {
  Cache cache(verifying());
  void* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, kSize * sizeof(float)));
  for (void* const to : {static_cast<void*>(data.get()), pinned, static_cast<void*>(other.get())}) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(to),
                         [&](Recorder& rec, Slot<void*> p) { rec.memcpy(p, data.get() + 50, 16); })
                    .ok());
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
  cache.clear();
  CUDA_OK(cudaFreeHost(pinned));
}

TEST_F(VerifyQuietTest, ValuesOnTheDevice) {
  Cache cache(verifying());
  DeviceBuffer<float> values(3), first(1), second(1);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(2.0f * i, 3.0f),
                         [&](Recorder& rec, Slot<float> a, Slot<float> b) {
                           rec.write(first.get(), a);
                           rec.write(second.get(), b);
                           rec.launch(scale, {1, 1}, values.get(), first.get(), 1, 2.0f);
                           CUDA_OK(
                               launch(scale, dim3(1), dim3(1), rec.stream(), values.get() + 1, second.get(), 1, 1.0f));
                           CUDA_OK(cudaMemcpyAsync(values.get() + 2, first.get(), sizeof(float),
                                                   cudaMemcpyDeviceToDevice, rec.stream()));
                         })
                    .ok());
    EXPECT_EQ(values.read(), (std::vector<float>{4.0f * i, 3, 2.0f * i}));
  }
  expect_quiet(cache);
}

TEST_F(VerifyQuietTest, ForksAndHostFunctions) {
  Cache cache(verifying());
  Stream side;
  Event fork, join;
  const PinnedBuffer<int> calls(1);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream, params(1.0f * i),
                         [&](Recorder& rec, Slot<float> v) {
                           CUDA_OK(cudaEventRecord(fork, rec.stream()));
                           CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
                           rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, v);
                           rec.on(side).launch(fill, {kGrid, kBlock}, other.get(), kSize, v);
                           CUDA_OK(cudaLaunchHostFunc(
                               side, [](void* at) { ++*static_cast<int*>(at); }, calls.get()));
                           CUDA_OK(cudaEventRecord(join, side));
                           CUDA_OK(cudaStreamWaitEvent(rec.stream(), join, 0));
                         })
                    .ok());
    EXPECT_EQ(other.first(), 1.0f * i);
  }
  EXPECT_EQ(*calls.get(), 4);
  expect_quiet(cache);
}

// Each recording may allocate at another address.
TEST_F(VerifyQuietTest, MemoryThatTheGraphAllocates) {
  Cache cache(verifying());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache
                    .run(key("k"), stream,
                         [&](cudaStream_t on) {
                           float* own = nullptr;
                           CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&own), kSize * sizeof(float), on));
                           CUDA_OK(launch(fill, kGrid, kBlock, on, own, kSize, 3.0f));
                           CUDA_OK(launch(scale, dim3(1), dim3(32), on, data.get(), own + 5, 32, 2.0f));
                           CUDA_OK(cudaMemcpyAsync(other.get(), own + 1, 16, cudaMemcpyDeviceToDevice, on));
                           CUDA_OK(cudaMemsetAsync(own + 2, 0, 4, on));
                           return cudaFreeAsync(own, on);
                         })
                    .ok());
    EXPECT_EQ(data.first(), 6);
    EXPECT_EQ(other.first(), 3);
  }
  expect_quiet(cache);
}

TEST_F(VerifyQuietTest, Siblings) {
  for (const Sharing sharing : {Sharing::kUpdates, Sharing::kUpdatesAcross, Sharing::kTable}) {
    Options options = verifying();
    options.max_executables = 2;
    force(&options, sharing);
    Cache cache(options);
    for (int i = 0; i < 30; ++i) {
      const int which = i % 5;
      const float value = static_cast<float>(i / 7);
      ASSERT_TRUE(cache
                      .run(key("k", which), stream, params(value),
                           [&](Recorder& rec, Slot<float> v) {
                             const dim3 grid(1 + static_cast<unsigned>(which % 3));
                             rec.launch(fill, {grid, kBlock}, data.get(), kSize, v);
                             for (int node = 0; node < 10; ++node) {
                               CUDA_OK(launch(add, grid, kBlock, rec.stream(), data.get(), 1, 1.0f * which));
                             }
                           })
                      .ok());
      EXPECT_EQ(data.first(), value + 10 * which);
    }
    expect_quiet(cache);
  }
}

// The nodes of the first recording have the priority of its stream, and so have those of each later one.
TEST_F(VerifyQuietTest, StreamsOfOtherPriorities) {
  int least = 0, greatest = 0;
  CUDA_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t urgent = nullptr;
  CUDA_OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
  Cache cache(verifying());
  for (int i = 0; i < 6; ++i) {
    const cudaStream_t on = i % 2 == 0 ? stream : urgent;
    ASSERT_TRUE(
        cache.run(key("k"), on, [&](cudaStream_t s) { return launch(fill, kGrid, kBlock, s, data.get(), kSize, 2.0f); })
            .ok());
    CUDA_OK(cudaStreamSynchronize(on));
  }
  expect_quiet(cache);
  CUDA_OK(cudaStreamDestroy(urgent));
}

TEST_F(VerifyQuietTest, RunsInsideOfRuns) {
  Cache outer(verifying()), inner(verifying());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(
        outer
            .run(key("outer"), stream,
                 [&](cudaStream_t on) {
                   CUDA_OK(launch(fill, kGrid, kBlock, on, data.get(), kSize, 2.0f));
                   return inner
                       .run(key("inner"), on,
                            [&](cudaStream_t s) { return launch(add, kGrid, kBlock, s, data.get(), kSize, 1.0f); })
                       .status();
                 })
            .ok());
    EXPECT_EQ(data.first(), 3);
  }
  expect_quiet(outer);
  EXPECT_EQ(inner.stats().outcome(Outcome::kInlined), 4u);
}

TEST_F(VerifyQuietTest, EmptyGraphsAndWarmedKeys) {
  Cache cache(verifying());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(cache.run(key("empty"), stream, [](cudaStream_t) {}).ok());
  const auto fn = [&](Recorder& rec, Slot<float> v) { rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, v); };
  EXPECT_TRUE(cache.warm(key("warm"), stream, params(1.0f), fn).ok());
  EXPECT_RUN(kPatched, cache.run(key("warm"), stream, params(2.0f), fn));
  EXPECT_EQ(data.first(), 2);
  expect_quiet(cache);
}

}  // namespace
}  // namespace graphcache::test
