// Copies from and to host memory. A graph uses that memory at each launch, after fn has returned, so a key whose copies
// use pageable memory runs directly, unless a slot holds the pointer.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include "conditional/conditional.h"
#include "cuda/compat.h"
#include "forced_ways.h"
#include "graph/template.h"
#include "graph_support.h"
#include "graphcache/body.h"
#include "host_memory_support.h"

namespace graphcache::test {
namespace {

enum class Way { kRaw, kRawDefault, kRecorder, kChildGraph };
constexpr Way kWays[] = {Way::kRaw, Way::kRawDefault, Way::kRecorder, Way::kChildGraph};

// Adds a graph of this one copy to the graph that is being captured.
void copy_in_child_graph(cudaStream_t stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const Kept child(new_graph());
  cudaGraphNode_t copy = nullptr, node = nullptr;
  CUDA_OK(cudaGraphAddMemcpyNode1D(&copy, child, nullptr, 0, to, from, bytes, kind));
  CaptureInfo info;
  CUDA_OK(capture_info(stream, &info));
  CUDA_OK(cudaGraphAddChildGraphNode(&node, info.graph, info.dependencies, info.dependency_count, child));
  CUDA_OK(set_capture_dependency(stream, node));
}

void copy(Recorder& rec, Way way, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (way == Way::kRecorder) return rec.memcpy(to, from, bytes, kind);
  if (way == Way::kChildGraph && is_capturing(rec.stream())) {
    return copy_in_child_graph(rec.stream(), to, from, bytes, kind);
  }
  CUDA_OK(cudaMemcpyAsync(to, from, bytes, way == Way::kRawDefault ? cudaMemcpyDefault : kind, rec.stream()));
}

class HostMemoryCopiesTest : public HostMemoryTest {
 protected:
  // Lends `memory` to use(memory), filled with `value`, and fills it with other values when that has returned.
  template <class Use>
  static void use_filled(float* memory, float value, const Use& use) {
    std::fill_n(memory, kSize, value);
    use(memory);
    std::fill_n(memory, kSize, -1.0f);
  }

  // Runs a copy to `data` from memory that `with_source(value, use)` lends to use(source).
  template <class WithSource>
  void expect_direct_from(const WithSource& with_source) {
    Cache cache;
    for (const Way way : kWays) {
      SCOPED_TRACE(static_cast<int>(way));
      for (int i = 1; i <= 3; ++i) {
        EXPECT_RUN(kEager, cache.run(key("up", static_cast<int>(way)), stream, [&](Recorder& rec) {
          with_source(static_cast<float>(i), [&](const float* source) {
            copy(rec, way, data.get(), source, data.bytes(), cudaMemcpyHostToDevice);
          });
        }));
        EXPECT_EQ(data.read(), std::vector<float>(kSize, static_cast<float>(i)));
      }
      expect_advice(cache, key("up", static_cast<int>(way)));
    }
  }

