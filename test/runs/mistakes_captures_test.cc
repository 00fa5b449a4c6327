// Mistakes in `fn` that break a capture or leave it empty: what the run does, and what it reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "graphcache/observe.h"
#include "graphcache/status.h"
#include "verify_support.h"

namespace graphcache::test {
namespace {

class MistakesTest : public CacheTest {
 protected:
  // Like code that checks every call.
  static void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    throw std::runtime_error(cudaGetErrorName(error));
  }
  static void allocate() {
    void* memory = nullptr;
    check(cudaMalloc(&memory, 64));
    check(cudaFree(memory));
  }
  static void allocate_unchecked() {
    void* memory = nullptr;
    if (cudaMalloc(&memory, 64) == cudaSuccess) cudaFree(memory);
  }
  static std::string error_of(const Cache& cache, const std::string& label = "k") {
    return entry_of(cache, label.substr(0, 32)).error;
  }
};

TEST_F(MistakesTest, AnExceptionOfTheDirectCallPasses) {
  Cache cache;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      ++calls;
      if (!is_capturing(on)) throw std::runtime_error("of the direct call");
      allocate();
    });
  };
  EXPECT_THAT([&] { (void)run(); }, testing::ThrowsMessage<std::runtime_error>("of the direct call"));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(cache.stats().failed, 1u);
}

TEST_F(MistakesTest, ACallThatBreaksTheCaptureIsPlacedBetweenTwoRecordedOnes) {
  Cache cache;
  EXPECT_RUN(kEager, cache.run(key("k"), stream, params(1.0f), [&](Recorder& rec, Slot<float> value) {
    rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, 3.0f);
    rec.launch(add, {kGrid, kBlock}, data.get(), kSize, value);
    allocate_unchecked();
    rec.launch(scale, {kGrid, kBlock}, data.get(), data.get(), kSize, 2.0f);
  }));
  expect_sum(8);
  const std::string error = error_of(cache);
  EXPECT_TRUE(holds_all(error, {"between rec.launch of ", "(calls 2 and 3 of the recorder)",
                                "cudaErrorStreamCaptureUnsupported", "cudaMallocAsync"}));
  EXPECT_LT(error.find("add"), error.find("scale")) << error;
  EXPECT_EQ(error.find("fill"), std::string::npos) << error;
}

TEST_F(MistakesTest, TheFirstAndTheLastCallOfTheRecorderAreNamed) {
  const auto error_with = [&](bool before) {
    Cache cache;
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](Recorder& rec) {
      if (before) cudaStreamSynchronize(rec.stream());
      rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, 3.0f);
      rec.memset(data.get(), 0, sizeof(float));
      if (!before) cudaStreamSynchronize(rec.stream());
    }));
    return error_of(cache);
  };
  EXPECT_TRUE(holds_all(error_with(true), {"before rec.launch of "}));
  EXPECT_TRUE(holds_all(error_with(false), {"after rec.memset, the last of 2 calls of the recorder"}));
}

TEST_F(MistakesTest, ABrokenCaptureMayBeAnError) {
  Cache cache({.on_capture_failure = OnCaptureFailure::kReturnError});
  for (int i = 1; i <= 3; ++i) {
    const absl::StatusOr<Outcome> outcome = cache.run(key("k"), stream, [&](cudaStream_t on) {
      ++calls;
      check(add_one(on));
      allocate();
    });
    EXPECT_FAILURE(kFailedPrecondition, outcome);
    EXPECT_NE(cuda_error(outcome.status()), cudaSuccess) << outcome.status();
    EXPECT_EQ(calls, i) << "each run tries again, and calls fn once";
  }
  expect_sum(0);
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) { return add_one(on); }));
  EXPECT_EQ(cache.stats().failed, 3u);
}

