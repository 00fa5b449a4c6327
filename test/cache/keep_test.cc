// Objects that a graph keeps alive (Recorder::keep), and pageable memory that its copies and host functions may use
// because it is kept. On either runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/body.h"
#include "keep_support.h"
#include "rules/rules.h"

namespace graphcache::test {
namespace {

class KeepTest : public StreamTest {
 protected:
  Keeping keeping{stream};
  static void keep_null_pointers(Recorder& rec) {
    rec.keep(std::shared_ptr<Thing>());
    rec.keep(std::shared_ptr<void>());
    rec.keep(std::shared_ptr<std::vector<float>>());
    rec.keep(std::shared_ptr<float[]>());
  }

  std::atomic<int>& alive = keeping.alive;
};

// ---- How long -------------------------------------------------------------------------------------------------------

TEST_F(KeepTest, EachWayToForgetAKeyReleasesItsObject) {
  enum Way { kErase, kEraseIf, kClear, kEnd };
  for (const Way way : {kErase, kEraseIf, kClear, kEnd}) {
    for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdates, Sharing::kTable}) {
      SCOPED_TRACE(static_cast<int>(way));
      std::optional<Cache> cache(forced(sharing, 2));
      for (const int i : {0, 1, 2, 3, 0, 1, 2, 3, 3, 3}) EXPECT_TRUE(keeping.run(*cache, key("k", i), i).ok());
      keeping.expect_number();
      EXPECT_EQ(alive, 4);
      CUDA_OK(cudaDeviceSynchronize());
      switch (way) {
        case kErase:
          for (int i = 3; i >= 0; --i) {
            EXPECT_TRUE(cache->erase(key("k", i)));
            EXPECT_TRUE(soon(*cache, [&] { return alive == i; }));
          }
          break;
        case kEraseIf:
          EXPECT_EQ(cache->erase_if([](const Key& one) { return one == key("k", 2) || one == key("k", 3); }), 2u);
          EXPECT_TRUE(soon(*cache, [&] { return alive == 2; }));
          EXPECT_EQ(cache->erase_if([](const Key&) { return true; }), 2u);
          EXPECT_TRUE(soon(*cache, [&] { return alive == 0; }));
          break;
        case kClear:
          cache->clear();
          break;
        case kEnd:
          cache.reset();
          break;
      }
      EXPECT_EQ(alive, 0);
    }
  }
}

TEST_F(KeepTest, AWarmedKeyAndAStepKeep) {
  Cache cache;
  const auto fn = [&](Recorder& rec, Slot<int> v) {
    rec.keep(keeping.make());
    keeping.record(rec, v);
  };
  EXPECT_TRUE(cache.warm(key("warmed"), stream, params(1), fn).ok());
  EXPECT_EQ(alive, 1);
  EXPECT_RUN(kPatched, cache.run(key("warmed"), stream, params(2), fn));
  EXPECT_EQ(alive, 1);
  auto step = cache.prepare(key("step"), fn);
  for (const int value : {3, 3, 4}) EXPECT_TRUE(step.run(stream, params(value)).ok());
  EXPECT_EQ(alive, 2);
  EXPECT_EQ(keeping.now(), Keeping::after(Keeping::after(Keeping::after(Keeping::after(1, 2), 3), 3), 4));
  cache.erase(key("step"));
  EXPECT_TRUE(soon(cache, [&] { return alive == 1; }));
}

TEST_F(KeepTest, AnObjectLivesAsLongAsItsKeysGraphOnEveryStream) {
  Cache cache;
  for (const cudaStream_t on : {static_cast<cudaStream_t>(stream), cudaStreamPerThread, cudaStreamLegacy}) {
    SCOPED_TRACE(on);
    for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed, Outcome::kReplayed}) {
      EXPECT_TRUE(did(outcome, keeping.run(cache, key("k"), 4, on)));
      EXPECT_EQ(alive, 1);
    }
    keeping.expect_number();
    EXPECT_EQ(alive, 1);
    EXPECT_TRUE(cache.erase(key("k")));
    EXPECT_TRUE(soon(cache, [&] { return alive == 0; }));
  }
}

TEST_F(KeepTest, AnObjectOfSeveralKeysLivesAsLongAsOneOfThem) {
  Cache cache;
  std::weak_ptr<Thing> seen;
  {
    const std::shared_ptr<Thing> shared = keeping.make();
    seen = shared;
    for (int i = 0; i < 3; ++i) {
      EXPECT_RUN(kInstantiated, cache.run(key("k", i), stream, [&, i](Recorder& rec) {
        rec.keep(shared);
        rec.keep(shared);
        keeping.record(rec, i);
      }));
    }
  }
  EXPECT_EQ(keeping.now(), Keeping::after(Keeping::after(Keeping::after(1, 0), 1), 2));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(alive, 1);
    EXPECT_TRUE(soon(cache, [&] { return seen.use_count() == 2 * (3 - i); }));
    EXPECT_TRUE(cache.erase(key("k", i)));
  }
  EXPECT_TRUE(soon(cache, [&] { return alive == 0; }));
}

TEST_F(KeepTest, OneFnMayKeepVeryManyObjectsOfAnyType) {
  Cache cache;
  constexpr int kMany = 20'000;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](Recorder& rec) {
      keep_null_pointers(rec);
      for (int i = 0; i < kMany; ++i) {
        rec.keep(keeping.make());
        if (i % 100 == 0) rec.launch(blend, {1, 1}, keeping.number.get(), 1, 1, 1);
      }
      struct Local {
        std::shared_ptr<Thing> thing;
      };
      rec.keep(std::make_shared<Local>(Local{keeping.make()}));
      rec.keep(std::make_shared<const std::string>("text"));
      rec.keep(std::make_shared<std::vector<bool>>(10));
      rec.keep(std::make_shared<std::deque<std::shared_ptr<Thing>>>(3, keeping.make()));
      rec.keep(std::shared_ptr<void>(keeping.make()));
      rec.keep(std::shared_ptr<const void>(keeping.make()));
      rec.keep(std::shared_ptr<int>(keeping.make(), nullptr));  // An owner without memory.
      rec.keep(std::shared_ptr<int[]>(new int[4]));
      rec.keep(std::make_shared<std::unique_ptr<int>>());
    });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_EQ(alive, kMany + 5);
  EXPECT_EQ(keeping.now(), 1u + kMany / 100);
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(keeping.now(), 1u + 2 * kMany / 100);
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_TRUE(cache.erase(key("k")));
  EXPECT_TRUE(soon(cache, [&] { return alive == 0; }));
}