  // Copies `data` into a local variable, in a key that is run from several depths of the stack.
  void expect_results_in_locals() {
    Cache cache;
    for (const Way way : kWays) {
      SCOPED_TRACE(static_cast<int>(way));
      float value = 0;
      for (const std::size_t depth : {64, 4096, 512, 512, 20000}) {
        data.write(std::vector<float>(kSize, ++value));
        deeper(depth, [&] {
          float result = -1;
          EXPECT_RUN(kEager, cache.run(key("down", static_cast<int>(way)), stream, [&](Recorder& rec) {
            copy(rec, way, &result, data.get(), sizeof result, cudaMemcpyDeviceToHost);
          }));
          CUDA_OK(cudaStreamSynchronize(stream));
          EXPECT_EQ(result, value) << depth;
        });
      }
      expect_advice(cache, key("down", static_cast<int>(way)));
    }
  }
};

TEST_F(HostMemoryCopiesTest, PageableMemoryIsReadWhileItExists) {
  expect_direct_from([](float value, const auto& use) {
    std::vector<float> temporary(kSize);
    use_filled(temporary.data(), value, use);
  });
  std::vector<float> outlives_the_runs(kSize);
  expect_direct_from([&](float value, const auto& use) { use_filled(outlives_the_runs.data(), value, use); });
  // A graph would crash, because the memory goes back to the system.
  expect_direct_from([](float value, const auto& use) {
    const Pages pages(4096);
    std::fill_n(pages.as<float>(), kSize, value);
    use(pages.as<float>());
  });
}

TEST_F(HostMemoryCopiesTest, TheStackOfFnIsReadAtAnyDepth) {
  for (const std::size_t depth : {16, 1 << 20}) {
    SCOPED_TRACE(depth);
    expect_direct_from([&](float value, const auto& use) {
      deeper(depth, [&] {
        auto* const local = static_cast<float*>(__builtin_alloca(kSize * sizeof(float)));
        use_filled(local, value, use);
      });
    });
  }
}

TEST_F(HostMemoryCopiesTest, AResultReachesTheLocalVariableOfItsRun) {
  expect_results_in_locals();
  for (const bool mapped : {false, true}) {
    SCOPED_TRACE(mapped ? "in a mapped fiber" : "in a fiber");
    Fiber(mapped).call([&] { expect_results_in_locals(); });
  }
}

TEST_F(HostMemoryCopiesTest, TheStackOfAFiberIsReadWhileItExists) {
  for (const bool mapped : {false, true}) {
    SCOPED_TRACE(mapped);
    const auto from_local = [](float value, const auto& use) {
      float local[kSize];
      use_filled(local, value, use);
    };
    Fiber(mapped).call([&] { expect_direct_from(from_local); });
  }
}

TEST_F(HostMemoryCopiesTest, TheStackOfAnotherThreadIsReadByEachRun) {
  std::promise<float*> place;
  std::promise<void> over;
  std::thread other([&] {
    float local[kSize] = {};
    place.set_value(local);
    over.get_future().wait();
  });
  float* const of_other = place.get_future().get();
  expect_direct_from([&](float value, const auto& use) { use_filled(of_other, value, use); });
  over.set_value();
  other.join();
}

TEST_F(HostMemoryCopiesTest, ARawEndBesideASlotCounts) {
  DeviceBuffer<float> other(kSize);
  float* const targets[] = {data.get(), other.get()};
  for (int i = 1; i <= 4; ++i) {
    const auto value = static_cast<float>(i);
    const auto bytes = static_cast<std::size_t>(4 + 4 * (i % 2));
    EXPECT_RUN(kEager, cache.run(key("to a slot"), stream, params(targets[i % 2]), [&](Recorder& rec, Slot<float*> to) {
      const std::vector<float> temporary(kSize, value);
      rec.memcpy(to, temporary.data(), data.bytes(), cudaMemcpyHostToDevice);
    }));
    DeviceBuffer<float>& target = i % 2 == 0 ? data : other;
    EXPECT_EQ(target.read(), std::vector<float>(kSize, value));
    expect_advice(cache, key("to a slot"));

    deeper(static_cast<std::size_t>(i) * 512, [&] {
      float result = -1;
      EXPECT_RUN(kEager, cache.run(key("from a slot"), stream, params(static_cast<const float*>(target.get())),
                                   [&](Recorder& rec, Slot<const float*> from) { rec.memcpy(&result, from, 4); }));
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(result, value);
    });
    expect_advice(cache, key("from a slot"));

    EXPECT_RUN(kEager, cache.run(key("a size"), stream, params(bytes), [&](Recorder& rec, Slot<std::size_t> size) {
      const std::vector<float> temporary(kSize, -value);
      rec.memcpy(data.get(), temporary.data(), size, cudaMemcpyHostToDevice);
    }));
    EXPECT_EQ(data.first(), -value);
    expect_advice(cache, key("a size"));
  }
}

TEST_F(HostMemoryCopiesTest, BothEndsOfACopyWithinTheHostCount) {
  PinnedBuffer<float> pinned(kSize, 3);
  for (const Way way : {Way::kRaw, Way::kRawDefault, Way::kRecorder}) {
    for (int i = 1; i <= 3; ++i) {
      const auto value = static_cast<float>(i);
      EXPECT_RUN(kEager, cache.run(key("from", static_cast<int>(way)), stream, [&](Recorder& rec) {
        const std::vector<float> temporary(kSize, value);
        copy(rec, way, pinned.get(), temporary.data(), pinned.bytes(), cudaMemcpyHostToHost);
      }));
      EXPECT_EQ(pinned.read(), std::vector<float>(kSize, value));
      deeper(static_cast<std::size_t>(i) * 512, [&] {
        std::vector<float> result(kSize);
        EXPECT_RUN(kEager, cache.run(key("to", static_cast<int>(way)), stream, [&](Recorder& rec) {
          copy(rec, way, result.data(), pinned.get(), pinned.bytes(), cudaMemcpyHostToHost);
        }));
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(result, std::vector<float>(kSize, value));
      });
    }
  }
}

// ---- Memory that a graph may use ------------------------------------------------------------------------------------

TEST_F(HostMemoryCopiesTest, MemoryThatTheRuntimeKnowsIsCopiedByGraphs) {
  PinnedBuffer<float> pinned(kSize);
  float* managed = nullptr;
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), data.bytes()));
  Pages pages(4096);
  CUDA_OK(cudaHostRegister(pages.get(), pages.bytes(), cudaHostRegisterDefault));
  float* const registered = pages.as<float>() + 100;
  int number = 0;
  for (float* const memory : {pinned.get(), managed, registered}) {
    for (const Way way : {Way::kRawDefault, Way::kRecorder, Way::kChildGraph}) {
      SCOPED_TRACE(number);
      float value = 0;
      for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
        std::fill_n(memory, kSize, ++value);
        EXPECT_TRUE(did(outcome, cache.run(key("known", number), stream, [&](Recorder& rec) {
          copy(rec, way, data.get(), memory, data.bytes(), cudaMemcpyDefault);
          rec.launch(add, {1, 32}, data.get(), kSize, 10.0f);
          copy(rec, way, memory, data.get(), data.bytes(), cudaMemcpyDefault);
        })));
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(std::vector<float>(memory, memory + kSize), std::vector<float>(kSize, value + 10));
      }
      ++number;
    }
  }
  cache.clear();
  CUDA_OK(cudaHostUnregister(pages.get()));
  std::fill_n(registered, kSize, 5.0f);
  EXPECT_RUN(kEager, cache.run(key("unregistered"), stream, [&](Recorder& rec) {
    rec.memcpy(data.get(), registered, data.bytes(), cudaMemcpyHostToDevice);
  }));
  EXPECT_EQ(data.first(), 5);
  expect_advice(cache, key("unregistered"));
  CUDA_OK(cudaFree(managed));
}

