// Runs with values in all ways: streams, kinds of fn, steps, warm(), nested runs, threads, and keys that lose their
// executable or are erased. On either runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "listeners.h"
#include "runs/threads_support.h"
#include "values_support.h"

namespace graphcache::test {
namespace {

class ValuesRunsTest : public ValuesTest {
 protected:
  // A key whose graph has two nodes.
  absl::StatusOr<Outcome> run_other(Cache& cache) {
    return cache.run(key("other"), stream, [&](cudaStream_t on) {
      CUDA_OK(fill_data(on, -1));
      return fill_data(on, -2);
    });
  }
  // Learns the values of a key that is new, and follows them.
  void expect_learns(Cache& cache, int first) {
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(learned(i, run_fill(cache, number(first + i))));
      expect_data(number(first + i));
    }
  }
};

// ---- Ways to run ----------------------------------------------------------------------------------------------------

cudaError_t fill_with(cudaStream_t on, float* p, float v) { return launch(fill, kGrid, kBlock, on, p, kSize, v); }
void fill_by_recorder(Recorder& rec, float* p, const float& v) { rec.launch(fill, {kGrid, kBlock}, p, kSize, v); }

TEST_F(ValuesRunsTest, FnOfEachKind) {
  Cache cache;
  struct Functor {
    absl::Status operator()(cudaStream_t on, float* p, double v) const {
      return detail::fn_failure(fill_with(on, p, static_cast<float>(v)));
    }
  } functor;
  const std::function<cudaError_t(cudaStream_t, float*, float)> hidden = fill_with;
  using Run = std::function<absl::StatusOr<Outcome>(float* p, float v)>;
  const std::pair<const char*, Run> runs[] = {
      {"function", [&](float* p, float v) { return cache.run(key("name"), stream, values(p, v), fill_with); }},
      {"pointer", [&](float* p, float v) { return cache.run(key("pointer"), stream, values(p, v), &fill_with); }},
      {"recorder", [&](float* p, float v) { return cache.run(key("rec"), stream, values(p, v), fill_by_recorder); }},
      {"std::function", [&](float* p, float v) { return cache.run(key("hidden"), stream, values(p, v), hidden); }},
      {"functor", [&](float* p, float v) { return cache.run(key("functor"), stream, values(p, v), functor); }},
      {"text",
       [&](float* p, float v) {
         const char* const constant = "text";
         return cache.run(key("text"), stream, values(constant, p, v),
                          [](cudaStream_t on, const char* text, float* to, float value) {
                            EXPECT_STREQ(text, "text");
                            return fill_with(on, to, value);
                          });
       }},
  };
  for (const auto& [name, run] : runs) {
    SCOPED_TRACE(name);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(learned(i, run(part(i), number(i))));
      EXPECT_EQ(read(part(i)), std::vector<float>(kSize, number(i)));
    }
  }
}

TEST_F(ValuesRunsTest, EachStream) {
  const auto fn = [&](cudaStream_t on, float v) { return fill_data(on, v); };
  for (const cudaStream_t on :
       {static_cast<cudaStream_t>(stream), cudaStreamPerThread, cudaStreamLegacy, static_cast<cudaStream_t>(nullptr)}) {
    Cache cache;
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(learned(i, cache.run(key("k"), on, values(number(i)), fn)));
      CUDA_OK(cudaStreamSynchronize(on));
      expect_data(number(i));
    }
  }
  Cache cache({.stream = stream});
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(learned(i, cache.run(key("k"), values(number(i)), fn)));
    expect_data(number(i));
  }
  // The values that are found on one stream are found on another.
  Stream other;
  EXPECT_RUN(kPatched, cache.run(key("k"), other, values(20.0f), fn));
  expect_data(20);
}

