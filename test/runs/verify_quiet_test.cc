// Verify mode reports nothing if hits are right, whatever they consist of, on either runtime.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "rules/rules.h"
#include "verify_support.h"

namespace graphcache::test {
namespace {

class VerifyQuietTest : public VerifyTest {
 protected:
  // Runs of one key.
  template <class Fn>
  void run_times(int times, const Fn& fn) {
    for (int i = 0; i < times; ++i) ASSERT_SUCCESS(cache.run(key("k"), stream, fn));
  }

  // Every hit was verified, and none was stale.
  static void expect_quiet(const Cache& cache) {
    const Stats stats = cache.stats();
    EXPECT_EQ(stats.stale, 0u) << findings(cache);
    EXPECT_NE(stats.hits(), 0u);
    EXPECT_EQ(stats.verified, stats.hits());
  }
  void expect_quiet() { expect_quiet(cache); }
  void expect_verified(std::uint64_t count) {
    EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
    EXPECT_EQ(cache.stats().verified, count);
  }

  Cache cache{verifying()};
};

TEST_F(VerifyQuietTest, KernelsWithSlotsOfEveryKind) {
  for (const Patching patching : {Patching::kPerNode, Patching::kDeviceUpdated}) {
    force(patching);
    Cache of_way(verifying());
    for (int i = 0; i < 6; ++i) {
      float* const to = i % 2 == 0 ? data.get() : other.get();
      const dim3 grid(1 + i % 2), block(50 + i);
      const double value = i / 2;
      ASSERT_SUCCESS(
          of_way.run(key("k"), stream, params(to, value, grid, block, kSize - i),
                     [&](Recorder& rec, Slot<float*> p, Slot<double> v, Slot<dim3> g, Slot<dim3> b, Slot<int> n) {
                       rec.launch(fill, {g, kBlock}, p, n, v);
                       rec.launch(add, {kGrid, b}, p, n, 1.0f);
                       rec.launch(do_nothing, {1, 1, 16});
                     }));
    }
    expect_quiet(of_way);
  }
}

TEST_F(VerifyQuietTest, CopiesAndSetsWithSlots) {
  DeviceBuffer<float> third(kSize);
  for (const std::size_t bytes : {16u, 8u, 16u, 400u}) {
    void* const to = bytes == 8 ? data.get() : other.get();
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(to, bytes, static_cast<int>(bytes)),
                             [&](Recorder& rec, Slot<void*> p, Slot<std::size_t> n, Slot<int> v) {
                               rec.memset(p, v, n);
                               rec.memset(p, 1, 4);
                               rec.memcpy(third.get(), p, n);
                               rec.memcpy(p, third.get(), 4);
                             }));
  }
  expect_quiet();
}

// Assigns to each member. The padding bytes become `padding`, or stay as they are.
void assign(Mixed* value, std::optional<int> padding, double real) {
  if (padding) std::memset(static_cast<void*>(value), *padding, sizeof *value);
  value->letter = 'a';
  value->real = real;
  value->small = 2;
  for (int& number : value->numbers) number = 7;
  value->last = 9;
}

// As libraries pass them. Each call of `fn` has other padding bytes; the members themselves are compared.
TEST_F(VerifyQuietTest, BytesThatFnLeavesUndefined) {
  DeviceBuffer<Mixed> out(1);
  int noise = 0;
  double real = 1.5;
  const auto fn = [&](Recorder& rec) {
    Mixed* to = out.get();
    Mixed value;
    assign(&value, ++noise, real);
    void* arguments[] = {&to, &value};
    CUDA_OK(cudaLaunchKernel(reinterpret_cast<const void*>(copy_struct), 1, 1, arguments, 0, rec.stream()));
  };
  run_times(4, fn);
  expect_verified(3);
  cache.clear();
  run_times(3, fn);
  real = 2.5;
  run_times(1, fn);
  EXPECT_EQ(cache.stats().stale, 1u);
  EXPECT_EQ(cache.stats().verified, 6u);
  EXPECT_TRUE(holds_all(findings(cache), {"argument 1, bytes 8 to 15", "1.5", "2.5"}));
}