// ---- Evictions and other keys ---------------------------------------------------------------------------------------

TEST_F(KeepTest, AnEvictedKeyKeepsWithItsTemplate) {
  Cache cache(unshared(1));
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(did(i < 2 ? Outcome::kInstantiated : Outcome::kRestored, keeping.run(cache, key("k", i % 2), i % 2)));
    EXPECT_EQ(alive, i == 0 ? 1 : 2);
  }
  keeping.expect_number();
  EXPECT_EQ(keeping.calls, 2);
  EXPECT_TRUE(cache.erase(key("k", 0)));
  EXPECT_TRUE(soon(cache, [&] { return alive == 1; }));
}

// The later run is a miss, which sees that the launches are over.
TEST_F(KeepTest, ATemplateThatIsDroppedReleasesItsObjectAtALaterRun) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdates}) {
    Cache cache(forced(sharing, {.max_executables = 1, .max_templates = 0}));
    for (int i = 0; i < 12; ++i) {
      EXPECT_TRUE(keeping.run(cache, key("k", i % 4), i % 4).ok());
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_GE(alive, 1);
      EXPECT_LE(alive, 2);
    }
    keeping.expect_number();
    EXPECT_GT(cache.stats().forgotten, 9u);
    settle(cache);
    EXPECT_TRUE(soon(cache, [&] { return alive == 1; }));
    cache.clear();
    EXPECT_EQ(alive, 0);
  }
}

TEST_F(KeepTest, HitsReleaseNothingAndOtherRunsDo) {
  Cache cache(unshared());
  EXPECT_RUN(kInstantiated, keeping.run_other(cache, key("hit"), 1));
  EXPECT_RUN(kInstantiated, keeping.run(cache, key("k"), 2));
  {
    Busy busy(stream);
    EXPECT_RUN(kReplayed, keeping.run(cache, key("k"), 2));
    EXPECT_TRUE(cache.erase(key("k")));
    EXPECT_EQ(alive, 2) << "its launch is in flight";
    EXPECT_RUN(kReplayed, keeping.run_other(cache, key("hit"), 1));
    busy.end();
  }
  for (int i = 0; i < 3; ++i) EXPECT_RUN(kReplayed, keeping.run_other(cache, key("hit"), 1));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(alive, 2);
  // The first miss may only record the event behind the launches.
  for (int i = 0; i < 2; ++i) {
    EXPECT_RUN(kInstantiated, keeping.run_other(cache, key("miss", i), 1));
    CUDA_OK(cudaStreamSynchronize(stream));
  }
  EXPECT_EQ(alive, 3) << "those of the hit and of the misses";
}

// ---- Launches in flight ---------------------------------------------------------------------------------------------

enum class Leaving { kErase, kEviction };

// The executable goes, or is lent to a sibling by an update or a table, while its launch is in flight.
TEST_F(KeepTest, AnObjectOutlivesTheLaunchesInFlightOfItsGraph) {
  for (const Sharing sharing : {Sharing::kNever, Sharing::kUpdates, Sharing::kTable}) {
    for (const Leaving leaving : {Leaving::kErase, Leaving::kEviction}) {
      if (sharing == Sharing::kTable && leaving == Leaving::kEviction) continue;  // See the test of tables.
      SCOPED_TRACE(static_cast<int>(sharing) * 10 + static_cast<int>(leaving));
      const int max_templates = leaving == Leaving::kEviction ? 0 : Options().max_templates;
      Cache cache(forced(sharing, {.max_executables = 1, .max_templates = max_templates}));
      const auto run = [&](int i) { EXPECT_TRUE(keeping.run(cache, key("k", i), i).ok()); };
      for (const int i : {0, 1, 2, 0, 1, 2, 1}) run(i);
      settle(cache);
      ASSERT_TRUE(soon(cache, [&] { return alive == (leaving == Leaving::kErase ? 3 : 1); }));
      {
        Busy busy(stream);
        run(1);
        run(0);
        if (leaving == Leaving::kErase) {
          EXPECT_TRUE(cache.erase(key("k", 1)));
        } else {
          run(2);  // All templates but this one are dropped.
        }
        for (int i = 0; i < 3; ++i) {
          erase_nothing(cache);
          EXPECT_EQ(alive, 3);
        }
        busy.end();
      }
      keeping.expect_number();
      settle(cache);
      EXPECT_TRUE(soon(cache, [&] { return alive == (leaving == Leaving::kErase ? 2 : 1); }));
      cache.clear();
      EXPECT_EQ(alive, 0);
    }
  }
}

// The first key of a table is no exception.
TEST_F(KeepTest, TheFirstKeyOfATableReleasesItsObjectWhileTheTableGoesOn) {
  Cache cache(forced(Sharing::kTable, 1));
  for (const int i : {0, 1, 2, 0, 1, 2, 1}) EXPECT_TRUE(keeping.run(cache, key("k", i), i).ok());
  EXPECT_GT(cache.stats().set_switches, 0u);
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_TRUE(cache.erase(key("k", 0)));
  settle(cache);
  EXPECT_TRUE(soon(cache, [&] { return alive == 2; }));
  for (const int i : {2, 1}) EXPECT_RUN(kSwitched, keeping.run(cache, key("k", i), i));
  keeping.expect_number();
}