TEST_F(ValuesRunsTest, StepsAndWarm) {
  const auto fn = [&](cudaStream_t on, float v) {
    ++calls;
    return fill_data(on, v);
  };
  Cache cache({.stream = stream});
  auto step = cache.prepare(key("k"), fn);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(learned(i, i % 2 == 0 ? step.run(values(number(i))) : step.run(stream, values(number(i)))));
    expect_data(number(i));
    EXPECT_RUN(kReplayed, step.run(values(number(i))));
  }
  EXPECT_RUN(kPatched, cache.run(key("k"), stream, values(30.0f), fn));
  EXPECT_RUN(kPatched, step.run(values(31.0f)));
  EXPECT_RUN(kInstantiated, step.run(values(0.0f)));  // Another entry.
  expect_data(0);
  EXPECT_RUN(kPatched, step.run(values(32.0f)));
  EXPECT_RUN(kReplayed, step.run(values(0.0f)));
  expect_data(0);
  EXPECT_EQ(calls, 4);
}

TEST_F(ValuesRunsTest, WarmLearnsAsARunDoes) {
  const auto fn = [&](cudaStream_t on, float* p, float v) {
    ++calls;
    return fill_with(on, p, v);
  };
  for (const unsigned runs : {0u, 1u, 2u, 4u, 5u}) {  // Which of the first calls are runs.
    SCOPED_TRACE(runs);
    Cache cache;
    calls = 0;
    for (int i = 0; i < 3; ++i) {
      if ((runs >> i & 1) != 0) {
        EXPECT_TRUE(learned(i, cache.run(key("k"), stream, values(part(i), number(i)), fn)));
        EXPECT_EQ(read(part(i)), std::vector<float>(kSize, number(i)));
        continue;
      }
      const std::vector<float> before = read(part(i));
      EXPECT_TRUE(cache.warm(key("k"), stream, values(part(i), number(i)), fn).ok());
      EXPECT_EQ(read(part(i)), before);
      EXPECT_EQ(calls, i + 1);
      EXPECT_TRUE(cache.warm(key("k"), stream, values(part(i), number(i)), fn).ok());  // Nothing is left to do.
      EXPECT_EQ(calls, i + 1);
    }
    for (int i = 3; i < 6; ++i) {
      EXPECT_TRUE(cache.warm(key("k"), stream, values(part(i), number(i)), fn).ok());
      EXPECT_RUN(kPatched, cache.run(key("k"), stream, values(part(i), number(i)), fn));
      EXPECT_EQ(read(part(i)), std::vector<float>(kSize, number(i)));
    }
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(cache.stats().value_captures, 2u);
  }
}

TEST_F(ValuesRunsTest, WarmLearnsWithoutRoom) {
  Cache cache({.max_executables = 1, .share = Share::kNever});
  const auto fn = [&](cudaStream_t on, float v) { return fill_data(on, v); };
  EXPECT_TRUE(run_other(cache).ok());
  EXPECT_TRUE(cache.pin(key("other")));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(cache.warm(key("k"), stream, values(number(i)), fn).ok());
  EXPECT_FALSE(entry_of(cache, "k").live);
  EXPECT_TRUE(cache.unpin(key("other")));
  for (int i = 3; i < 5; ++i) {
    EXPECT_TRUE(cache.run(key("k"), stream, values(number(i)), fn).ok());
    expect_data(number(i));
  }
  EXPECT_EQ(cache.stats().value_captures, 2u);
}

TEST_F(ValuesRunsTest, DirectRuns) {
  Cache never({.max_executables = 0}), later({.capture_after = 2});
  for (int i = 0; i < 7; ++i) {
    EXPECT_RUN(kEager, run_fill(never, number(i)));
    expect_data(number(i));
    const absl::StatusOr<Outcome> outcome = run_fill(later, number(i) + 1);
    EXPECT_TRUE(i < 2 ? did(Outcome::kEager, outcome) : learned(i - 2, outcome));
    expect_data(number(i) + 1);
  }
}

TEST_F(ValuesRunsTest, NestedRunWithValuesMakesTheOuterRunDirect) {
  Cache cache;
  float sum = 0;
  for (int i = 0; i < 8; ++i) {
    EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
      CUDA_OK(add_to_data(on, 1));
      return cache.run(key("inner"), on, values(number(i)), [&](cudaStream_t s, float v) { return add_to_data(s, v); })
          .status();
    }));
    expect_data(sum += 1 + number(i));
  }
  EXPECT_EQ(entry_of(cache, "inner").outcomes[static_cast<int>(Outcome::kPatched)], 5u);
}

