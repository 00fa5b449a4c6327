// The data of host functions. A graph calls them at each launch, after fn has returned, so a key runs directly if such
// data is on a stack or in other pageable memory. Static data, pinned memory and numbers are used by graphs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "host_memory_support.h"

namespace graphcache::test {
namespace {

// A zero on the stack. AddressSanitizer may keep local variables elsewhere, but not this.
#define ZERO_ON_THE_STACK() (new (__builtin_alloca(sizeof(int))) int(0))

class HostFunctionsTest : public HostMemoryTest {
 protected:
  static void count(void* number) { ++*static_cast<int*>(number); }
  // A run whose host function counts.
  absl::StatusOr<Outcome> run_count(Cache& cache, const Key& of, int* calls) {
    return cache.run(of, stream, [calls](cudaStream_t on) { return cudaLaunchHostFunc(on, count, calls); });
  }

  // Each run counts in a local variable, at several depths of the stack.
  void expect_counts_in_locals() {
    Cache cache;
    for (const std::size_t depth : {64, 4096, 512, 512, 20000}) {
      deeper(depth, [&] {
        int* const calls = ZERO_ON_THE_STACK();
        EXPECT_RUN(kEager, run_count(cache, key("k"), calls));
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(*calls, 1) << depth;
      });
    }
    expect_advice(cache, key("k"), kOfFunction);
  }
};

TEST_F(HostFunctionsTest, DataInALocalVariableOfTheCallerRunsDirectly) {
  expect_counts_in_locals();
  for (const bool mapped : {false, true}) {
    SCOPED_TRACE(mapped ? "in a mapped fiber" : "in a fiber");
    Fiber(mapped).call([&] { expect_counts_in_locals(); });
  }
}

// A fiber may use data of the frames that started it.
TEST_F(HostFunctionsTest, DataOnTheThreadsStackRunsDirectlyInAFiber) {
  int* const calls = ZERO_ON_THE_STACK();
  Fiber fiber(/*mapped=*/true);
  fiber.call([&] {
    EXPECT_RUN(kEager, run_count(cache, key("k"), calls));
    CUDA_OK(cudaStreamSynchronize(stream));
  });
  EXPECT_EQ(*calls, 1);
  expect_advice(cache, key("k"), kOfFunction);
}

// The function reads nothing, because a direct run may call it after fn has returned.
TEST_F(HostFunctionsTest, DataInALocalVariableOfFnRunsDirectly) {
  static int calls = 0;
  calls = 0;
  for (int i = 1; i <= 2; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
      void* const local = __builtin_alloca(64);
      return cudaLaunchHostFunc(
          on, [](void*) { ++calls; }, local);
    }));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(calls, i);
  }
  expect_advice(cache, key("k"), kOfFunction);
}

int in_the_module = 0;
thread_local int of_the_thread = 0;

// Data that is used once.
struct Once {
  int value;
  static void use(void* once) { in_the_module += std::exchange(static_cast<Once*>(once)->value, 1000); }
};

TEST_F(HostFunctionsTest, StaticDataPinnedMemoryAndNumbersAreUsedByGraphs) {
  const PinnedBuffer<int> pinned(1);
  const Pages pages(4096);
  CUDA_OK(cudaHostRegister(pages.as<int>(), 4096, cudaHostRegisterDefault));
  int number = 0;
  for (const bool in_fiber : {false, true}) {
    Fiber fiber(/*mapped=*/true);
    for (int* const calls : {&in_the_module, pinned.get(), pages.as<int>()}) {
      *calls = 0;
      const auto run_twice = [&] {
        for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
          EXPECT_TRUE(did(outcome, run_count(cache, key("k", number), calls)));
        }
      };
      if (in_fiber && calls == pages.as<int>()) continue;  // It may lie beside the fiber's stack.
      in_fiber ? fiber.call(run_twice) : run_twice();
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(*calls, 2) << number;
      ++number;
    }
  }
  CUDA_OK(cudaHostUnregister(pages.as<int>()));
  in_the_module = 0;
  const auto add_number = [](void* data) { in_the_module += static_cast<int>(reinterpret_cast<std::intptr_t>(data)); };
  for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
    EXPECT_TRUE(did(outcome, cache.run(key("number"), stream, [&](cudaStream_t on) {
      return cudaLaunchHostFunc(on, add_number, reinterpret_cast<void*>(7));
    })));
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(in_the_module, 14);
}