// Such a launch breaks a capture, too.
TEST_F(MistakesTest, ALaunchThatCudaRefusesFailsAsADirectOneWould) {
  const std::function<cudaError_t(Recorder&, bool)> ways[] = {
      [&](Recorder& rec, bool is_grid) {
        rec.launch(add, is_grid ? LaunchShape{0, kBlock} : LaunchShape{1, 4096}, data.get(), kSize, 1.0f);
        return cudaSuccess;
      },
      [&](Recorder& rec, bool is_grid) {
        return launch(add, is_grid ? 0 : 1, is_grid ? kBlock : 4096, rec.stream(), data.get(), kSize, 1.0f);
      },
      [&](Recorder& rec, bool is_grid) {  // It is left behind.
        (void)launch(add, is_grid ? 0 : 1, is_grid ? kBlock : 4096, rec.stream(), data.get(), kSize, 1.0f);
        rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1.0f);
        return cudaSuccess;
      },
  };
  for (std::size_t way = 0; way < std::size(ways); ++way) {
    for (const bool is_grid : {false, true}) {
      SCOPED_TRACE(testing::Message() << "way " << way << (is_grid ? ", grid" : ", block"));
      const auto fn = [&](Recorder& rec) { return ways[way](rec, is_grid); };
      Cache direct({.max_executables = 0});
      const absl::Status wanted = direct.run(key("k"), stream, fn).status();
      EXPECT_EQ(wanted.code(), absl::StatusCode::kInvalidArgument) << wanted;
      Cache strict({.on_capture_failure = OnCaptureFailure::kReturnError}), cache;
      for (const absl::Status& status : {strict.run(key("k"), stream, fn).status(), cache.warm(key("k"), stream, fn),
                                         cache.run(key("k"), stream, fn).status()}) {
        EXPECT_EQ(status.code(), wanted.code()) << status;
        EXPECT_EQ(cuda_error(status), cuda_error(wanted)) << status;
        if (way == 0) {
          EXPECT_EQ(status.message(), wanted.message());
          EXPECT_TRUE(holds_all(std::string(status.message()), {"rec.launch of graphcache::test::add",
                                                                is_grid ? "grid (0, 1, 1)" : "block (4096, 1, 1)"}));
        }
      }
      EXPECT_TRUE(holds_all(error_of(strict), {cudaGetErrorName(cuda_error(wanted))}));
      EXPECT_EQ(holds_all(cache.run(key("k"), stream, fn).status().ToString(), {"; under capture: "}), way != 0);
      EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    }
  }
  Cache strict({.on_capture_failure = OnCaptureFailure::kReturnError});
  const absl::StatusOr<Outcome> own = strict.run(key("k"), stream, [&](cudaStream_t on) {
    return launch(add, 0, kBlock, on, data.get(), kSize, 1.0f) == cudaSuccess ? absl::OkStatus()
                                                                              : absl::DataLossError("of mine");
  });
  EXPECT_ERROR(kDataLoss, own, "of mine; the capture broke in fn");
  EXPECT_NE(cuda_error(own.status()), cudaSuccess);
}

// There is no node for them, so such a run is direct, like one whose node exists.
TEST_F(MistakesTest, ASizeOfZeroIsNoError) {
  Cache cache, strict({.on_capture_failure = OnCaptureFailure::kReturnError});
  const auto run = [&](Cache& of, std::size_t bytes) {
    data.write(std::vector<float>(kSize, 5));
    const auto outcome = of.run(key("k"), stream, params(bytes),
                                [&](Recorder& rec, Slot<std::size_t> n) { rec.memset(data.get(), 0, n); });
    EXPECT_EQ(data.first(), bytes == 0 ? 5 : 0);
    return outcome;
  };
  for (Cache* const of : {&cache, &strict}) {
    for (const int bytes : {0, 0, 0}) EXPECT_RUN(kEager, run(*of, bytes));
    EXPECT_RUN(kInstantiated, run(*of, 8));
    EXPECT_RUN(kPatched, run(*of, 0));
    of->clear();
    for (int i = 0; i < 100; ++i) EXPECT_RUN(kEager, run(*of, 0));
    EXPECT_EQ(of->stats().eager(EagerReason::kCaptureFailed), 3u + 3 + 4) << "the fourth waits for 8 runs, and so on";
  }
}

TEST_F(MistakesTest, WorkOnAnotherStreamRunsDirectlyEachTime) {
  Cache cache;
  Stream other;
  const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t) { CUDA_OK(add_one(other)); }); };
  for (int i = 1; i <= 20; ++i) {
    EXPECT_RUN(kEager, run());
    CUDA_OK(cudaStreamSynchronize(other));
    expect_sum(static_cast<float>(i));
  }
  EXPECT_EQ(cache.stats().eager(EagerReason::kNothingCaptured), 20u);
  EXPECT_EQ(cache.entries()[0].eager_reason, EagerReason::kNothingCaptured);
  EXPECT_NE(error_of(cache).find("rec.stream()"), std::string::npos) << error_of(cache);
  EXPECT_FALSE(cache.contains(key("k")));
  EXPECT_EQ(cache.stats().live_executables, 0u);
}

TEST_F(MistakesTest, AKeyThatCapturesNothingCannotBeWarmed) {
  Cache cache;
  EXPECT_FAILURE(kFailedPrecondition, cache.warm(key("k"), stream, [&](cudaStream_t) { ++calls; }));
  EXPECT_EQ(calls, 1);
}