TEST_F(ValuesRunsTest, InAForeignCaptureTheWorkHasThePresentValues) {
  Cache cache({.inline_in_foreign_capture = true});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(learned(i, run_fill(cache, number(i))));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_RUN(kInlined, run_fill(cache, 40));
  launch_captured(stream);
  expect_data(40);
  EXPECT_RUN(kPatched, run_fill(cache, 41));
  expect_data(41);
}

// ---- Between two recordings -----------------------------------------------------------------------------------------

TEST_F(ValuesRunsTest, StreamsOfTwoPrioritiesLearnTogether) {
  const Priorities priorities;
  const StreamOf streams[] = {{cudaStreamNonBlocking, priorities.least}, {cudaStreamNonBlocking, priorities.greatest}};
  Cache cache;
  for (int i = 0; i < 12; ++i) {
    EXPECT_SUCCESS(cache.run(key("k"), streams[i % 2], values(number(i)),
                             [&](cudaStream_t on, float v) { return fill_data(on, v); }));
    expect_data(number(i));
  }
  EXPECT_EQ(cache.stats().captures, 3u);
}

TEST_F(ValuesRunsTest, AKeyWithoutRoomCallsFnOnce) {
  Cache cache({.max_executables = 1});
  EXPECT_RUN(kInstantiated, run_fill(cache, key("k"), number(0)));
  EXPECT_RUN(kUpdated, run_fill(cache, key("other"), number(0)));
  EXPECT_TRUE(cache.pin(key("other")));
  calls = 0;
  for (int i = 1; i < 5; ++i) {
    EXPECT_RUN(kEager, run_fill(cache, key("k"), number(i)));
    expect_data(number(i));
    EXPECT_EQ(calls, i);
  }
}

TEST_F(ValuesRunsTest, AnErasedKeyStartsAnew) {
  for (int before = 1; before <= 5; ++before) {
    for (const bool clears : {false, true}) {
      SCOPED_TRACE(before);
      Cache cache;
      for (int i = 0; i < before; ++i) EXPECT_TRUE(learned(i, run_fill(cache, number(i))));
      if (clears) {
        cache.clear();
      } else {
        EXPECT_TRUE(cache.erase(key("k")));
      }
      expect_learns(cache, before);
    }
  }
}

TEST_F(ValuesRunsTest, EvictedKeysKeepWhatWasFound) {
  for (const Share share : {Share::kNever, Share::kWhenFull, Share::kAlways}) {
    for (int before = 1; before <= 5; ++before) {
      SCOPED_TRACE(before);
      Cache cache({.max_executables = 1, .share = share});
      calls = 0;
      for (int i = 0; i < before; ++i) EXPECT_TRUE(learned(i, run_fill(cache, number(i))));
      EXPECT_RUN(kInstantiated, run_other(cache));
      EXPECT_FALSE(entry_of(cache, "k").live);
      expect_data(-2);
      for (int i = before; i < before + 4; ++i) {
        SCOPED_TRACE(i);
        const absl::StatusOr<Outcome> outcome = run_fill(cache, number(i));
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        if (i == before && i >= 3) {
          EXPECT_RUN(kRestored, outcome);
        } else {
          EXPECT_EQ(is_hit(*outcome), i >= 3);
        }
        expect_data(number(i));
      }
      EXPECT_EQ(calls, 3);
      EXPECT_EQ(states(cache), "found");
    }
  }
}

TEST_F(ValuesRunsTest, AKeyWithoutATemplateStartsAnew) {
  Cache cache(without_templates(1));
  for (int round = 0; round < 3; ++round) {
    expect_learns(cache, 10 * round);
    EXPECT_TRUE(run_other(cache).ok());
    EXPECT_FALSE(cache.contains(key("k")));
  }
}