// The usual way to hand data over. A graph's second launch would use what the first one has freed.
TEST_F(HostFunctionsTest, DataThatTheFunctionFreesRunsDirectly) {
  in_the_module = 0;
  // Kept until the end, because no function uses the data of the call under capture.
  std::vector<std::unique_ptr<Once>> handed_over;
  for (int i = 1; i <= 4; ++i) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t on) {
      handed_over.push_back(std::make_unique<Once>(Once{i}));
      return cudaLaunchHostFunc(on, &Once::use, handed_over.back().get());
    }));
    CUDA_OK(cudaStreamSynchronize(stream));
  }
  EXPECT_EQ(in_the_module, 10);
  expect_advice(cache, key("k"), kOfFunction);
}

TEST_F(HostFunctionsTest, DataInOtherPageableMemoryRunsDirectly) {
  const auto on_the_heap = std::make_unique<int>();
  const Pages pages(1 << 20);
  std::thread([&] {
    for (int* const calls : {on_the_heap.get(), pages.as<int>(), &of_the_thread, ZERO_ON_THE_STACK()}) {
      *calls = 0;
      for (int i = 1; i <= 3; ++i) {
        EXPECT_RUN(kEager, run_count(cache, key("k", calls), calls));
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(*calls, i);
      }
      expect_advice(cache, key("k", calls), kOfFunction);
    }
  }).join();
  int* const of_this_thread = ZERO_ON_THE_STACK();
  std::thread([&] {
    for (int i = 1; i <= 2; ++i) EXPECT_RUN(kEager, run_count(cache, key("of another thread"), of_this_thread));
  }).join();
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(*of_this_thread, 2);
}

// A function of another shared object, here the C library's. Such libraries keep their data alive, unless it is on a
// stack.
TEST_F(HostFunctionsTest, DataOfALibrarysFunctionMayBeOnTheHeap) {
  const auto seed = reinterpret_cast<cudaHostFn_t>(reinterpret_cast<void (*)()>(&lcong48));
  const auto draw_behind = [&](auto* parameters, Outcome outcome) {
    EXPECT_TRUE(did(outcome, cache.run(key("k", parameters), stream,
                                       [&](cudaStream_t on) { return cudaLaunchHostFunc(on, seed, parameters); })));
    CUDA_OK(cudaStreamSynchronize(stream));
    return lrand48();
  };
  const auto on_the_heap =
      std::make_unique<std::array<unsigned short, 7>>(std::array<unsigned short, 7>{1, 2, 3, 4, 5, 6, 7});
  lcong48(on_the_heap->data());
  const long wanted = lrand48();
  EXPECT_EQ(draw_behind(on_the_heap->data(), Outcome::kInstantiated), wanted);
  EXPECT_EQ(draw_behind(on_the_heap->data(), Outcome::kReplayed), wanted);
  const auto draw_on_the_stack = [&] {
    auto* const parameters = new (__builtin_alloca(sizeof *on_the_heap)) std::array<unsigned short, 7>(*on_the_heap);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(draw_behind(parameters->data(), Outcome::kEager), wanted);
  };
  draw_on_the_stack();
  Fiber(/*mapped=*/true).call(draw_on_the_stack);
}

// Far from the frame of the run, and beyond a large frame of a fiber.
TEST_F(HostFunctionsTest, DataFarUpTheStackRunsDirectly) {
  int* const calls = ZERO_ON_THE_STACK();
  deeper(900 << 10, [&] { EXPECT_RUN(kEager, run_count(cache, key("k"), calls)); });
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(*calls, 1);
}

TEST_F(HostFunctionsTest, TheErrorIsReturnedIfTheCacheIsToldTo) {
  Cache cache({.on_capture_failure = OnCaptureFailure::kReturnError});
  int* const calls = ZERO_ON_THE_STACK();
  EXPECT_ERROR(kFailedPrecondition, run_count(cache, key("k"), calls), kOfFunction);
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(*calls, 0);
}

}  // namespace
}  // namespace graphcache::test