// One stream is busy for long, and others go on. The objects of the launches there are released.
TEST_F(KeepTest, ABusyStreamHoldsBackNoObjectsOfOtherStreams) {
  Cache cache(unshared());
  Stream other;
  EXPECT_RUN(kInstantiated, keeping.run(cache, key("k"), 1));
  DeviceBuffer<int> apart(1, 1);
  const auto run_apart = [&](int i) {
    return cache.run(key("apart", i), other, [&, i](Recorder& rec) {
      rec.keep(keeping.make());
      rec.launch(blend, {1, 1}, apart.get(), 1, 3, i);
    });
  };
  for (int i = 0; i < 4; ++i) EXPECT_RUN(kInstantiated, run_apart(i));
  CUDA_OK(cudaDeviceSynchronize());
  {
    Busy busy(stream);
    EXPECT_RUN(kReplayed, keeping.run(cache, key("k"), 1));
    for (int i = 0; i < 4; ++i) {
      CUDA_OK(cudaStreamSynchronize(other));
      EXPECT_TRUE(cache.erase(key("apart", i)));
    }
    EXPECT_TRUE(cache.erase(key("k")));
    for (int i = 0; i < 100 && alive > 1; ++i) erase_nothing(cache);
    EXPECT_EQ(alive, 1);
    busy.end();
  }
  settle(cache);
  EXPECT_TRUE(soon(cache, [&] { return alive == 0; }));
  keeping.expect_number();
}

// ---- Runs without a graph of their own ------------------------------------------------------------------------------

TEST_F(KeepTest, ADirectRunKeepsUntilTheWorkIsEnqueued) {
  for (const bool is_captured_later : {false, true}) {
    Cache cache(is_captured_later ? unshared({.capture_after = 3}) : unshared(0));
    for (int i = 0; i < 5; ++i) {
      const bool is_direct = i < 3 || !is_captured_later;
      const Outcome by_graph = i == 3 ? Outcome::kInstantiated : Outcome::kReplayed;
      const auto outcome = cache.run(key("k"), stream, [&](Recorder& rec) {
        keep_null_pointers(rec);
        rec.keep(keeping.make());
        EXPECT_EQ(alive, 1);
        keeping.record(rec, 4);
        rec.keep(keeping.make());
        EXPECT_EQ(alive, 2);
      });
      EXPECT_TRUE(did(is_direct ? Outcome::kEager : by_graph, keeping.followed(4, outcome)));
      EXPECT_EQ(alive, is_direct ? 0 : 2);
    }
    keeping.expect_number();
  }
}

TEST_F(KeepTest, ARunInsideAnotherRunsFnKeepsWithTheOuterGraph) {
  Cache cache;
  std::optional<Cache> another(std::in_place);
  const auto run = [&] {
    return cache.run(key("outer"), stream, [&](Recorder& rec) {
      rec.keep(keeping.make());
      EXPECT_RUN(kInlined, cache.run(key("inner"), rec.stream(), [&](Recorder& inner) {
        inner.keep(keeping.make());
        keeping.record(inner, 1);
        EXPECT_RUN(kInlined, another->run(key("of another cache"), rec.stream(), [&](Recorder& innermost) {
          innermost.keep(keeping.make());
          keeping.record(innermost, 2);
        }));
      }));
    });
  };
  EXPECT_RUN(kInstantiated, run());
  another.reset();
  cache.erase(key("inner"));
  EXPECT_TRUE(soon(cache, [&] { return alive == 3; }));
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(keeping.now(), Keeping::after(Keeping::after(Keeping::after(Keeping::after(1, 1), 2), 1), 2));
  EXPECT_EQ(alive, 3);
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_TRUE(cache.erase(key("outer")));
  EXPECT_TRUE(soon(cache, [&] { return alive == 0; }));
}

// The graph that the other code captures keeps nothing.
struct Incomplete;
struct OfVoids {  // as buffers of libraries
  const void* data() const { return this; }
  std::size_t size() const { return 1; }
};
struct WithoutSize {
  const float* data() const { return nullptr; }
};

TEST_F(KeepTest, ObjectsThatAreNoContainersOrIncompleteAreKept) {
  Cache cache;
  std::weak_ptr<void> kept[3];
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](Recorder& rec) {
    const auto voids = std::make_shared<OfVoids>();
    const auto sizeless = std::make_shared<WithoutSize>();
    const std::shared_ptr<Incomplete> incomplete(std::make_shared<int>(), nullptr);
    rec.keep(voids);
    rec.keep(sizeless);
    rec.keep(incomplete);
    kept[0] = voids;
    kept[1] = sizeless;
    kept[2] = incomplete;
    keeping.record(rec, 1);
  }));
  for (const auto& one : kept) EXPECT_FALSE(one.expired());
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_TRUE(cache.erase(key("k")));
  for (const auto& one : kept) EXPECT_TRUE(soon(cache, [&] { return one.expired(); }));
}

TEST_F(KeepTest, ARunInAForeignCaptureKeepsUntilTheWorkIsEnqueued) {
  Cache cache({.inline_in_foreign_capture = true});
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_RUN(kInlined, cache.run(key("k"), stream, [&](Recorder& rec) {
    rec.keep(keeping.make());
    EXPECT_EQ(alive, 1);
    keeping.record(rec, 5);
    EXPECT_RUN(kInlined, keeping.run(cache, key("inner"), 6));
    EXPECT_GE(alive, 1);
  }));
  EXPECT_EQ(alive, 0);
  launch_captured(stream);
  EXPECT_EQ(keeping.now(), Keeping::after(Keeping::after(1, 5), 6));
}