// The memory of earlier runs is gone, and other memory is at its address, so that an executable of before would lose
// the context (docs/semantics.md).
TEST_F(HostMemoryCopiesTest, MemoryMayBeRegisteredAnew) {
  Pages pages(4096);
  float* const memory = pages.as<float>();
  DeviceBuffer<float> twice(kSize), flag(1, 1);
  constexpr int kPlaces = 8;
  const auto run = [&](Cache& in, int place, int which) {
    return in.run(key("switches", place, which), stream, params(memory), [&](Recorder& rec, Slot<float*> slot) {
      const std::size_t bytes = data.bytes();
      const auto put = [&](void* to, const void* from) {
        CUDA_OK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, rec.stream()));
      };
      if (place < 4) {
        copy(rec, kWays[place], data.get(), memory, bytes, cudaMemcpyHostToDevice);
      } else if (place == 4) {
        CUDA_OK(
            cudaMemcpy2DAsync(data.get(), bytes / 2, memory, bytes / 2, bytes / 2, 2, cudaMemcpyDefault, rec.stream()));
      } else if (place == 5) {
        float* own = nullptr;
        CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&own), bytes, rec.stream()));
        put(own, memory);
        put(data.get(), own);
        CUDA_OK(cudaFreeAsync(own, rec.stream()));
      } else if (place == 6) {
        if_node(rec, reinterpret_cast<const unsigned*>(flag.get()),
                [&](Body& body) { body.memcpy(data.get(), memory, bytes); });
      } else {
        rec.memcpy(data.get(), slot, bytes);
      }
      rec.launch(add, {1, 32}, data.get(), kSize, static_cast<float>(100 * which));
      rec.memcpy(twice.get(), data.get(), bytes);
    });
  };
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdates, Sharing::kTable}) {
    for (int place = 0; place < kPlaces; ++place) {
      SCOPED_TRACE(testing::Message() << "sharing " << static_cast<int>(sharing) << ", place " << place);
      Cache small(forced(sharing, {.max_executables = 1}));
      int i = 0;
      for (const int which : {0, 0, 1, 0, 1, 1, 1, 0, 0}) {  // Switches, and hits.
        std::fill_n(memory, kSize, static_cast<float>(++i));
        CUDA_OK(cudaHostRegister(memory, pages.bytes(), cudaHostRegisterDefault));
        EXPECT_SUCCESS(run(small, place, which));
        EXPECT_EQ(twice.read(), std::vector<float>(kSize, static_cast<float>(i + 100 * which))) << i;
        CUDA_OK(cudaHostUnregister(memory));
      }
      EXPECT_EQ(small.stats().outcome(Outcome::kEager), 0u);
      EXPECT_EQ(small.stats().captures, 2u);
      for (const EntryInfo& info : small.entries()) EXPECT_NE(info.executable_lost, Loss::kFailed);
    }
  }
}