TEST_F(ValuesRunsTest, AnotherGraphForAnotherValueTakesThePlaceOfBoth) {
  Cache cache;
  for (const float v : {2.0f, 20.0f}) {
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, values(v), [&](cudaStream_t on, float value) {
      CUDA_OK(fill_data(on, value));
      if (value > 10) {
        CUDA_OK(add_to_data(on, value));
      }
    }));
    expect_data(v > 10 ? 2 * v : v);
  }
  const EntryInfo entry = cache.entries().at(0);
  EXPECT_EQ(entry.executable_lost, Loss::kValues);
  EXPECT_EQ(entry.template_lost, Loss::kValues);
  EXPECT_EQ(cache.stats().live_executables, 1u);
  EXPECT_EQ(cache.stats().live_templates, 1u);
}

// Such an executable has a node that no recording has.
TEST_F(ValuesRunsTest, AnExecutableThatTheDeviceUpdatesIsReplaced) {
  force(Patching::kDeviceUpdated);
  Cache cache;
  const auto run = [&](float a, float b) { return run_sum(cache, a, b); };
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(learned(i, run(number(i), 10)));
  EXPECT_RUN(kInstantiated, run(5, 20));
  EXPECT_CAPTURED(run(5, 30));
  EXPECT_RUN(kPatched, run(6, 40));
  EXPECT_EQ(cache.stats().refused_updates, 0u);
}

// While a value is not found, the executable is plain, and each recording updates it.
TEST_F(ValuesRunsTest, TheDeviceUpdatesNoExecutableWhoseValuesAreNotFound) {
  for (const bool has_table : {false, true}) {
    SCOPED_TRACE(has_table);
    Options options;
    if (has_table) {
      force(&options, Sharing::kTable);
    } else {
      force(Patching::kDeviceUpdated);
    }
    Cache cache(options);
    const auto run = [&](float a, float b) { return run_squared(cache, a, b); };
    EXPECT_RUN(kInstantiated, run(2, 10));
    EXPECT_RUN(kUpdated, run(3, 10));
    EXPECT_RUN(kInstantiated, run(4, 10));
    EXPECT_RUN(kPatched, run(5, 10));
    EXPECT_RUN(kInstantiated, run(6, 20));  // What this value is in is not found.
    EXPECT_RUN(kUpdated, run(6, 30));
    EXPECT_RUN(kPatched, run(7, 30));
    EXPECT_RUN(kUpdated, run(8, 40));
    EXPECT_EQ(states(cache), "found derived");
  }
}

TEST_F(ValuesRunsTest, ListenersSeeTheEndOfEachGraph) {
  for (const int refused : {0, 3}) {  // The first recording that is compared.
    const auto listener = std::make_shared<Functions>();
    std::map<std::uint64_t, int> graphs;
    int begun = 0, captures = 0, most_captures = 0, recordings = 0;
    std::uint64_t last = 0;
    listener->on_begin = [&](const CacheEvent& event) {
      if (event.kind != EventKind::kCapture) return absl::OkStatus();
      if (++begun == refused) return absl::AbortedError("no");
      most_captures = std::max(most_captures, ++captures);
      return absl::OkStatus();
    };
    listener->on_end = [&](const CacheEvent& event) {
      if (event.kind == EventKind::kDestroyGraph) --graphs[event.graph];
      EXPECT_TRUE(event.kind != EventKind::kUpdate || event.graph == last);
      if (event.kind != EventKind::kCapture) return;
      --captures;
      ++recordings;
      if (event.graph != 0) ++graphs[last = event.graph];
      EXPECT_EQ(event.graph != 0, event.captured != nullptr);
    };
    {
      Cache cache({.listeners = {listener}});
      for (int i = 0; i < 4; ++i) {
        const auto outcome = cache.run(key("k"), stream, values(number(i)),
                                       [&](cudaStream_t on, float v) { return fill_data(on, v * v); });
        EXPECT_EQ(outcome.ok(), refused == 0 || i != 1) << outcome.status();
        CUDA_OK(cudaStreamSynchronize(stream));
      }
    }
    EXPECT_EQ(graphs.size(), 4u);
    for (const auto& [graph, open] : graphs) EXPECT_EQ(open, 0) << graph;
    EXPECT_GT(recordings, 4);     // Unexplained bytes are recorded again,
    EXPECT_EQ(most_captures, 1);  // one after the other.
  }
}