TEST_F(KeepTest, TheOuterRecorderKeepsInsideTheBodyOfAConditionalNode) {
  DeviceBuffer<unsigned> condition(1, 1);
  for (const int executables : {0, 8}) {
    Cache cache(unshared(executables));
    const auto run = [&] {
      return cache.run(key("k"), stream, [&](Recorder& rec) {
        if_node(rec, condition.get(), [&](graphcache::Body& body) {
          rec.keep(keeping.make());
          body.launch(blend, {1, 1}, keeping.number.get(), 1, 3, 7);
        });
        rec.keep(keeping.make());
      });
    };
    for (int i = 0; i < 3; ++i) {
      const unsigned was = keeping.now();
      EXPECT_TRUE(did(executables == 0 ? Outcome::kEager
                      : i == 0         ? Outcome::kInstantiated
                                       : Outcome::kReplayed,
                      run()));
      EXPECT_EQ(alive, executables == 0 ? 0 : 2);
      EXPECT_EQ(keeping.now(), Keeping::after(was, 7));
    }
    cache.clear();
    EXPECT_EQ(alive, 0);
  }
}

// ---- Runs that fail -------------------------------------------------------------------------------------------------

TEST_F(KeepTest, ACaptureThatIsNotKeptKeepsNothing) {
  enum Way { kBreaks, kFails, kThrows, kIsEmpty, kForgetsToJoin, kHandsOutMemory, kUsesPageable };
  const auto side = std::make_unique<Stream>();
  float* handed_out = nullptr;
  for (const OnCaptureFailure reaction : {OnCaptureFailure::kRunDirectly, OnCaptureFailure::kReturnError}) {
    for (const Way way : {kBreaks, kFails, kThrows, kIsEmpty, kForgetsToJoin, kHandsOutMemory, kUsesPageable}) {
      SCOPED_TRACE(static_cast<int>(way));
      Cache cache({.on_capture_failure = reaction});
      for (int i = 0; i < 3; ++i) {
        handed_out = nullptr;
        const auto run = [&] {
          return cache.run(key("k"), stream, [&](Recorder& rec) -> absl::Status {
            rec.keep(keeping.make());
            if (way != kIsEmpty) keeping.record(rec, 1);
            if (way == kBreaks && is_capturing(rec.stream())) (void)cudaStreamSynchronize(rec.stream());
            if (way == kThrows) throw std::runtime_error("on purpose");
            if (way == kForgetsToJoin) {
              let_follow(*side, rec.stream());
              CUDA_OK(launch(do_nothing, 1, 1, *side));
            }
            if (way == kHandsOutMemory) {
              CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&handed_out), 64, rec.stream()));
            }
            if (way == kUsesPageable) {
              int value = 5;
              CUDA_OK(cudaMemcpyAsync(keeping.number.get(), &value, sizeof value, cudaMemcpyDefault, rec.stream()));
            }
            rec.keep(keeping.make());
            return way == kFails ? absl::AbortedError("on purpose") : absl::OkStatus();
          });
        };
        const unsigned was = keeping.now();
        absl::StatusOr<Outcome> outcome = absl::AbortedError("thrown");
        try {
          outcome = run();
        } catch (const std::runtime_error&) {
        }
        EXPECT_EQ(alive, 0);
        (void)cudaGetLastError();
        const bool is_direct =
            way == kIsEmpty || (reaction == OnCaptureFailure::kRunDirectly && way != kFails && way != kThrows);
        EXPECT_EQ(outcome.ok(), is_direct) << outcome.status();
        if (outcome.ok() && way != kIsEmpty) {
          EXPECT_EQ(keeping.now(), way == kUsesPageable ? 5u : Keeping::after(was, 1));
        }
        if (outcome.ok() && way == kHandsOutMemory) {
          CUDA_OK(cudaFreeAsync(handed_out, stream));
        }
      }
      EXPECT_EQ(cache.stats().live_templates, 0u);
      EXPECT_FALSE(is_capturing(stream));
    }
  }
}

// A key that runs directly is captured later, and only that capture keeps.
TEST_F(KeepTest, AFailureOfTheRecorderReleasesWhatWasKept) {
  Cache cache;
  std::optional<Slot<int>> stale;
  EXPECT_RUN(kInstantiated, cache.run(key("slot"), stream, params(1), [&](Recorder& rec, Slot<int> v) {
    stale = v;
    keeping.record(rec, v);
  }));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, [&](Recorder& rec) {
    rec.keep(keeping.make());
    keeping.record(rec, *stale);
    rec.keep(keeping.make());
  }));
  EXPECT_EQ(alive, 0);
}

// ---- Verify mode ----------------------------------------------------------------------------------------------------

TEST_F(KeepTest, AVerifyingRecordingKeepsUntilItsEnd) {
  Cache cache({.verify_every = 1, .on_stale = OnStale::kReturnError});
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(did(i == 0 ? Outcome::kInstantiated : Outcome::kReplayed, keeping.run(cache, key("k"), 4)));
    EXPECT_EQ(alive, 1);
  }
  keeping.expect_number();
  EXPECT_GE(keeping.calls, 5);
  EXPECT_EQ(cache.stats().stale, 0u);
}

struct Values {
  std::array<float, 4> numbers;
};

// Each call keeps its own memory, at other addresses than the graph's. The graph uses the first call's.
TEST_F(KeepTest, KeptObjectsOfOnePositionCountAsEqualAddresses) {
  Cache cache({.verify_every = 1, .on_stale = OnStale::kReturnError});
  DeviceBuffer<float> out(3);
  std::vector<std::shared_ptr<void>> all;  // So that no address occurs twice.
  bool swaps = false, moves = false;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](Recorder& rec) {
      auto vector = std::make_shared<std::vector<float>>(8, 1.0f + static_cast<float>(all.size()));
      auto values = std::make_shared<Values>(Values{{5, 6, 7, 8}});
      all.insert(all.end(), {vector, values});
      const float* from = vector->data() + (moves ? 3 : 2);
      const float* other = values->numbers.data() + 1;
      if (swaps) {
        rec.keep(values);
        rec.keep(vector);
      } else {
        rec.keep(vector);
        rec.keep(values);
      }
      rec.memcpy(out.get(), from, sizeof(float));
      CUDA_OK(cudaMemcpyAsync(out.get() + 1, other, 2 * sizeof(float), cudaMemcpyHostToDevice, rec.stream()));
    });
  };
  EXPECT_RUN(kInstantiated, run());
  for (int i = 0; i < 3; ++i) {
    out.write({0, 0, 0});
    EXPECT_RUN(kReplayed, run());
    EXPECT_EQ(out.read(), (std::vector<float>{1, 6, 7}));
  }
  EXPECT_EQ(cache.stats().stale, 0u);
  swaps = true;
  EXPECT_FAILURE(kFailedPrecondition, run()) << "the objects have other positions";
  swaps = false;
  moves = true;
  EXPECT_FAILURE(kFailedPrecondition, run()) << "another element";
  moves = false;
  EXPECT_RUN(kReplayed, run());
  EXPECT_EQ(cache.stats().stale, 2u);
}