// The padding holds what other variables have left there, such as parts of addresses.
TEST_F(VerifyQuietTest, PaddingOfStructuresOnTheHeapOrTheStackIsUndefined) {
  DeviceBuffer<Mixed> out(1);
  const auto pass = [&](Recorder& rec, Mixed* value) {
    assign(value, std::nullopt, 1.5);
    Mixed* to = out.get();
    void* arguments[] = {&to, value};
    CUDA_OK(cudaLaunchKernel(reinterpret_cast<const void*>(copy_struct), 1, 1, arguments, 0, rec.stream()));
  };
  for (int i = 1; i < 10; ++i) {
    std::vector<std::unique_ptr<char[]>> blocks(static_cast<std::size_t>(i));
    for (auto& block : blocks) {
      block = std::make_unique<char[]>(sizeof(Mixed));
      std::memset(block.get(), 7 * i, sizeof(Mixed));
    }
    blocks.clear();
    ASSERT_SUCCESS(
        cache.run(key("heap"), stream, [&](Recorder& rec) { pass(rec, std::unique_ptr<Mixed>(new Mixed).get()); }));
  }
  const auto run_at = [&](std::size_t depth) {
    auto* const shift = static_cast<volatile char*>(__builtin_alloca(depth * 512));
    shift[0] = 0;
    for (int i = 0; i < 2; ++i) {
      ASSERT_SUCCESS(cache.run(key("stack", depth), stream, [&](Recorder& rec) {
        [] {
          void* volatile addresses[64];
          for (void* volatile& each : addresses) each = const_cast<void**>(&each);
        }();
        Mixed value;
        pass(rec, &value);
      }));
    }
  };
  for (std::size_t depth = 1; depth < 130; ++depth) run_at(depth);
  expect_quiet();
}

// Of one call, or of some. A heap that has shrunk since has no memory there, and glibc's freed blocks hold addresses
// that are combined with the place of the block.
TEST_F(VerifyQuietTest, PaddingThatIsAnAddressInSomeCalls) {
  static int first = 0, second = 0;
  void* const gone = mmap(nullptr, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(munmap(gone, 1), 0);
  const void *const a = &first, *const b = &second;
  const auto word = [](const void* of) { return reinterpret_cast<std::uintptr_t>(of); };
  const auto freed = [&](const void* next) { return reinterpret_cast<const void*>(word(next) ^ word(&first) >> 12); };
  // The padding in the run that is captured, and in the four calls at the hit.
  const std::array<std::array<const void*, 5>, 5> situations = {{{a},
                                                                 {nullptr, a, a, a, a},
                                                                 {a, b, gone, a, b},
                                                                 {a, nullptr, b, a, nullptr},
                                                                 {freed(a), gone, gone, gone, gone}}};
  DeviceBuffer<Mixed> out(1);
  for (const auto& paddings : situations) {
    std::size_t calls = 0;
    cache.clear();
    run_times(2, [&](Recorder& rec) {
      Mixed value;
      std::memcpy(&value, &paddings.at(calls++), sizeof(void*));
      assign(&value, std::nullopt, 1.5);
      Mixed* to = out.get();
      void* arguments[] = {&to, &value};
      CUDA_OK(cudaLaunchKernel(reinterpret_cast<const void*>(copy_struct), 1, 1, arguments, 0, rec.stream()));
    });
  }
  expect_quiet();
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
// The compiler knows where the padding of a recorder's argument is, so it is not even in the graph.
TEST_F(VerifyQuietTest, PaddingThatWasOtherInTheFirstRunAlone) {
  DeviceBuffer<Mixed> out(1);
  int padding = 0xff;
  run_times(3, [&](Recorder& rec) {
    Mixed value;
    assign(&value, std::exchange(padding, 0), 1.5);
    rec.launch(copy_struct, {1, 1}, out.get(), value);
  });
  EXPECT_EQ(out.read()[0].real, 1.5);
  expect_quiet();
}
#endif
#endif

// As cuBLAS passes some that its kernels do not read. The upper bytes of the addresses of one variable may differ
// between the two threads, or between the run that captured it and the verified one, and be equal in both new
// recordings.
TEST_F(VerifyQuietTest, AddressesOfLocalVariablesAtAnyDepth) {
  const auto run_at = [&](int depth) {
    // Moves the frames of what it calls.
    auto* const shift = static_cast<volatile char*>(__builtin_alloca(static_cast<std::size_t>(depth) * 512));
    shift[0] = 0;
    ASSERT_SUCCESS(cache.run(key("k", depth), stream, [&](Recorder& rec) {
      float local = 0;
      rec.launch(scale, {1, 1}, data.get(), static_cast<const float*>(&local), 0, 1.0f);
    }));
  };
  constexpr int kDepths = 200;
  for (int depth = 1; depth < kDepths; ++depth) {
    run_at(depth);
    run_at(depth);
    std::thread(run_at, depth).join();
  }
  expect_quiet();
}

TEST_F(VerifyQuietTest, SizesThatBecomeZero) {
  for (const std::size_t bytes : {16u, 0u, 16u}) {
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(bytes),
                             [&](Recorder& rec, Slot<std::size_t> n) { rec.memset(data.get(), 1, n); }));
  }
  expect_verified(2);
}

