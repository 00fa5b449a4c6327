// Runs inside runs, on either runtime.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "cache_support.h"

namespace graphcache::test {
namespace {

TEST_F(CacheTest, NestedRunOnTheSameStreamIsInlinedWhetherItsKeyIsKnownOrNot) {
  Cache cache;
  std::vector<Outcome> inner;
  const auto run_inner = [&](cudaStream_t on) {
    return cache.run(key("inner"), on, [&](cudaStream_t s) {
      ++calls;
      return add_value(s, 10);
    });
  };
  const auto run = [&](const char* name) {
    return cache.run(key(name), stream, [&](cudaStream_t on) {
      add_one(on);
      const auto outcome = run_inner(on);
      inner.push_back(outcome.value_or(Outcome::kSwitched));
      return outcome.status();
    });
  };
  EXPECT_RUN(kInstantiated, run("outer"));
  EXPECT_RUN(kReplayed, run("outer"));
  EXPECT_RUN(kReplayed, run("outer"));
  EXPECT_EQ(inner, std::vector<Outcome>{Outcome::kInlined});
  EXPECT_EQ(calls, 1);
  expect_sum(33);
  EXPECT_EQ(cache.stats().outcome(Outcome::kInlined), 1u);
  EXPECT_FALSE(cache.contains(key("inner")));

  EXPECT_RUN(kInstantiated, run_inner(stream));
  EXPECT_RUN(kInstantiated, run("of a known key"));
  EXPECT_RUN(kReplayed, run("of a known key"));
  EXPECT_RUN(kReplayed, run_inner(stream));
  EXPECT_EQ(inner, (std::vector<Outcome>{Outcome::kInlined, Outcome::kInlined}));
  expect_sum(75);
}

// The inner run makes a call that CUDA refuses, because the graph's former executable still waits for its destruction.
// There is no call that brings the older error back, so the newer one stays. It is not an error of the outer run's fn.
TEST_F(CacheTest, AnErrorThatAnInnerRunLeavesInThePlaceOfAnOlderOneFailsNoOuterRun) {
  Cache cache(unshared(1)), outer(unshared(0));
  Stream other;
  const auto allocates = [&](cudaStream_t on) {
    void* memory = nullptr;
    CUDA_OK(cudaMallocAsync(&memory, 64, on));
    CUDA_OK(add_one(on));
    CUDA_OK(cudaFreeAsync(memory, on));
  };
  EXPECT_RUN(kInstantiated, cache.run(key("allocates"), stream, allocates));
  CUDA_OK(cudaStreamSynchronize(stream));  // Two streams must not add at once.
  EXPECT_RUN(kInstantiated, cache.run(key("evicts"), other, [&](cudaStream_t on) { return add_one(on); }));
  CUDA_OK(cudaStreamSynchronize(other));
  cudaGraph_t none = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &none), cudaErrorIllegalState);
  EXPECT_RUN(kEager, outer.run(key("outer"), stream, [&](cudaStream_t on) {
    EXPECT_RUN(kRestored, cache.run(key("allocates"), on, allocates));
    return add_one(on);
  }));
  EXPECT_NE(cudaGetLastError(), cudaSuccess);
  // An error of fn's own still is one.
  ASSERT_EQ(cudaStreamEndCapture(stream, &none), cudaErrorIllegalState);
  EXPECT_FAILURE(kInvalidArgument, outer.run(key("fails"), stream, [&](cudaStream_t on) {
    (void)launch(add, dim3(0), kBlock, on, data.get(), kSize, 1.0f);
  }));
  cudaGetLastError();
  expect_sum(4);
}

TEST_F(CacheTest, NestedRunOnAForkedStreamIsInlined) {
  Cache cache;
  Branch other;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        did(i == 0 ? Outcome::kInstantiated : Outcome::kReplayed, cache.run(key("outer"), stream, [&](cudaStream_t on) {
          other.fork(on, [&] {
            EXPECT_RUN(kInlined, cache.run(key("inner"), other.stream, [&](cudaStream_t s) {
              return launch(add, kGrid, kBlock, s, other.data.get(), kSize, 1.0f);
            }));
          });
          return add_one(on);
        })));
  }
  expect_sum(3);
  EXPECT_EQ(other.data.read(), std::vector<float>(kSize, 3));
}

TEST_F(CacheTest, NestedRunWithParamsMakesTheOuterRunEager) {
  Cache cache;
  float sum = 0;
  for (int i = 1; i <= 8; ++i) {
    const auto value = static_cast<float>(i);
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      add_one(on);
      return run_add(cache, on, value).status();
    }));
    expect_sum(sum += 1 + value);
  }
}

// A graph of the outer run would miss the work of the inner one.
TEST_F(CacheTest, NestedRunOnAnIndependentStreamMakesTheOuterRunEager) {
  Cache cache;
  Branch other;
  for (int i = 1; i <= 8; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      EXPECT_SUCCESS(cache.run(key("inner"), other.stream, [&](cudaStream_t s) {
        return launch(add, kGrid, kBlock, s, other.data.get(), kSize, 1.0f);
      }));
      return add_one(on);
    }));
    expect_sum(static_cast<float>(i));
    EXPECT_EQ(other.data.read(), std::vector<float>(kSize, static_cast<float>(i)));
  }
  EXPECT_EQ(cache.stats().outcome(Outcome::kInstantiated), 1u);  // of the inner key
  EXPECT_EQ(cache.stats().outcome(Outcome::kReplayed), 7u);
}