// Such a copy is set anew in the executable.
TEST_F(HostMemoryCopiesTest, MemoryOfASlotThatIsRegisteredAnewCostsNoInstantiation) {
  Pages pages(4096);
  float* const memory = pages.as<float>();
  for (const Sharing sharing : {Sharing::kNever, Sharing::kTable}) {
    const int keys = sharing == Sharing::kTable ? 3 : 1;
    Cache cache(forced(sharing, {.max_executables = 2}));
    std::uint64_t instantiations = 0;
    for (int i = 0; i < 12; ++i) {
      std::fill_n(memory, kSize, static_cast<float>(i));
      CUDA_OK(cudaHostRegister(memory, pages.bytes(), cudaHostRegisterDefault));
      const float by = static_cast<float>(i % keys);
      EXPECT_SUCCESS(cache.run(key("k", i % keys), stream, params(memory), [&](Recorder& rec, Slot<float*> from) {
        rec.memcpy(data.get(), from, data.bytes());
        rec.launch(add, {1, 32}, data.get(), kSize, by);
      }));
      EXPECT_EQ(data.read(), std::vector<float>(kSize, static_cast<float>(i) + by));
      CUDA_OK(cudaHostUnregister(memory));
      if (i == 2 * keys) instantiations = cache.stats().instantiations;
    }
    EXPECT_EQ(cache.stats().instantiations, instantiations) << "sharing " << static_cast<int>(sharing);
    EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
  }
}

// The driver makes a copy one of the host by the memory and the kind of its instantiation, for good
// (docs/semantics.md).
TEST_F(HostMemoryCopiesTest, OtherMemoryOfTheDeviceMayHaveTheAddressInACopyOfTheHost) {
  const PinnedBuffer<float> pinned(kSize);
  for (const bool has_slot : {false, true}) {
    SCOPED_TRACE(has_slot ? "instantiated with a slot of pinned memory" : "from managed memory, HostToDevice");
    const auto kind = has_slot ? ReusedMemory::Kind::kDevice : ReusedMemory::Kind::kManaged;
    ReusedMemory memory(kind);
    Cache cache;
    const auto run = [&](float* from, float value) {
      upload(from, std::vector<float>(kSize, value));
      const auto outcome = cache.run(key("k"), stream, params(from), [&](Recorder& rec, Slot<float*> slot) {
        if (has_slot) return rec.memcpy(data.get(), slot, data.bytes(), cudaMemcpyDefault);
        copy(rec, Way::kRaw, data.get(), from, data.bytes(), cudaMemcpyHostToDevice);
      });
      EXPECT_EQ(data.read(), std::vector<float>(kSize, value));
      return outcome;
    };
    EXPECT_RUN(kInstantiated, run(has_slot ? pinned.get() : memory.get(), 1));
    for (const float value : {2.0f, 3.0f, 4.0f}) EXPECT_SUCCESS(run(memory.get(), value));
    if (!memory.give_out_again(kind)) continue;
    EXPECT_TRUE(did(has_slot ? Outcome::kReplayed : Outcome::kRestored, run(memory.get(), 5)));
    EXPECT_RUN(kReplayed, run(memory.get(), 6));
  }
}