// fn fails, throws or synchronizes under capture for one value.
TEST_F(ValuesRunsTest, ARecordingThatBreaksWhileItLearnsLosesNothing) {
  enum Way { kFails, kThrows, kSynchronizes };
  constexpr float kBad = 100;
  for (const Way way : {kFails, kThrows, kSynchronizes}) {
    for (int before = 1; before <= 2; ++before) {
      SCOPED_TRACE(testing::Message() << "way " << way << ", after " << before << " runs");
      Cache cache;
      const auto run = [&](float value) {
        const absl::StatusOr<Outcome> outcome =
            cache.run(key("k"), stream, values(value), [&, way](cudaStream_t on, float v) {
              CUDA_OK(fill_data(on, v));
              if (v != kBad || !is_capturing(on)) return cudaSuccess;
              if (way == kThrows) throw std::runtime_error("mine");
              return way == kFails ? cudaErrorNotSupported : cudaStreamSynchronize(on);
            });
        expect_data(value);
        return outcome;
      };
      for (int i = 0; i < before; ++i) EXPECT_TRUE(learned(i, run(number(i))));
      EXPECT_RUN(kEager, run(kBad));
      EXPECT_EQ(cache.stats().eager(EagerReason::kCaptureFailed), 1u);
      EXPECT_EQ(cache.stats().capture_failures, 1u);
      EXPECT_RUN(kReplayed, run(number(before - 1)));  // The last recording.
      for (int i = before; i < before + 8; ++i) ASSERT_TRUE(run(number(i)).ok());
      EXPECT_RUN(kPatched, run(number(20)));
      EXPECT_RUN(kPatched, run(kBad));
    }
  }
}

// ---- Threads --------------------------------------------------------------------------------------------------------

TEST_F(ValuesRunsTest, ThreadsThatAlternateLearnTogether) {
  Cache cache;
  constexpr int kRuns = 8;
  Stream streams[2];
  std::atomic<int> turn{0};
  in_threads(2, [&](int me) {
    for (int i = me; i < kRuns; i += 2) {
      while (turn != i) std::this_thread::yield();
      EXPECT_TRUE(learned(i, cache.run(key("k"), streams[me], values(number(i)),
                                       [&](cudaStream_t on, float v) { return add_to_data(on, v); })));
      CUDA_OK(cudaStreamSynchronize(streams[me]));
      ++turn;
    }
  });
  float sum = 0;
  for (int i = 0; i < kRuns; ++i) sum += number(i);
  expect_data(sum);
}

TEST_F(ValuesRunsTest, ThreadsAtOnceLearnTogether) {
  Cache cache;
  constexpr int kThreads = 6, kRuns = 60;
  std::vector<Stream> streams(kThreads);
  for (int p = 0; p < kThreads; ++p) CUDA_OK(launch(fill, kGrid, kBlock, stream, part(p), kSize, 0));
  CUDA_OK(cudaStreamSynchronize(stream));
  std::atomic<int> called{0};
  in_threads(kThreads, [&](int me) {
    for (int i = 0; i < kRuns; ++i) {
      EXPECT_SUCCESS(cache.run(key("k"), streams[static_cast<std::size_t>(me)], values(part(me), number(i % 7)),
                               [&](cudaStream_t on, float* to, float v) {
                                 ++called;
                                 return launch(add, kGrid, kBlock, on, to, kSize, v);
                               }));
    }
  });
  float sum = 0;
  for (int i = 0; i < kRuns; ++i) sum += number(i % 7);
  for (int p = 0; p < kThreads; ++p) EXPECT_EQ(read(part(p)), std::vector<float>(kSize, sum));
  EXPECT_LE(called, 20);
}

}  // namespace
}  // namespace graphcache::test