// A graph without an executable gets the run's values before its next one, but was captured with others.
TEST_F(VerifyQuietTest, SizesThatAreZeroInALaterRun) {
  Options options = verifying();
  options.max_executables = 1;
  Cache small(options);
  const auto run = [&](const char* label, std::size_t bytes) {
    return small.run(key(label), stream, params(bytes), [&](Recorder& rec, Slot<std::size_t> n) {
      rec.memcpy(data.get(), other.get(), n);
      rec.memset(data.get(), 3, n);
    });
  };
  for (const std::size_t bytes : {64, 0, 32}) {
    for (const char* const label : {"a", "b", "a"}) ASSERT_SUCCESS(run(label, bytes));
    const absl::StatusOr<GraphInfo> graph = small.graph(key("a"));
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto captured = [&](std::size_t node, const char* name) {
      for (const GraphNode::Argument& one : graph->nodes[node].arguments) {
        std::uint64_t value = 0;
        std::memcpy(&value, one.value.data(), one.value.size());
        if (one.name == name) return value;
      }
      return ~std::uint64_t{0};
    };
    EXPECT_EQ(captured(0, "destination"), reinterpret_cast<std::uintptr_t>(data.get()));
    EXPECT_EQ(captured(0, "source"), reinterpret_cast<std::uintptr_t>(other.get()));
    EXPECT_EQ(captured(0, "bytes"), 64u);
    EXPECT_EQ(captured(1, "value"), 3u);
    EXPECT_EQ(captured(1, "bytes"), 64u);
  }
  EXPECT_EQ(small.stats().stale, 0u) << findings(small);
}

// The program fills it between the runs, or a launch does that is in flight meanwhile.
TEST_F(VerifyQuietTest, HostMemoryThatFnDoesNotFill) {
  PinnedBuffer<float> memory(kSize);
  float* const pinned = memory.get();
  const auto up = [&](cudaStream_t on) {
    CUDA_OK(cudaMemcpyAsync(data.get(), pinned, memory.bytes(), cudaMemcpyHostToDevice, on));
  };
  for (int i = 1; i <= 4; ++i) {
    pinned[0] = static_cast<float>(i);
    ASSERT_SUCCESS(cache.run(key("filled between"), stream, [&](cudaStream_t on) { up(on); }));
    EXPECT_EQ(data.first(), i);
  }
  memory.fill(0);
  for (int i = 1; i <= 4; ++i) {
    ASSERT_SUCCESS(cache.run(key("there and back"), stream, [&](cudaStream_t on) {
      up(on);
      CUDA_OK(add_to_data(on, 1));
      CUDA_OK(cudaMemcpyAsync(pinned, data.get(), memory.bytes(), cudaMemcpyDeviceToHost, on));
    }));
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
}

// A key with an address in it is right for every allocation there.
TEST_F(VerifyQuietTest, MemoryWhoseAddressIsInTheKey) {
  std::vector<float> memory(kSize, 2);
  for (int i = 0; i < 4; ++i) {
    CUDA_OK(cudaHostRegister(memory.data(), kSize * sizeof(float), cudaHostRegisterDefault));
    ASSERT_SUCCESS(cache.run(key("k", memory.data()), stream, [&](cudaStream_t on) {
      return launch(scale, kGrid, kBlock, on, data.get(), memory.data() + 1, 1, 3.0f);
    }));
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaHostUnregister(memory.data()));
  }
  expect_verified(3);
}