TEST_F(MistakesTest, KeysThatNeverCaptureLowerTheRates) {
  Cache cache;
  for (int i = 0; i < 25; ++i) {
    EXPECT_SUCCESS(run_add(cache, key("good")));
    for (int bad = 0; bad < 3; ++bad) {
      EXPECT_RUN(kEager, cache.run(key("bad", bad), stream, [&](cudaStream_t on) {
        ++calls;
        cudaStreamSynchronize(on);
        return add_one(on);
      }));
    }
  }
  const Stats all = cache.stats();
  EXPECT_DOUBLE_EQ(all.hit_rate(), 0.24);
  EXPECT_DOUBLE_EQ(all.graph_rate(), 0.25);
}

// The description of each common cause and its remedy (docs/capture-errors.md).
TEST_F(MistakesTest, EachCauseSaysWhatToDo) {
  Stream other;
  Event before;
  CUDA_OK(cudaEventRecord(before, other));
  std::optional<Slot<int>> stale;
  Cache cache;
  EXPECT_RUN(kInstantiated, cache.run(key("first"), stream, params(1), [&](Recorder& rec, Slot<int> slot) {
    stale = slot;
    rec.memset(data.get(), slot, sizeof(float));
  }));
  struct Cause {
    const char* name;
    std::function<void(Recorder&)> in_fn;
    const char* found;
    const char* remedy;
  };
  const std::vector<Cause> causes = {
      {"an allocation", [](Recorder&) { allocate_unchecked(); }, "cudaErrorStreamCaptureUnsupported",
       "use cudaMallocAsync on rec.stream()"},
      {"a synchronization of the stream", [](Recorder& rec) { cudaStreamSynchronize(rec.stream()); },
       "cudaErrorStreamCaptureUnsupported", "move allocations, synchronizations, queries and graph launches out of fn"},
      {"a synchronization of the device", [](Recorder&) { cudaDeviceSynchronize(); },
       "cudaErrorStreamCaptureUnsupported", "move allocations, synchronizations, queries and graph launches out of fn"},
      {"a fork without a join",
       [&](Recorder& rec) {
         let_follow(other, rec.stream());
         add_one(other);
       },
       "cudaErrorStreamCaptureUnjoined", "let rec.stream() wait for it before fn returns"},
      {"a wait for an event from before", [&](Recorder& rec) { cudaStreamWaitEvent(rec.stream(), before, 0); },
       "cudaErrorStreamCaptureIsolation", "let the run's stream wait for it before the run"},
      {"the end of the capture",
       [&](Recorder& rec) {
         cudaGraph_t graph = nullptr;
         if (is_capturing(rec.stream()) && cudaStreamEndCapture(rec.stream(), &graph) == cudaSuccess)
           cudaGraphDestroy(graph);
       },
       "cudaErrorIllegalState", "leave that to the cache"},
      {"a capture of its own",
       [&](Recorder& rec) {
         if (is_capturing(rec.stream())) cudaStreamBeginCapture(rec.stream(), cudaStreamCaptureModeThreadLocal);
       },
       "cudaErrorIllegalState", "leave that to the cache, or return a graph from fn"},
      {"a nested run elsewhere",
       [&](Recorder&) { (void)cache.run(key("nested"), other, [&](cudaStream_t on) { return add_one(on); }); },
       "a run was made inside another run's fn on a stream that is not part of its capture: pass rec.stream()", ""},
      {"a nested run with params",
       [&](Recorder& rec) {
         (void)cache.run(key("nested"), rec.stream(), params(1.0f), [&](Recorder& inner, Slot<float> value) {
           inner.launch(add, {kGrid, kBlock}, data.get(), kSize, value);
         });
       },
       "could not update them", ""},
  };
  for (const Cause& cause : causes) {
    SCOPED_TRACE(cause.name);
    EXPECT_RUN(kEager, cache.run(key(cause.name), stream, [&](Recorder& rec) {
      rec.memset(data.get(), 0, sizeof(float));
      cause.in_fn(rec);
    }));
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_TRUE(holds_all(error_of(cache, cause.name), {cause.found, cause.remedy}));
  }
  const auto refused = [&](const char* name, const std::function<void(Recorder&)>& in_fn) {
    return std::string(cache.run(key(name), stream, in_fn).status().message());
  };
  EXPECT_TRUE(holds_all(refused("a stream elsewhere", [&](Recorder& rec) { rec.on(other).memset(data.get(), 0, 4); }),
                        {"by cudaEventRecord on the run's stream and cudaStreamWaitEvent"}));
  EXPECT_TRUE(holds_all(refused("a slot of another run", [&](Recorder& rec) { rec.memset(data.get(), *stale, 4); }),
                        {"valid only inside the call of fn that it was passed to"}));
}

