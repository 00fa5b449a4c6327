// Conditional nodes: bodies that a capture cannot contain, that fail, or that are used wrongly.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "conditionals_support.h"

namespace graphcache::test {
namespace {

class ConditionalsMistakesTest : public ConditionalsTest {
 protected:
  using Work = std::function<void(Recorder&, Body&)>;

  // number = (3 number + 1), then the body if the condition is true, then (5 number + 2).
  absl::StatusOr<Outcome> run(Cache& in, const Work& work) {
    return in.run(key("mistakes"), stream, [&](Recorder& rec) {
      step(rec, 3, 1);
      if_node(rec, condition.get(), [&](Body& body) { work(rec, body); });
      step(rec, 5, 2);
    });
  }
  // The number after run(), where `body` says what the body makes of it.
  static int after_run(unsigned of_condition, const std::function<int(int)>& body) {
    const int before = blended(2, 3, 1);
    return blended(of_condition != 0 ? body(before) : before, 5, 2);
  }
  static int by_one_step(int value) { return blended(value, 7, 3); }

  // Expects that a run which cannot be captured does all its work directly, for this reason.
  void expect_direct(const Work& work, const std::string& words, const std::function<int(int)>& expected) {
    Cache in;
    for (const unsigned value : {1u, 0u, 1u}) {
      begin(2, value);
      EXPECT_RUN(kEager, run(in, work));
      EXPECT_EQ(number.first(), after_run(value, expected));
      EXPECT_FALSE(is_capturing(stream));
    }
    EXPECT_NE(in.entries().front().error.find(words), std::string::npos) << in.entries().front().error;
    EXPECT_GT(in.stats().eager(EagerReason::kCaptureFailed), 0u);
  }
  // Verify mode has so many findings, and the last one says these words.
  static void expect_stale(const Cache& verified, std::uint64_t times, const char* words) {
    EXPECT_EQ(verified.stats().stale, times);
    const std::string text = verified.entries().front().stale.back().text;
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }
  // The key works again once its body does.
  void expect_whole() {
    Cache fresh;
    for (const unsigned value : {1u, 0u}) {
      begin(2, value);
      ASSERT_TRUE(run(fresh, [&](Recorder&, Body& body) { step(body, 7, 3); }).ok());
      EXPECT_EQ(number.first(), after_run(value, by_one_step));
    }
    EXPECT_EQ(fresh.stats().captures, 1u);
  }
};

// A kernel that reads it there would lose the context.
TEST_F(ConditionalsMistakesTest, AConditionThatTheDeviceCannotReadIsRefused) {
  if (device_reads_all_memory()) GTEST_SKIP() << "this device can access all host memory";
  unsigned local = 0;
  for (const int executables : {0, 8}) {
    Cache in({.max_executables = executables});
    for (unsigned* const at : {&local, static_cast<unsigned*>(nullptr), condition.get()}) {
      const char* const names[] = {"if_node", "while_node", "switch_node", "if_node"};
      for (int which = 0; which < 4; ++which) {
        SCOPED_TRACE(testing::Message() << at << ", " << names[which] << ", executables: " << executables);
        begin(2, 0);
        const auto result = in.run(key("host", which), stream, params(at), [&](Recorder& rec, Slot<unsigned*> slot) {
          const auto body = [&](Body& of) { step(of, 7, 3); };
          step(rec, 3, 1);
          if (which == 0) if_node(rec, static_cast<const unsigned*>(at), body);
          if (which == 1) while_node(rec, static_cast<const unsigned*>(at), body);
          if (which == 2) switch_node(rec, static_cast<const unsigned*>(at), 1, [&](Body& of, unsigned) { body(of); });
          if (which == 3) if_node(rec, slot, body);
        });
        if (at == condition.get()) {
          ASSERT_SUCCESS(result);
          continue;
        }
        EXPECT_ERROR(kInvalidArgument, result, names[which], "the device cannot access this memory");
        EXPECT_FALSE(is_capturing(stream));
      }
    }
  }
}

TEST_F(ConditionalsMistakesTest, AnExceptionOfABodyPasses) {
  for (const unsigned times : {1u, 2u}) {
    begin(2, 1);
    EXPECT_THROW((void)run(cache,
                           [&](Recorder&, Body& body) {
                             step(body, 7, 3);
                             throw std::runtime_error("of the body");
                           }),
                 std::runtime_error);
    EXPECT_FALSE(is_capturing(stream));
    EXPECT_EQ(cache.stats().failed, times);
  }
  // In a body inside a body.
  EXPECT_THROW((void)run(cache,
                         [&](Recorder&, Body& body) {
                           while_node(body, condition.get(),
                                      [&](Body&) { throw std::runtime_error("of the inner body"); });
                         }),
               std::runtime_error);
  expect_whole();
}

// The graph would lack the rest of the body.
TEST_F(ConditionalsMistakesTest, AnExceptionOfABodyThatFnCatchesMakesTheRunDirect) {
  for (int i = 0; i < 3; ++i) {
    begin(2, 1);
    EXPECT_RUN(kEager, run(cache, [&](Recorder&, Body& body) {
                 try {
                   while_node(body, condition.get(), [&](Body& inner) {
                     step(inner, 7, 3);
                     throw std::runtime_error("caught");
                   });
                 } catch (const std::runtime_error&) {
                 }
               }));
    EXPECT_EQ(number.first(), after_run(1, by_one_step));
  }
}

TEST_F(ConditionalsMistakesTest, AFailingCallInABodyFailsTheRun) {
  Cache uncached({.max_executables = 0});
  for (Cache* const in : {&cache, &uncached}) {
    begin(2, 1);
    const absl::StatusOr<Outcome> done = run(*in, [&](Recorder&, Body& body) {
      body.launch(blend, {0, 1}, number.get(), 1, 7, 3);
      step(body, 7, 3);
    });
    EXPECT_FALSE(done.ok());
  }
  expect_whole();
}

// Also for a call that the recorder does not make.
TEST_F(ConditionalsMistakesTest, ALoopEndsIfACallInItFails) {
  Cache uncached({.max_executables = 0});
  begin(2, 3);
  int rounds = 0;
  for (const bool by_recorder : {true, false}) {
    SCOPED_TRACE(by_recorder);
    const absl::StatusOr<Outcome> done = uncached.run(key("loop"), stream, [&](Recorder& rec) {
      while_node(rec, condition.get(), [&](Body& body) {
        ++rounds;
        if (by_recorder) {
          body.launch(count_down, {0, 1}, condition.get());
        } else {
          (void)launch(count_down, 0, 1, body.stream(), condition.get());
        }
      });
    });
    EXPECT_FALSE(done.ok());
  }
  EXPECT_EQ(rounds, 2);
}

TEST_F(ConditionalsMistakesTest, WorkThatACaptureOrABodyCannotHoldIsRunDirectly) {
  static int calls = 0;
  calls = 0;
  const int pageable = 77;
  Stream side;
  DeviceBuffer<int> beside(1);
  const struct {
    const char* name;
    Work work;
    const char* words;
    std::function<int(int)> expected;
  } cases[] = {
      // The real driver crashes if a capture into the graph of a body breaks.
      {"a call that a capture forbids",
       [&](Recorder&, Body& body) {
         step(body, 7, 3);
         (void)cudaStreamSynchronize(body.stream());
         cudaGetLastError();
         step(body, 11, 4);
       },
       "the body of a conditional node", [](int value) { return blended(by_one_step(value), 11, 4); }},
      {"checked code that throws",
       [&](Recorder&, Body& body) {
         step(body, 7, 3);
         if (cudaStreamSynchronize(body.stream()) != cudaSuccess) {
           cudaGetLastError();
           throw std::runtime_error("a forbidden call");
         }
       },
       "the body of a conditional node", by_one_step},
      {"a host function",
       [&](Recorder&, Body& body) {
         CUDA_OK(cudaLaunchHostFunc(
             body.stream(), [](void*) { ++calls; }, nullptr));
         step(body, 7, 3);
       },
       "holds a host function", by_one_step},
      {"an allocation",
       [&](Recorder&, Body& body) {
         void* memory = nullptr;
         CUDA_OK(cudaMallocAsync(&memory, 256, body.stream()));
         step(body, 7, 3);
         CUDA_OK(cudaFreeAsync(memory, body.stream()));
       },
       "holds an allocation (cudaMallocAsync)", by_one_step},
      {"a copy from pageable memory",
       [&](Recorder&, Body& body) {
         body.memcpy(number.get(), &pageable, sizeof pageable, cudaMemcpyHostToDevice);
         step(body, 7, 3);
       },
       "holds a copy from or to pageable memory", [](int) { return by_one_step(77); }},
      {"a fork that is not joined",
       [&](Recorder&, Body& body) {
         step(body, 7, 3);
         let_follow(side, body.stream());
         CUDA_OK(launch(blend, 1, 1, side, beside.get(), 1, 1, 1));
       },
       "cudaErrorStreamCaptureUnjoined", by_one_step},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    expect_direct(one.work, one.words, one.expected);
    expect_whole();
  }
  EXPECT_EQ(calls, 2);
  CUDA_OK(cudaStreamSynchronize(side));
  EXPECT_EQ(beside.first(), 2);
}

TEST_F(ConditionalsMistakesTest, WhereCapturesMustNotFailAnExceptionOfABrokenBodyIsTheError) {
  Cache strict({.on_capture_failure = OnCaptureFailure::kReturnError});
  begin(2, 1);
  const absl::StatusOr<Outcome> done = run(strict, [&](Recorder&, Body& body) {
    if (cudaStreamSynchronize(body.stream()) != cudaSuccess) throw std::runtime_error("a forbidden call");
  });
  ASSERT_FALSE(done.ok());
  EXPECT_TRUE(mentions(done.status(), "the body of a conditional node")) << done.status();
  EXPECT_FALSE(mentions(done.status(), "GRAPHCACHE_DIAGNOSE")) << done.status();  // It names no call in a body.
  EXPECT_EQ(number.first(), 2);
  expect_whole();
}

TEST_F(ConditionalsMistakesTest, WorkThatWaitsForTheOuterCaptureIsRunDirectly) {
  Event recorded;
  // The query breaks the outer capture. hostrt then frees the node at once.
  for (const auto& [value, queries] : {std::pair(1u, false), {0u, false}, {1u, true}, {0u, true}}) {
    begin(2, value);
    EXPECT_RUN(kEager, cache.run(key("merged", queries), stream, [&, queries = queries](Recorder& rec) {
      step(rec, 3, 1);
      CUDA_OK(cudaEventRecord(recorded, rec.stream()));
      if_node(rec, condition.get(), [&](Body& body) {
        (void)(queries ? cudaStreamQuery(rec.stream()) : cudaStreamWaitEvent(body.stream(), recorded, 0));
        cudaGetLastError();
        if_node(body, condition.get(), [&](Body& inner) { step(inner, 7, 3); });
      });
      step(rec, 5, 2);
    }));
    EXPECT_EQ(number.first(), after_run(value, by_one_step));
  }
  expect_whole();
}

TEST_F(ConditionalsMistakesTest, ASlotInABodyIsRefused) {
  Cache uncached({.max_executables = 0});
  const auto fn = [&](Recorder& rec, Slot<int> v) {
    if_node(rec, condition.get(), [&](Body& body) {
      rec.on(body.stream()).launch(blend, {1, 1}, number.get(), 1, 3, v);
    });
  };
  for (Cache* const in : {&cache, &uncached}) {
    begin(2, 1);
    EXPECT_ERROR(kInvalidArgument, in->run(key("slot"), stream, params(7), fn),
                 "a slot was used inside the body of a conditional node");
    EXPECT_EQ(number.first(), 2);
  }
}

TEST_F(ConditionalsMistakesTest, WorkOfABodyThatGoesElsewhereIsRefused) {
  Stream side;
  const struct {
    const char* name;
    Work work;
    const char* words;
  } cases[] = {
      {"by the recorder", [&](Recorder& rec, Body&) { step(rec, 7, 3); }, "a recorder was used inside the body"},
      {"by the body around the body",
       [&](Recorder&, Body& body) { if_node(body, condition.get(), [&](Body&) { step(body, 7, 3); }); }, ""},
      // Such work would be done once at each replay, whatever the condition is.
      {"on the run's stream",
       [&](Recorder& rec, Body&) { CUDA_OK(launch(blend, 1, 1, rec.stream(), number.get(), 1, 7, 3)); },
       "use Body::stream()"},
      {"on the stream of the body around the body",
       [&](Recorder&, Body& body) {
         if_node(body, condition.get(),
                 [&](Body&) { CUDA_OK(launch(blend, 1, 1, body.stream(), number.get(), 1, 7, 3)); });
       },
       "use Body::stream()"},
      {"a node on a fork of the body",
       [&](Recorder&, Body& body) {
         let_follow(side, body.stream());
         if_node(body.on(side), condition.get(), [&](Body& inner) { step(inner, 7, 3); });
         let_follow(body.stream(), side);
       },
       "join that stream first"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    for (int i = 0; i < 2; ++i) {
      begin(2, 1);
      EXPECT_ERROR(kInvalidArgument, run(cache, one.work), one.words);
      EXPECT_EQ(number.first(), 2);
    }
  }
}

TEST_F(ConditionalsMistakesTest, WorkOfABodyOnAForkOfTheRunIsRefused) {
  Stream side;
  begin(2, 0);
  const auto fn = [&](Recorder& rec) {
    let_follow(side, rec.stream());
    if_node(rec, condition.get(), [&](Body&) { CUDA_OK(launch(blend, 1, 1, side, number.get(), 1, 7, 3)); });
    let_follow(rec.stream(), side);
  };
  EXPECT_ERROR(kInvalidArgument, cache.run(key("fork"), stream, fn), "use Body::stream()");
  EXPECT_EQ(number.first(), 2);
}

TEST_F(ConditionalsMistakesTest, ANodeOnAForkOfTheRunWorks) {
  Stream side;
  const auto fn = [&](Recorder& rec) {
    step(rec, 3, 1);
    let_follow(side, rec.stream());
    if_node(rec.on(side), condition.get(), [&](Body& body) { step(body, 7, 3); });
    rec.launch(count_down, {1, 1}, other.get());
    let_follow(rec.stream(), side);
    step(rec, 5, 2);
  };
  for (const unsigned value : {1u, 0u, 1u}) {
    begin(2, value, 5);
    ASSERT_TRUE(cache.run(key("forked"), stream, fn).ok());
    EXPECT_EQ(number.first(), after_run(value, by_one_step));
    EXPECT_EQ(other.first(), 4u);
  }
  EXPECT_EQ(cache.stats().captures, 1u);
}

TEST_F(ConditionalsMistakesTest, InAForeignCaptureTheyAreRefused) {
  Cache inlining({.inline_in_foreign_capture = true});
  begin(2, 1);
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const absl::StatusOr<Outcome> done = run(inlining, [&](Recorder&, Body& body) { step(body, 7, 3); });
  end_capture(stream);
  EXPECT_ERROR(kInvalidArgument, done, "a capture by other code");
}

// Not captured, so nothing is known of it except that it is called.
TEST_F(ConditionalsMistakesTest, ARunWithParamsInABodyIsRunDirectly) {
  for (const int value : {3, 4}) {
    begin(2, 1);
    EXPECT_RUN(kEager, run(cache, [&](Recorder&, Body& body) {
                 EXPECT_SUCCESS(cache.run(key("inner"), body.stream(), params(value), [&](Recorder& rec, Slot<int> v) {
                   rec.launch(blend, {1, 1}, number.get(), 1, v, 1);
                 }));
               }));
    EXPECT_EQ(number.first(), after_run(1, [&](int before) { return blended(before, value, 1); }));
  }
}

// Verify mode examines bodies.
TEST_F(ConditionalsMistakesTest, VerifyModeFindsAValueThatABodyHolds) {
  Cache verified({.verify_every = 1});
  int a = 3, b = 1;
  const auto run = [&] {
    return verified.run(key("verified"), stream, [&](Recorder& rec) {
      while_node(rec, condition.get(), [&](Body& body) {
        if_node(body, other.get(), [&](Body& inner) { step(inner, a, 1); });
        step(body, 5, b);
        body.launch(count_down, {1, 1}, condition.get());
      });
    });
  };
  for (int i = 0; i < 3; ++i) {
    begin(2, 2, 1);
    ASSERT_TRUE(run().ok());
    EXPECT_EQ(number.first(), blended(blended(blended(blended(2, 3, 1), 5, 1), 3, 1), 5, 1));
  }
  EXPECT_EQ(verified.stats().stale, 0u) << verified.entries().front().stale.back().text;
  EXPECT_EQ(verified.stats().verified, 2u);
  a = 4;
  ASSERT_SUCCESS(run());
  expect_stale(verified, 1, "argument 2 was 0x3");
  a = 3;
  b = 7;
  ASSERT_SUCCESS(run());
  expect_stale(verified, 2, "argument 3 was 0x1");
}

TEST_F(ConditionalsMistakesTest, VerifyModeFindsAnotherKindOfCondition) {
  Cache verified({.verify_every = 1});
  bool is_loop = false, is_empty = false;
  const auto run = [&] {
    return verified.run(key("kinds"), stream, [&](Recorder& rec) {
      const auto work = [&](Body& body) {
        if (!is_empty) body.memset(condition.get(), 0, sizeof(unsigned));
      };
      is_loop ? while_node(rec, condition.get(), work) : if_node(rec, condition.get(), work);
    });
  };
  ASSERT_TRUE(run().ok());
  is_empty = true;
  ASSERT_SUCCESS(run());
  EXPECT_EQ(verified.stats().stale, 1u);
  is_empty = false;
  is_loop = true;
  ASSERT_SUCCESS(run());
  expect_stale(verified, 2, "condition 0, if_node when the key was recorded, and is condition 0, while_node now");
}

}  // namespace
}  // namespace graphcache::test