// ---- What a destructor may do ---------------------------------------------------------------------------------------

TEST_F(KeepTest, TheDestructorOfAKeptObjectMayUseCudaAndTheCache) {
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    Cache cache(unshared({.max_executables = 1, .max_templates = 0, .capture_mode = mode}));
    int released = 0;
    keeping.at_end = [&] {
      ++released;
      EXPECT_FALSE(is_capturing(stream));
      allocate_and_free();
      Stream own;
      CUDA_OK(cudaStreamSynchronize(own));
      (void)cache.stats();
      (void)cache.entries();
      (void)cache.contains(key("k", 0));
      (void)cache.graph(key("k", 0));
      cache.pin(key("k", 100));
      cache.erase(key("k", 100 + released));
    };
    for (int i = 0; i < 8; ++i) {
      EXPECT_RUN(kInstantiated, keeping.run(cache, key("k", i), i));
      CUDA_OK(cudaStreamSynchronize(stream));
    }
    keeping.expect_number();
    EXPECT_GE(released, 6);
    cache.clear();
    EXPECT_EQ(released, 8);
    EXPECT_EQ(alive, 0);
  }
}

// It may run other keys of the cache, and erase keys that keep objects as well, also if they are evicted: there is no
// executable then, whose destruction would release the object.
TEST_F(KeepTest, TheDestructorOfAKeptObjectMayRunAndEraseOtherKeys) {
  for (const int max_executables : {64, 1}) {
    SCOPED_TRACE(max_executables);
    Cache cache(unshared(max_executables));
    DeviceBuffer<int> apart(1, 1);
    int left = 3;
    keeping.at_end = [&] {
      if (--left < 0) return;
      EXPECT_SUCCESS(cache.run(key("run by a destructor"), stream, [&](Recorder& rec) {
        rec.launch(blend, {1, 1}, apart.get(), 1, 3, 1);
      }));
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(cache.stats().live_templates, 2u + static_cast<unsigned>(left));
      EXPECT_TRUE(cache.erase(key("k", left)));
    };
    for (int i = 0; i < 4; ++i) EXPECT_RUN(kInstantiated, keeping.run(cache, key("k", i), i));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(cache.erase(key("k", 3)));
    settle(cache);
    EXPECT_TRUE(soon(cache, [&] { return alive == 0; }));
    EXPECT_EQ(apart.first(), 3 * (3 * (3 * 1 + 1) + 1) + 1);
    keeping.at_end = nullptr;
  }
}

// A nested erase, in a capture, must not release.
TEST_F(KeepTest, NothingIsReleasedWhileTheThreadCaptures) {
  Cache cache(unshared()), other(unshared());
  bool inside = false;
  int released = 0;
  keeping.at_end = [&] {
    ++released;
    EXPECT_FALSE(inside);
    allocate_and_free();
  };
  for (Cache* const of : {&cache, &other}) EXPECT_RUN(kInstantiated, keeping.run(*of, key("k"), 4));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    inside = true;
    EXPECT_TRUE(cache.erase(key("k")));
    EXPECT_TRUE(other.erase(key("k")));
    other.clear();
    EXPECT_RUN(kInlined, keeping.run_other(other, key("inner"), 6));
    CUDA_OK(launch(do_nothing, 1, 1, on));
    EXPECT_EQ(alive, 3);
    inside = false;
  }));
  settle(cache);
  settle(other);
  const auto one_is_left = [&] { return alive == 1; };
  EXPECT_TRUE(soon(other, one_is_left) || soon(cache, one_is_left)) << "that of the inner run";
  EXPECT_EQ(released, 2);
  keeping.expect_number();
  cache.clear();
  EXPECT_EQ(alive, 0);
}

TEST_F(KeepTest, ACacheThatEndsInsideAnotherCachesFnLeavesItsObjectsToThatOne) {
  Cache cache(unshared());
  std::optional<Cache> other(unshared());
  bool inside = false;
  keeping.at_end = [&] {
    EXPECT_FALSE(inside);
    allocate_and_free();
  };
  EXPECT_RUN(kInstantiated, keeping.run(*other, key("k"), 4));
  EXPECT_RUN(kInstantiated, keeping.run(*other, key("l"), 5));
  EXPECT_RUN(kInstantiated, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    inside = true;
    other.reset();
    EXPECT_EQ(alive, 2);
    CUDA_OK(launch(do_nothing, 1, 1, on));
    EXPECT_EQ(alive, 2);
    inside = false;
  }));
  settle(cache);
  EXPECT_TRUE(soon(cache, [&] { return alive == 0; }));
  keeping.expect_number();
}

// Work that still runs then uses no object that is gone: clear() and the destructor wait for the device.
TEST_F(KeepTest, TheEndOfACacheWaitsForLaunchesInFlight) {
  for (const bool clears : {false, true}) {
    std::optional<Cache> cache(std::in_place);
    int wanted_at_end = 0, seen_at_end = -1;
    PinnedBuffer<int> done(1, 0);
    keeping.at_end = [&] { seen_at_end = *static_cast<volatile int*>(done.get()); };
    for (int i = 1; i <= 50; ++i) {
      EXPECT_SUCCESS(cache->run(key("k"), stream, params(i), [&](Recorder& rec, Slot<int> v) {
        rec.keep(keeping.make());
        for (int j = 0; j < 50; ++j) rec.launch(do_nothing, {1, 1});
        rec.launch(blend, {1, 1}, done.get(), 1, 0, v);
      }));
      wanted_at_end = i;
    }
    if (clears) {
      cache->clear();
    } else {
      cache.reset();
    }
    EXPECT_EQ(alive, 0);
    EXPECT_EQ(seen_at_end, wanted_at_end);
    keeping.at_end = nullptr;
  }
}