// An executable's copies stay of their devices, and CUDA does not notice another device at an address that stays
// (docs/semantics.md).
TEST_F(HostMemoryCopiesTest, AnotherDeviceMayHaveTheAddressOfACopy) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  using Kind = ReusedMemory::Kind;
  const PinnedBuffer<float> pinned(kSize);
  for (const bool is_value : {false, true}) {
    for (const auto& [before, now] :
         {std::pair(Kind::kPinned, Kind::kOtherDevice), std::pair(Kind::kOtherDevice, Kind::kPinned),
          std::pair(Kind::kManaged, Kind::kOtherDevice)}) {
      SCOPED_TRACE(testing::Message() << is_value << static_cast<int>(before) << static_cast<int>(now));
      ReusedMemory memory(before);
      Cache cache(Options{.share = Share::kAlways});
      const auto run = [&](float value, std::size_t bytes) {
        memory.fill(value, kSize);
        const auto outcome =
            is_value ? cache.run(key("k"), stream, values(memory.get()),
                                 [&](cudaStream_t on, float* from) {
                                   CUDA_OK(cudaMemcpyAsync(pinned.get(), from, bytes, cudaMemcpyDefault, on));
                                 })
                     : cache.run(key("k"), stream, params(memory.get(), bytes),
                                 [&](Recorder& rec, Slot<float*> from, Slot<std::size_t> size) {
                                   rec.memcpy(pinned.get(), from, size, cudaMemcpyDefault);
                                 });
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(pinned.get()[0], value);
        return outcome;
      };
      const std::size_t all = data.bytes(), less = is_value ? all : all / 2;
      EXPECT_RUN(kInstantiated, run(1, all));
      EXPECT_RUN(kReplayed, run(2, all));
      if (!memory.give_out_again(now)) continue;
      EXPECT_SUCCESS(run(3, all));
      EXPECT_SUCCESS(run(4, all));
      if (!memory.give_out_again(before)) continue;
      EXPECT_SUCCESS(run(5, less));
      EXPECT_SUCCESS(run(6, all));
    }
  }
}

// Memory that the graph allocates is of a device, so a copy may be one between devices.
TEST_F(HostMemoryCopiesTest, MemoryOfAnotherDeviceMayBeGivenOutAgainBesideMemoryOfTheGraph) {
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  ReusedMemory memory(ReusedMemory::Kind::kOtherDevice);
  Cache cache;
  const auto run = [&](float value) {
    memory.fill(value, kSize);
    const auto outcome = cache.run(key("k"), stream, params(memory.get()), [&](Recorder& rec, Slot<float*> far) {
      float* own = nullptr;
      CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&own), data.bytes(), rec.stream()));
      rec.memcpy(own, far, data.bytes());
      rec.memcpy(data.get(), own, data.bytes());
      CUDA_OK(cudaFreeAsync(own, rec.stream()));
    });
    EXPECT_EQ(data.read(), std::vector<float>(kSize, value));
    return outcome;
  };
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_RUN(kReplayed, run(2));
  if (!memory.give_out_again(ReusedMemory::Kind::kOtherDevice)) GTEST_SKIP() << "the allocator has other memory";
  EXPECT_RUN(kRestored, run(3));
  EXPECT_RUN(kReplayed, run(4));
}

