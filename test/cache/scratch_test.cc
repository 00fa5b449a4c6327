// Temporaries that many keys share (docs/guide/memory.md): one buffer for each stream, and memory that graphs
// allocate. The result of each key is compared with that of its work alone.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "cache_support.h"
#include "runs/threads_support.h"

namespace graphcache::test {
namespace {

constexpr int kKeys = 16, kMost = 1000;
int size_of(int which) { return kMost / kKeys * (which + 1); }

class ScratchTest : public CacheTest {
 protected:
  ScratchTest() { sum.write(std::vector<float>(kMost)); }

  // Fills the temporary with the key's number, in several steps, and adds it to the sum.
  static cudaError_t work(cudaStream_t on, float* temporary, float* into, int which) {
    const int n = size_of(which);
    const auto value = static_cast<float>(which + 1);
    cudaError_t error = launch(fill, dim3(4), dim3(256), on, temporary, n, value);
    if (error == cudaSuccess) error = launch(add, dim3(4), dim3(256), on, temporary, n, value);
    return error == cudaSuccess ? launch(axpy, dim3(4), dim3(256), on, into, temporary, n, 1.0f) : error;
  }
  // `rounds` of all keys, each in another order.
  static void run_all(int rounds, const std::function<absl::StatusOr<Outcome>(int)>& run) {
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < kKeys; ++i) {
        EXPECT_SUCCESS(run((i * 5 + round) % kKeys));
      }
    }
  }
  // Six rounds on caches with room for all keys and for few. Each key is captured once.
  void expect_captured_once(bool have_siblings, const std::function<absl::StatusOr<Outcome>(Cache&, int)>& run) {
    for (const int executables : {64, 4}) {
      SCOPED_TRACE(executables);
      sum.write(std::vector<float>(kMost));
      Cache cache(renting(executables));
      run_all(6, [&](int which) { return run(cache, which); });
      expect_rounds(6, sum);
      EXPECT_EQ(cache.stats().captures, static_cast<std::uint64_t>(kKeys));
      EXPECT_EQ(cache.stats().families != 0, have_siblings);
      EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
    }
  }
  static void expect_rounds(int rounds, const DeviceBuffer<float>& of) {
    std::vector<float> wanted(kMost);
    for (int which = 0; which < kKeys; ++which) {
      for (int i = 0; i < size_of(which); ++i) {
        wanted[static_cast<std::size_t>(i)] += static_cast<float>(rounds * 2 * (which + 1));
      }
    }
    EXPECT_EQ(of.read(), wanted);
  }

  DeviceBuffer<float> sum{kMost};
};

TEST_F(ScratchTest, AllKeysOfAStreamShareABuffer) {
  DeviceBuffer<float> scratch(kMost, -1);
  expect_captured_once(/*have_siblings=*/true, [&](Cache& cache, int which) {
    return cache.run(key("k", which, scratch.get()), stream,
                     [&](cudaStream_t on) { return work(on, scratch.get(), sum.get(), which); });
  });
}

// The buffer is part of the key, so each thread's runs have graphs of its own buffer.
TEST_F(ScratchTest, EachThreadHasAStreamAndABufferOfItsOwn) {
  constexpr int kThreads = 3, kRounds = 5;
  struct Lane {
    Stream stream;
    DeviceBuffer<float> scratch{kMost, -1}, sum{kMost};
  };
  std::vector<Lane> lanes(kThreads);
  Cache cache(renting(8));
  in_threads(kThreads, [&](int i) {
    const Lane& lane = lanes[static_cast<std::size_t>(i)];
    run_all(kRounds, [&](int which) {
      return cache.run(key("k", which, lane.scratch.get()), lane.stream,
                       [&](cudaStream_t on) { return work(on, lane.scratch.get(), lane.sum.get(), which); });
    });
  });
  for (const Lane& lane : lanes) expect_rounds(kRounds, lane.sum);
}

// The graphs own the memory, and CUDA assigns it to one after the other.
TEST_F(ScratchTest, EachGraphAllocatesAndFrees) {
  // CUDA clones no such graph.
  expect_captured_once(/*have_siblings=*/false, [&](Cache& cache, int which) {
    return cache.run(key("k", which), stream, [&](cudaStream_t on) {
      void* temporary = nullptr;
      cudaError_t error = cudaMallocAsync(&temporary, static_cast<std::size_t>(size_of(which)) * sizeof(float), on);
      if (error == cudaSuccess) error = work(on, static_cast<float*>(temporary), sum.get(), which);
      return error == cudaSuccess ? cudaFreeAsync(temporary, on) : error;
    });
  });
}

// A buffer that must grow is replaced, and so are the graphs that point to it.
TEST_F(ScratchTest, ALargerBufferIsAnotherKey) {
  Cache cache(renting());
  auto scratch = std::make_unique<DeviceBuffer<float>>(size_of(0));
  int captures = 0;
  run_all(3, [&](int which) {
    if (scratch->size() < size_of(which)) {
      cache.clear();  // waits for launches that use the old one
      scratch = std::make_unique<DeviceBuffer<float>>(size_of(which));
    }
    return cache.run(key("k", which, scratch->get()), stream, [&](cudaStream_t on) {
      ++captures;
      return work(on, scratch->get(), sum.get(), which);
    });
  });
  expect_rounds(3, sum);
  EXPECT_GE(captures, kKeys);
}

}  // namespace
}  // namespace graphcache::test