// ---- Pageable memory of copies --------------------------------------------------------------------------------------

class KeepMemoryTest : public StreamTest {
 protected:
  static constexpr int kSize = 300;
  static constexpr std::size_t kBytes = kSize * sizeof(float);

  // Runs `fn` twice: as a graph if `is_graph`, else directly. Then expects `wanted` in `out`.
  template <class Fn>
  void expect(bool is_graph, const std::vector<float>& wanted, const Fn& fn) {
    Cache cache;
    for (const bool is_first : {true, false}) {
      out.write(std::vector<float>(kSize, -1));
      const absl::StatusOr<Outcome> outcome = cache.run(key("k"), stream, fn);
      EXPECT_TRUE(did(!is_graph ? Outcome::kEager : is_first ? Outcome::kInstantiated : Outcome::kReplayed, outcome));
      if (outcome.ok()) {
        std::vector<float> got = out.read();
        got.resize(wanted.size());
        EXPECT_EQ(got, wanted);
      }
    }
    const std::string error = cache.entries()[0].error;
    EXPECT_EQ(error.find("pageable host memory") != std::string::npos, !is_graph) << error;
  }
  static std::vector<float> counting(int first = 0) {
    std::vector<float> numbers(kSize);
    for (int i = 0; i < kSize; ++i) numbers[static_cast<std::size_t>(i)] = static_cast<float>(first + i);
    return numbers;
  }

  DeviceBuffer<float> out{kSize};
};

TEST_F(KeepMemoryTest, ContainersLendTheirElements) {
  for (const bool keeps : {true, false}) {
    for (const bool by_recorder : {true, false}) {
      SCOPED_TRACE(testing::Message() << "keeps " << keeps << ", by the recorder " << by_recorder);
      const auto copy = [&, by_recorder](Recorder& rec, const void* from, std::size_t bytes) {
        by_recorder ? rec.memcpy(out.get(), from, bytes, cudaMemcpyHostToDevice)
                    : (void)cudaMemcpyAsync(out.get(), from, bytes, cudaMemcpyDefault, rec.stream());
      };
      const auto lends = [&](const std::vector<float>& wanted, const auto& make) {
        expect(keeps, wanted, [&](Recorder& rec) {
          auto owner = make();
          if (keeps) rec.keep(owner);
          copy(rec, owner->data(), wanted.size() * sizeof(float));
        });
      };
      lends(counting(), [] { return std::make_shared<std::vector<float>>(counting()); });
      lends(counting(), [] { return std::make_shared<const std::vector<float>>(counting()); });
      lends({0, 1, 2}, [] { return std::make_shared<std::array<float, 3>>(std::array<float, 3>{0, 1, 2}); });
      lends({7, 8}, [] {
        auto owner = std::make_shared<std::string>(2 * sizeof(float), 'x');
        const float values[] = {7, 8};
        std::memcpy(owner->data(), values, sizeof values);
        return owner;
      });
      // Before it was kept, another object may have had its address.
      expect(false, counting(), [&](Recorder& rec) {
        auto owner = std::make_shared<std::vector<float>>(counting());
        copy(rec, owner->data(), kBytes);
        if (keeps) rec.keep(owner);
      });
    }
  }
}

// An allocator gives a freed address out again at once.
TEST_F(KeepMemoryTest, AnAddressThatATemporaryHadBeforeIsNotKept) {
  std::vector<float> memory(kSize);
  DeviceBuffer<float> other(kSize);
  expect(false, counting(), [&](Recorder& rec) {
    memory = counting();
    rec.memcpy(out.get(), memory.data(), kBytes, cudaMemcpyHostToDevice);
    std::fill(memory.begin(), memory.end(), -1.0f);
    rec.keep(std::shared_ptr<void>(memory.data(), [](void*) {}));
    rec.memcpy(other.get(), memory.data(), kBytes, cudaMemcpyHostToDevice);
  });
}

TEST_F(KeepMemoryTest, ObjectsLendThemselves) {
  struct Plain {
    int count;
    float numbers[4];
  };
  for (const bool keeps : {true, false}) {
    expect(keeps, {4, 5, 6}, [&](Recorder& rec) {
      auto owner = std::make_shared<Plain>(Plain{1, {3, 4, 5, 6}});
      if (keeps) rec.keep(owner);
      rec.memcpy(out.get(), owner->numbers + 1, 3 * sizeof(float));
    });
    expect(keeps, {9}, [&](Recorder& rec) {
      auto owner = std::make_shared<float>(9.0f);
      if (keeps) rec.keep(owner);
      CUDA_OK(cudaMemcpyAsync(out.get(), owner.get(), sizeof(float), cudaMemcpyHostToDevice, rec.stream()));
    });
    // A member of a larger object, by an aliasing pointer.
    expect(keeps, {4, 5}, [&](Recorder& rec) {
      auto owner = std::make_shared<Plain>(Plain{1, {3, 4, 5, 6}});
      if (keeps) rec.keep(std::shared_ptr<float>(owner, owner->numbers + 1));
      rec.memcpy(out.get(), owner->numbers + 1, 2 * sizeof(float));
    });
  }
}