TEST_F(HostMemoryCopiesTest, WarmSeesThatTheMemoryOfACopyIsAnother) {
  Pages pages(4096);
  Cache cache;
  const auto fn = [&](Recorder& rec) { rec.memcpy(data.get(), pages.get(), data.bytes()); };
  for (const float value : {1.0f, 2.0f}) {
    std::fill_n(pages.as<float>(), kSize, value);
    CUDA_OK(cudaHostRegister(pages.get(), pages.bytes(), cudaHostRegisterDefault));
    EXPECT_SUCCESS(cache.warm(key("k"), stream, fn));
    const std::uint64_t instantiations = cache.stats().instantiations;
    EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
    EXPECT_EQ(cache.stats().instantiations, instantiations);
    EXPECT_EQ(data.read(), std::vector<float>(kSize, value));
    CUDA_OK(cudaHostUnregister(pages.get()));
  }
}

TEST_F(HostMemoryCopiesTest, KeysAreSiblingsAlsoIfTheMemoryOfTheirSlotsIsGone) {
  for (const cudaMemoryType type : {cudaMemoryTypeDevice, cudaMemoryTypeManaged, cudaMemoryTypeHost}) {
    Cache cache(Options{.max_executables = 1});
    for (int i = 0; i < 8; ++i) {
      void* memory = nullptr;
      CUDA_OK(type == cudaMemoryTypeDevice    ? cudaMalloc(&memory, data.bytes())
              : type == cudaMemoryTypeManaged ? cudaMallocManaged(&memory, data.bytes())
                                              : cudaMallocHost(&memory, data.bytes()));
      const std::vector<float> value(kSize, static_cast<float>(i));
      upload(memory, value);
      const auto outcome = cache.run(key("k", i % 2), stream, params(memory), [&](Recorder& rec, Slot<void*> from) {
        rec.memcpy(data.get(), from, data.bytes(), cudaMemcpyDefault);
        rec.launch(add, {1, 32}, data.get(), kSize, static_cast<float>(i % 2));
      });
      EXPECT_SUCCESS(outcome);
      EXPECT_EQ(data.read(), std::vector<float>(kSize, static_cast<float>(i + i % 2)));
      CUDA_OK(type == cudaMemoryTypeHost ? cudaFreeHost(memory) : cudaFree(memory));
    }
    EXPECT_EQ(cache.stats().instantiations, 1u) << "memory of type " << type;
  }
}

TEST_F(HostMemoryCopiesTest, MemoryOfASlotMayBecomePageableWhenItsSizeChanges) {
  Pages pages(4096);
  float* const memory = pages.as<float>();
  float* managed = nullptr;
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), data.bytes()));
  Cache cache;
  int value = 0;
  const auto run = [&](std::size_t bytes) {
    std::fill_n(memory, kSize, static_cast<float>(++value));
    const auto outcome = cache.run(key("k"), stream, params(memory, bytes),
                                   [&](Recorder& rec, Slot<float*> from, Slot<std::size_t> size) {
                                     rec.memcpy(managed, from, size, cudaMemcpyDefault);
                                   });
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(managed[0], static_cast<float>(value));
    return outcome;
  };
  CUDA_OK(cudaHostRegister(memory, pages.bytes(), cudaHostRegisterDefault));
  EXPECT_RUN(kInstantiated, run(data.bytes()));
  EXPECT_RUN(kReplayed, run(data.bytes()));
  CUDA_OK(cudaHostUnregister(memory));
  EXPECT_RUN(kEager, run(sizeof(float)));
  EXPECT_SUCCESS(run(data.bytes()));
  CUDA_OK(cudaFree(managed));
}

// The runtime does not know it until the graph's first launch.
TEST_F(HostMemoryCopiesTest, MemoryThatTheGraphAllocatesIsCopiedByGraphs) {
  for (const bool with_slot : {false, true}) {
    for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
      data.write(std::vector<float>(kSize, 2));
      EXPECT_TRUE(did(
          outcome, cache.run(key("own", with_slot), stream, params(data.get()), [&](Recorder& rec, Slot<float*> slot) {
            const Arg<const void*> from = with_slot ? Arg<const void*>(slot) : data.get();
            float* own = nullptr;
            CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&own), data.bytes(), rec.stream()));
            rec.memcpy(own, from, data.bytes());
            rec.launch(add, {1, 32}, own, kSize, 1.0f);
            rec.memcpy(data.get(), own, data.bytes());
            CUDA_OK(cudaFreeAsync(own, rec.stream()));
          })));
      EXPECT_EQ(data.read(), std::vector<float>(kSize, 3));
    }
  }
}