TEST_F(CacheTest, RecursionWithTheSameKeyOnAnotherStreamRunsThere) {
  Cache cache;
  Branch other;
  std::function<cudaError_t(cudaStream_t)> fn = [&](cudaStream_t on) {
    if (on != other.stream) {
      EXPECT_TRUE(cache.run(key("k"), other.stream, fn).ok());
    }
    return launch(add, kGrid, kBlock, on, on == other.stream ? other.data.get() : data.get(), kSize, 1.0f);
  };
  EXPECT_RUN(kEager, cache.run(key("k"), stream, fn));
  expect_sum(1);
  EXPECT_EQ(other.data.read(), std::vector<float>(kSize, 1));
}

TEST_F(CacheTest, EvictedKeyIsNotNewAgain) {
  for (const bool keeps_templates : {false, true}) {
    Options options = keeps_templates ? unshared(1) : without_templates(1);
    options.capture_after = 1;
    Cache cache(options);
    calls = 0;
    EXPECT_RUN(kEager, run_add(cache, key("a")));
    EXPECT_RUN(kInstantiated, run_add(cache, key("a")));
    EXPECT_RUN(kEager, run_add(cache, key("b")));
    EXPECT_RUN(kInstantiated, run_add(cache, key("b")));  // evicts "a"
    EXPECT_EQ(cache.contains(key("a")), keeps_templates);
    ASSERT_EQ(cache.entries().size(), 2u);
    EXPECT_EQ(cache.entries()[1].label, "a");
    EXPECT_FALSE(cache.entries()[1].live);
    EXPECT_EQ(cache.entries()[1].recorded, keeps_templates);
    EXPECT_EQ(cache.entries()[1].outcomes[static_cast<int>(Outcome::kInstantiated)], 1u);
    EXPECT_TRUE(did(keeps_templates ? Outcome::kRestored : Outcome::kInstantiated, run_add(cache, key("a"))));
    EXPECT_EQ(cache.stats().eager(EagerReason::kCaptureAfter), 2u);
    EXPECT_EQ(calls, keeps_templates ? 4 : 5);
  }
  expect_sum(10);
}

TEST_F(CacheTest, RecursionWithTheSameKeyOnTheSameStreamIsInlined) {
  Cache cache;
  int depth = 0;
  std::function<cudaError_t(cudaStream_t)> fn = [&](cudaStream_t on) {
    if (depth++ == 0) {
      EXPECT_RUN(kInlined, cache.run(key("k"), on, fn));
    }
    return add_one(on);
  };
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, fn));
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, fn));
  expect_sum(4);
}

TEST_F(CacheTest, ANestedRunOfAnEmptyFnIsRefusedAndTheOuterRunGoesOn) {
  Cache cache;
  for (int i = 0; i < 2; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      EXPECT_FAILURE(kInvalidArgument, cache.run(key("inner"), on, std::function<void(cudaStream_t)>()));
      return add_one(on);
    }));
  }
  expect_sum(2);
}

// The work would become part of a graph that the cache does not know.
TEST_F(CacheTest, NestedRunOnAStreamThatFnItselfCapturesIsRefused) {
  Cache cache;
  Stream other;
  EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    EXPECT_FAILURE(kFailedPrecondition, cache.run(key("inner"), other, [&](cudaStream_t s) { return add_one(s); }));
    EXPECT_EQ(end_capture(other), 0u);
    return add_one(on);
  }));
  expect_sum(1);
}

TEST_F(CacheTest, ExceptionOfANestedRunPasses) {
  Cache cache;
  EXPECT_THROW((void)cache.run(key("outer"), stream,
                               [&](cudaStream_t on) {
                                 return cache.run(key("inner"), on, [](cudaStream_t) { throw 7; }).status();
                               }),
               int);
  EXPECT_FALSE(is_capturing(stream));
  EXPECT_EQ(cache.stats().failed, 3u);  // The inner run under capture, both runs in the direct call.
  EXPECT_RUN(kInstantiated, run_add(cache, key("outer")));
  expect_sum(1);
}

// A graph without the inner work would be replayed.
TEST_F(CacheTest, OuterRunIsDirectIfItIgnoresThatAnInnerRunFailsOrThrows) {
  const auto expect_direct = [&](const char* name, bool does_inner_work, const auto& inner) {
    SCOPED_TRACE(name);
    Cache cache;
    reset_sum();
    for (int i = 1; i <= 5; ++i) {
      EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
        try {
          const auto outcome = cache.run(key("inner"), on, inner);
          EXPECT_EQ(absl::IsDataLoss(outcome.status()), !does_inner_work);
        } catch (const std::runtime_error&) {
        }
        return add_one(on);
      }));
      expect_sum(static_cast<float>(does_inner_work ? 2 * i : i));
    }
  };
  expect_direct("fails", false, [](cudaStream_t) { return absl::DataLossError("mine"); });
  // Stands for libraries that refuse to work on a capturing stream.
  expect_direct("fails under capture alone", true, [&](cudaStream_t on) {
    return is_capturing(on) ? absl::UnavailableError("not under capture")
                            : absl::Status(detail::fn_failure(add_one(on)));
  });
  expect_direct("throws under capture alone", true, [&](cudaStream_t on) {
    if (is_capturing(on)) throw std::runtime_error("not under capture");
    CUDA_OK(add_one(on));
  });
}

}  // namespace
}  // namespace graphcache::test