TEST_F(KeepMemoryTest, RangesOfAContainerAreKeptAndWhatIsOutsideIsNot) {
  for (const int first : {0, 1, 150, kSize - 1, kSize, -1}) {
    SCOPED_TRACE(first);
    const bool is_kept = first >= 0 && first < kSize;
    // The elements are in the middle of a larger block, so that the memory beside is there.
    auto block = std::make_shared<std::vector<float>>(3 * kSize);
    for (int i = 0; i < 3 * kSize; ++i) (*block)[static_cast<std::size_t>(i)] = static_cast<float>(i - kSize);
    struct Middle {
      float* begin;
      float* data() const { return begin; }
      std::size_t size() const { return kSize; }
    };
    auto middle = std::make_shared<Middle>(Middle{block->data() + kSize});
    expect(is_kept, {static_cast<float>(first)}, [&](Recorder& rec) {
      rec.keep(middle);
      rec.memcpy(out.get(), middle->data() + first, sizeof(float));
    });
  }
}

TEST_F(KeepMemoryTest, OfPointersWithoutASizeOnlyTheAddressCounts) {
  struct Deep {
    std::vector<float> values;
  };
  const std::vector<float> values = counting(3);
  for (const int at : {0, 1}) {
    SCOPED_TRACE(at);
    // Copies two elements from there. `keep` keeps the owner of the elements, and returns them.
    const auto lends = [&](bool is_kept, const auto& keep) {
      expect(is_kept, {values[static_cast<std::size_t>(at)], values[static_cast<std::size_t>(at) + 1]},
             [&](Recorder& rec) {
               const float* const from = keep(rec);
               rec.memcpy(out.get(), from + at, 2 * sizeof(float));
             });
    };
    lends(at == 0, [&](Recorder& rec) {
      auto owner = std::make_shared<std::vector<float>>(values);
      rec.keep(std::shared_ptr<void>(owner, owner->data()));
      return owner->data();
    });
    lends(at == 0, [&](Recorder& rec) {
      auto owner = std::make_shared<std::vector<float>>(values);
      rec.keep(std::shared_ptr<const void>(owner, owner->data()));
      return owner->data();
    });
    lends(at == 0, [&](Recorder& rec) {
      std::shared_ptr<float[]> owner(new float[kSize]);
      std::copy(values.begin(), values.end(), owner.get());
      rec.keep(owner);
      return owner.get();
    });
    // The elements of a container in a kept object are not that object.
    lends(false, [&](Recorder& rec) {
      auto owner = std::make_shared<Deep>(Deep{values});
      rec.keep(owner);
      return owner->values.data();
    });
    // An address that the owner does not own, and one that is kept beside.
    lends(at == 0, [&](Recorder& rec) {
      auto owner = std::make_shared<Deep>(Deep{values});
      rec.keep(owner);
      rec.keep(std::shared_ptr<void>(owner, owner->values.data()));
      return owner->values.data();
    });
  }
}

TEST_F(KeepMemoryTest, EmptyContainersAndOtherObjectsLendNothing) {
  expect(false, {3, 4}, [&](Recorder& rec) {
    rec.keep(std::make_shared<std::vector<float>>());
    rec.keep(std::make_shared<std::vector<float>>(counting(100)));
    const auto owner = std::make_shared<std::vector<float>>(counting(3));
    rec.memcpy(out.get(), owner->data(), 2 * sizeof(float));
  });
  // One copy of two is from memory that is not kept.
  expect(false, {3, 4}, [&](Recorder& rec) {
    auto owner = std::make_shared<std::vector<float>>(counting(3));
    auto other = std::make_shared<std::vector<float>>(counting(4));
    rec.keep(owner);
    rec.memcpy(out.get(), owner->data(), sizeof(float));
    rec.memcpy(out.get() + 1, other->data(), sizeof(float));
  });
}

// Each launch reads it again.
TEST_F(KeepMemoryTest, ReplaysSeeWhatTheMemoryHolds) {
  Cache cache;
  auto values = std::make_shared<std::vector<float>>(counting());
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](Recorder& rec) {
      rec.keep(values);
      rec.memcpy(out.get(), values->data(), kBytes);
    });
  };
  EXPECT_RUN(kInstantiated, run());
  for (int i = 1; i < 4; ++i) {
    CUDA_OK(cudaStreamSynchronize(stream));
    const std::vector<float> next = counting(100 * i);
    std::copy(next.begin(), next.end(), values->begin());  // The elements stay where they are.
    EXPECT_RUN(kReplayed, run());
    EXPECT_EQ(out.read(), counting(100 * i));
  }
  EXPECT_EQ(values.use_count(), 2);
  CUDA_OK(cudaStreamSynchronize(stream));
  cache.clear();
  EXPECT_EQ(values.use_count(), 1);
}

TEST_F(KeepMemoryTest, ResultsAreCopiedToKeptMemory) {
  Cache cache;
  auto results = std::make_shared<std::vector<float>>(kSize);
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.keep(results);
      rec.launch(fill, {3, 128}, out.get(), kSize, v);
      rec.memcpy(results->data(), out.get(), kBytes, cudaMemcpyDeviceToHost);
    });
  };
  for (const float value : {3.0f, 3.0f, 4.0f}) {
    ASSERT_TRUE(run(value).ok());
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(*results, std::vector<float>(kSize, value));
  }
  EXPECT_EQ(cache.stats().outcome(Outcome::kPatched), 1u);
}

// A copy with a slot at one end and kept memory at the other.
TEST_F(KeepMemoryTest, SlotsAndKeptMemoryGoTogether) {
  Cache cache;
  DeviceBuffer<float> other(kSize);
  float* const places[] = {out.get(), other.get()};
  for (int i = 0; i < 4; ++i) {
    out.write(std::vector<float>(kSize));
    other.write(std::vector<float>(kSize));
    EXPECT_TRUE(did(i == 0 ? Outcome::kInstantiated : Outcome::kPatched,
                    cache.run(key("k"), stream, params(places[i % 2]), [&](Recorder& rec, Slot<float*> to) {
                      auto owner = std::make_shared<std::vector<float>>(counting(5));
                      rec.keep(owner);
                      rec.memcpy(to, owner->data() + 1, 2 * sizeof(float), cudaMemcpyHostToDevice);
                    })));
    EXPECT_EQ((i % 2 == 0 ? out : other).first(), 6);
    EXPECT_EQ((i % 2 == 0 ? other : out).first(), 0);
  }
}