// Another allocation may begin where that of the graph ends.
TEST(ContentTest, AGraphAllocatesOnlyWhatIsInside) {
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<const void*>(address); };
  Content content;
  content.allocated = {{4096, 512}};
  for (const std::uintptr_t inside : {4096, 4607}) EXPECT_TRUE(content.allocates(at(inside))) << inside;
  for (const std::uintptr_t outside : {4095, 4608}) EXPECT_FALSE(content.allocates(at(outside))) << outside;
}

// To the driver it is the device's from the first. Other memory is what it is also in a graph that allocates.
TEST_F(HostMemoryCopiesTest, MemoryBesideThatOfTheGraphIsAskedFor) {
  Pages pages(4096);
  float* const memory = pages.as<float>();
  DeviceBuffer<float> on_device(kSize);
  for (const bool uses_own : {false, true}) {
    SCOPED_TRACE(uses_own);
    Cache cache;
    float value = 0;
    const auto run = [&](float* from) {
      upload(from, std::vector<float>(kSize, ++value));
      const auto outcome = cache.run(key("k"), stream, params(from), [&](Recorder& rec, Slot<float*> slot) {
        float* own = nullptr;
        CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&own), data.bytes(), rec.stream()));
        rec.memcpy(uses_own ? own : data.get(), slot, data.bytes(), cudaMemcpyDefault);
        if (uses_own) rec.memcpy(data.get(), own, data.bytes());
        CUDA_OK(cudaFreeAsync(own, rec.stream()));
      });
      EXPECT_EQ(data.read(), std::vector<float>(kSize, value));
      return outcome;
    };
    for (int i = 0; i < 2; ++i) EXPECT_SUCCESS(run(uses_own ? on_device.get() : memory));
    if (uses_own) {
      EXPECT_RUN(kEager, run(memory));
    }
    CUDA_OK(cudaHostRegister(memory, pages.bytes(), cudaHostRegisterDefault));
    for (int i = 0; i < 2; ++i) EXPECT_SUCCESS(run(memory));
    CUDA_OK(cudaHostUnregister(memory));
    EXPECT_SUCCESS(run(memory));
  }
}

// What fn frees before it returns is gone when the graph is launched.
TEST_F(HostMemoryCopiesTest, PinnedMemoryThatFnFreesIsReadWhileItExists) {
  for (const cudaStreamCaptureMode mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    SCOPED_TRACE(mode);
    Cache cache({.capture_mode = mode});
    for (int i = 1; i <= 3; ++i) {
      EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
        float* pinned = nullptr;
        cudaError_t error = cudaMallocHost(reinterpret_cast<void**>(&pinned), data.bytes());
        if (error != cudaSuccess) return error;
        std::fill_n(pinned, kSize, static_cast<float>(i));
        error = cudaMemcpyAsync(data.get(), pinned, data.bytes(), cudaMemcpyHostToDevice, on);
        const cudaError_t freed = cudaFreeHost(pinned);
        return error != cudaSuccess ? error : freed;
      }));
      EXPECT_EQ(data.read(), std::vector<float>(kSize, static_cast<float>(i)));
    }
  }
}

TEST_F(HostMemoryCopiesTest, TheErrorIsReturnedIfTheCacheIsToldTo) {
  Cache cache({.on_capture_failure = OnCaptureFailure::kReturnError});
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<Outcome> outcome = cache.run(key("k"), stream, [&](Recorder& rec) {
      const std::vector<float> temporary(kSize, 1);
      rec.memcpy(data.get(), temporary.data(), data.bytes());
    });
    EXPECT_ERROR(kFailedPrecondition, outcome, kOfCopy, "pass the pointer as a slot");
  }
  EXPECT_EQ(data.first(), 0);
}

}  // namespace
}  // namespace graphcache::test