// Each recording gets memory of its own, which its graph keeps.
TEST_F(VerifyQuietTest, DeviceMemoryThatAKeptObjectOwns) {
  Cache relaxed({.capture_mode = cudaStreamCaptureModeRelaxed, .verify_every = 1});  // So fn may allocate.
  struct Own {
    Own() { CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory), sizeof(float))); }
    ~Own() { CUDA_OK(cudaFree(memory)); }
    float* memory = nullptr;
  };
  for (int i = 0; i < 4; ++i) {
    ASSERT_SUCCESS(relaxed.run(key("k"), stream, [&](Recorder& rec) {
      const auto own = std::make_shared<Own>();
      rec.keep(own);
      rec.launch(fill, {1, 1}, own->memory, 1, 1.0f);
      rec.launch(scale, {1, 1}, data.get(), static_cast<const float*>(own->memory), 1, 1.0f);
    }));
  }
  EXPECT_EQ(data.first(), 1);
  EXPECT_EQ(relaxed.stats().stale, 0u) << findings(relaxed);
}

// Kept memory may be the device's, which the host must not read.
TEST_F(VerifyQuietTest, DeviceMemoryThatIsKeptByItsAddress) {
  float* memory = nullptr;
  CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&memory), sizeof(float)));
  const std::shared_ptr<float> kept(memory, [](float* at) { CUDA_OK(cudaFree(at)); });
  run_times(4, [&](Recorder& rec) {
    rec.keep(kept);
    rec.launch(fill, {kGrid, kBlock}, kept.get(), 1, 1.0f);
    rec.memcpy(data.get(), static_cast<const float*>(kept.get()), sizeof(float));
  });
  EXPECT_EQ(data.first(), 1);
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
}

// This is an error of that run and of no other.
TEST_F(VerifyQuietTest, ShapesThatCudaRefuses) {
  const auto run = [&](unsigned blocks) {
    return cache.run(key("k"), stream, params(dim3(blocks)), [&](Recorder& rec, Slot<dim3> grid) {
      rec.launch(fill, {grid, kBlock}, data.get(), kSize, 2.0f);
    });
  };
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_FALSE(run(0).ok());
  cudaGetLastError();
  ASSERT_SUCCESS(run(2));
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
}

// If an end of a copy is a slot, it may have memory of another kind.
TEST_F(VerifyQuietTest, SlotsInOtherKindsOfMemory) {
  const PinnedBuffer<float> pinned(kSize);
  for (float* const to : {data.get(), pinned.get(), other.get()}) {
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(static_cast<void*>(to)),
                             [&](Recorder& rec, Slot<void*> p) { rec.memcpy(p, data.get() + 50, 16); }));
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(cache.stats().stale, 0u) << findings(cache);
  cache.clear();
}

TEST_F(VerifyQuietTest, ValuesOnTheDevice) {
  DeviceBuffer<float> values(3), first(1), second(1);
  for (int i = 0; i < 5; ++i) {
    ASSERT_SUCCESS(
        cache.run(key("k"), stream, params(2.0f * i, 3.0f), [&](Recorder& rec, Slot<float> a, Slot<float> b) {
          rec.write(first.get(), a);
          rec.write(second.get(), b);
          rec.launch(scale, {1, 1}, values.get(), first.get(), 1, 2.0f);
          CUDA_OK(launch(scale, dim3(1), dim3(1), rec.stream(), values.get() + 1, second.get(), 1, 1.0f));
          CUDA_OK(
              cudaMemcpyAsync(values.get() + 2, first.get(), sizeof(float), cudaMemcpyDeviceToDevice, rec.stream()));
        }));
    EXPECT_EQ(values.read(), (std::vector<float>{4.0f * i, 3, 2.0f * i}));
  }
  expect_quiet();
}