// A promise of the inner run is one of the outer graph, and the other way round.
TEST_F(KeepMemoryTest, InnerRunsAndOuterRunsKeepForEachOther) {
  Cache cache;
  for (const bool inner_keeps : {true, false}) {
    for (const bool is_first : {true, false}) {
      out.write(std::vector<float>(kSize));
      EXPECT_TRUE(did(is_first ? Outcome::kInstantiated : Outcome::kReplayed,
                      cache.run(key("k", inner_keeps), stream, [&, inner_keeps](Recorder& rec) {
                        auto a = std::make_shared<std::vector<float>>(counting(3));
                        auto b = std::make_shared<std::vector<float>>(counting(7));
                        if (!inner_keeps) rec.keep(b);
                        EXPECT_RUN(kInlined, cache.run(key("inner"), rec.stream(), [&](Recorder& inner) {
                          if (inner_keeps) inner.keep(b);
                          inner.keep(a);
                          inner.memcpy(out.get() + 1, b->data(), sizeof(float));
                        }));
                        rec.memcpy(out.get(), a->data(), sizeof(float));
                      })));
      EXPECT_EQ(out.read()[0], 3);
      EXPECT_EQ(out.read()[1], 7);
    }
  }
}

TEST_F(KeepMemoryTest, EvictedAndSharedKeysReadTheirOwnKeptMemory) {
  for (const Sharing sharing : {Sharing::kAuto, Sharing::kNever, Sharing::kUpdates, Sharing::kTable}) {
    Cache cache(forced(sharing, 1));
    int calls = 0;
    for (int i = 0; i < 12; ++i) {
      const int which = i % 3;
      ASSERT_SUCCESS(cache.run(key("k", which), stream, [&, which](Recorder& rec) {
        ++calls;
        auto owner = std::make_shared<std::vector<float>>(counting(10 * which));
        rec.keep(owner);
        rec.memcpy(out.get(), owner->data() + which, 2 * sizeof(float));
        rec.launch(add, {1, 32}, out.get(), 1, static_cast<float>(which));
      }));
      EXPECT_EQ(out.read()[0], 12.0f * static_cast<float>(which));
      EXPECT_EQ(out.read()[1], 11.0f * static_cast<float>(which) + 1);
    }
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(cache.stats().outcome(Outcome::kEager), 0u);
  }
}

// ---- Data of host functions -----------------------------------------------------------------------------------------

struct Datum {
  int before = 77;
  int value = 0;
  int* total = nullptr;
};
void add_value(void* of) {
  const Datum& datum = *static_cast<const Datum*>(of);
  *datum.total = 3 * *datum.total + datum.value;
}
void add_number(void* of) {
  int* const pair = *static_cast<int**>(of);
  pair[0] = 3 * pair[0] + 5;
}

TEST_F(KeepMemoryTest, HostFunctionsMayHaveKeptData) {
  PinnedBuffer<int> total(1, 1);
  for (const bool keeps : {true, false}) {
    Cache cache;
    int wanted = 1;
    total.fill(1);
    std::vector<std::shared_ptr<Datum>> alive;  // So that direct runs have data that lives.
    std::weak_ptr<Datum> seen;
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(did(!keeps   ? Outcome::kEager
                      : i == 0 ? Outcome::kInstantiated
                               : Outcome::kReplayed,
                      cache.run(key("k"), stream, [&](Recorder& rec) {
                        auto datum = std::make_shared<Datum>();
                        datum->value = 4;
                        datum->total = total.get();
                        seen = datum;
                        if (keeps) {
                          rec.keep(datum);
                        } else {
                          alive.push_back(datum);
                        }
                        CUDA_OK(cudaLaunchHostFunc(rec.stream(), add_value, datum.get()));
                      })));
      wanted = 3 * wanted + 4;
      EXPECT_EQ(total.read()[0], wanted);
    }
    if (!keeps) {
      EXPECT_NE(cache.entries()[0].error.find("host function"), std::string::npos) << cache.entries()[0].error;
      EXPECT_NE(cache.entries()[0].error.find("Recorder::keep"), std::string::npos) << cache.entries()[0].error;
    }
    EXPECT_FALSE(seen.expired());
    cache.clear();
    EXPECT_EQ(seen.expired(), keeps);
  }
}

// The data may be a member of a kept object, an element of a container, or an address alone.
TEST_F(KeepMemoryTest, DataOfHostFunctionsMayBePartOfAKeptObject) {
  PinnedBuffer<int> total(2, 1);
  struct Around {
    double first;
    Datum datum;
  };
  Cache cache;
  int wanted = 1;
  for (const bool is_first : {true, false}) {
    EXPECT_TRUE(
        did(is_first ? Outcome::kInstantiated : Outcome::kReplayed, cache.run(key("k"), stream, [&](Recorder& rec) {
          auto around = std::make_shared<Around>(Around{1, {77, 2, total.get()}});
          auto list = std::make_shared<std::vector<Datum>>(5, Datum{77, 3, total.get()});
          auto deep = std::make_shared<std::unique_ptr<Datum>>(new Datum{77, 4, total.get()});
          auto pair = std::make_shared<int*>(total.get());
          rec.keep(around);
          rec.keep(list);
          rec.keep(std::shared_ptr<void>(deep, deep->get()));
          rec.keep(pair);
          CUDA_OK(cudaLaunchHostFunc(rec.stream(), add_value, &around->datum));
          CUDA_OK(cudaLaunchHostFunc(rec.stream(), add_value, &(*list)[4]));
          CUDA_OK(cudaLaunchHostFunc(rec.stream(), add_value, deep->get()));
          CUDA_OK(cudaLaunchHostFunc(rec.stream(), add_number, pair.get()));
        })));
    for (const int value : {2, 3, 4, 5}) wanted = 3 * wanted + value;
    EXPECT_EQ(total.read()[0], wanted);
  }
}

}  // namespace
}  // namespace graphcache::test