// ---- What is logged ------------------------------------------------------------------------------------------------

TEST_F(MistakesTest, TheFirstBrokenCaptureOfAKeyIsLogged) {
  std::vector<std::string> lines;
  const auto log = std::make_shared<Log>([&](std::string_view line) {
    lines.emplace_back(line);
    throw std::runtime_error("dropped");
  });
  Cache cache({.listeners = {log}});
  for (int i = 0; i < 10; ++i) {
    EXPECT_RUN(kEager, cache.run(key("bad", 7), stream, [&](cudaStream_t on) {
      cudaStreamSynchronize(on);
      return add_one(on);
    }));
    EXPECT_RUN(kEager, cache.run(key("empty"), stream, [](cudaStream_t) {}));
    EXPECT_SUCCESS(run_add(cache, key("good")));
  }
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(holds_all(lines[0], {"bad", "cudaErrorStreamCapture"}));
  EXPECT_TRUE(holds_all(lines[1], {"rec.stream()"}));
}

TEST_F(MistakesTest, ErrorsThatRunsReturnAreLoggedEverMoreRarely) {
  std::vector<std::string> lines;
  const auto log = std::make_shared<Log>([&](std::string_view line) { lines.emplace_back(line); });
  Cache direct({.listeners = {log}});
  for (int i = 1; i <= 9; ++i) {
    const auto failing = [i](cudaStream_t) { return absl::DataLossError(absl::StrCat("error ", i)); };
    EXPECT_FAILURE(kDataLoss, direct.run(key("fails", i), stream, failing));
  }
  ASSERT_EQ(lines.size(), 4u);
  for (const int i : {1, 2, 4, 8}) {
    const std::string wanted = absl::StrCat("(\"fails\", ", i, "): a run failed: error ", i);
    EXPECT_EQ(
        std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.find(wanted) != line.npos; }), 1)
        << testing::PrintToString(lines);
  }
  lines.clear();
  Cache cache({.on_capture_failure = OnCaptureFailure::kReturnError, .listeners = {log}});
  for (int i = 0; i < 3; ++i) {
    EXPECT_FAILURE(kFailedPrecondition, cache.run(key("breaks"), stream, [](cudaStream_t) { allocate_unchecked(); }));
  }
  ASSERT_EQ(lines.size(), 2u) << "the first, once, and the second";
  EXPECT_TRUE(holds_all(lines[0], {"(\"breaks\"): the capture broke"}));
  EXPECT_TRUE(holds_all(lines[1], {"(\"breaks\"): a run failed: the capture broke"}));
}

TEST_F(MistakesTest, AFindingOfVerifyModeIsLoggedOnce) {
  std::vector<std::string> lines;
  Cache cache({.listeners = {std::make_shared<Log>([&](std::string_view line) { lines.emplace_back(line); })},
               .verify_every = 1});
  for (const float value : {1.0f, 2.0f, 2.0f, 2.0f, 3.0f, 1.0f}) {
    EXPECT_SUCCESS(cache.run(
        key("k"), stream, [&](cudaStream_t on) { return launch(add, kGrid, kBlock, on, data.get(), kSize, value); }));
  }
  EXPECT_EQ(cache.stats().stale, 4u);
  ASSERT_EQ(lines.size(), 1u) << "they are of one argument";
  EXPECT_NE(lines[0].find("as a float 2"), std::string::npos) << lines[0];
  const std::vector<Counted> stale = cache.entries()[0].stale;
  ASSERT_EQ(stale.size(), 1u);
  EXPECT_EQ(stale[0].count, 4u);
  EXPECT_NE(stale[0].text.find("as a float 3"), std::string::npos) << stale[0].text;
  expect_sum(6);
}

TEST_F(MistakesTest, TheEnvironmentMayDisableCaches) {
  ASSERT_EQ(setenv("GRAPHCACHE_DISABLE", "1", 1), 0);
  Cache disabled;
  ASSERT_EQ(setenv("GRAPHCACHE_DISABLE", "0", 1), 0);
  Cache cache;
  ASSERT_EQ(unsetenv("GRAPHCACHE_DISABLE"), 0);
  for (int i = 0; i < 3; ++i) EXPECT_RUN(kEager, run_add(disabled, key("k")));
  EXPECT_EQ(disabled.stats().eager(EagerReason::kDisabled), 3u);
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_sum(4);
}

}  // namespace
}  // namespace graphcache::test