TEST_F(VerifyQuietTest, ForksAndHostFunctions) {
  Stream side;
  const PinnedBuffer<int> calls(1);
  for (int i = 0; i < 4; ++i) {
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(1.0f * i), [&](Recorder& rec, Slot<float> v) {
      let_follow(side, rec.stream());
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, v);
      rec.on(side).launch(fill, {kGrid, kBlock}, other.get(), kSize, v);
      CUDA_OK(cudaLaunchHostFunc(
          side, [](void* at) { ++*static_cast<int*>(at); }, calls.get()));
      let_follow(rec.stream(), side);
    }));
    EXPECT_EQ(other.first(), 1.0f * i);
  }
  EXPECT_EQ(*calls.get(), 4);
  expect_quiet();
}

// Each recording may allocate at another address.
TEST_F(VerifyQuietTest, MemoryThatTheGraphAllocates) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_SUCCESS(cache.run(key("k"), stream, [&](cudaStream_t on) {
      float* own = nullptr;
      CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&own), kSize * sizeof(float), on));
      CUDA_OK(launch(fill, kGrid, kBlock, on, own, kSize, 3.0f));
      CUDA_OK(launch(scale, dim3(1), dim3(32), on, data.get(), own + 5, 32, 2.0f));
      CUDA_OK(cudaMemcpyAsync(other.get(), own + 1, 16, cudaMemcpyDeviceToDevice, on));
      CUDA_OK(cudaMemsetAsync(own + 2, 0, 4, on));
      return cudaFreeAsync(own, on);
    }));
    EXPECT_EQ(data.first(), 6);
    EXPECT_EQ(other.first(), 3);
  }
  expect_quiet();
}

TEST_F(VerifyQuietTest, Siblings) {
  for (const Sharing sharing : {Sharing::kUpdates, Sharing::kUpdatesAcross, Sharing::kTable}) {
    Cache of_way(forced(sharing, {.max_executables = 2, .verify_every = 1}));
    for (int i = 0; i < 30; ++i) {
      const int which = i % 5;
      const float value = static_cast<float>(i / 7);
      ASSERT_SUCCESS(of_way.run(key("k", which), stream, params(value), [&](Recorder& rec, Slot<float> v) {
        const dim3 grid(1 + static_cast<unsigned>(which % 3));
        rec.launch(fill, {grid, kBlock}, data.get(), kSize, v);
        for (int node = 0; node < 10; ++node) {
          CUDA_OK(launch(add, grid, kBlock, rec.stream(), data.get(), 1, 1.0f * which));
        }
      }));
      EXPECT_EQ(data.first(), value + 10 * which);
    }
    expect_quiet(of_way);
  }
}

// The nodes of the first recording have the priority of its stream, and so have those of each later one.
TEST_F(VerifyQuietTest, StreamsOfOtherPriorities) {
  const StreamOf urgent(cudaStreamNonBlocking, Priorities().greatest);
  for (int i = 0; i < 6; ++i) {
    const cudaStream_t on = i % 2 == 0 ? stream : urgent;
    ASSERT_SUCCESS(cache.run(key("k"), on, [&](cudaStream_t s) { return fill_data(s, 2); }));
    CUDA_OK(cudaStreamSynchronize(on));
  }
  expect_quiet();
}

TEST_F(VerifyQuietTest, RunsInsideOfRuns) {
  Cache inner(verifying());
  for (int i = 0; i < 4; ++i) {
    ASSERT_SUCCESS(cache.run(key("outer"), stream, [&](cudaStream_t on) {
      CUDA_OK(fill_data(on, 2));
      return inner.run(key("inner"), on, [&](cudaStream_t s) { return add_to_data(s, 1); }).status();
    }));
    EXPECT_EQ(data.first(), 3);
  }
  expect_quiet();
  EXPECT_EQ(inner.stats().outcome(Outcome::kInlined), 4u);
}

TEST_F(VerifyQuietTest, EmptyGraphsAndWarmedKeys) {
  for (int i = 0; i < 3; ++i) ASSERT_SUCCESS(cache.run(key("empty"), stream, [](cudaStream_t) {}));
  const auto fn = [&](Recorder& rec, Slot<float> v) { rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, v); };
  EXPECT_SUCCESS(cache.warm(key("warm"), stream, params(1.0f), fn));
  EXPECT_RUN(kPatched, cache.run(key("warm"), stream, params(2.0f), fn));
  EXPECT_EQ(data.first(), 2);
  expect_quiet();
}

}  // namespace
}  // namespace graphcache::test
