// Conditional nodes: bodies that a capture cannot contain, that fail, or that are used wrongly.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "conditionals_support.h"
#include "graphcache/status.h"

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
  // Expects that a run which cannot be captured does all its work directly, for this reason.
  void expect_direct(const Work& work, const std::string& words, const std::function<int(int)>& expected) {
    for (const unsigned value : {1u, 0u, 1u}) {
      begin(2, value);
      EXPECT_RUN(kEager, run(cache, work));
      const int before = blended(2, 3, 1);
      EXPECT_EQ(number.first(), blended(value != 0 ? expected(before) : before, 5, 2));
      EXPECT_FALSE(is_capturing(stream));
    }
    EXPECT_NE(cache.entries().front().error.find(words), std::string::npos) << cache.entries().front().error;
    EXPECT_GT(cache.stats().eager(EagerReason::kCaptureFailed), 0u);
  }
  // The key works again once its body does.
  void expect_whole() {
    Cache fresh;
    for (const unsigned value : {1u, 0u}) {
      begin(2, value);
      ASSERT_TRUE(run(fresh, [&](Recorder&, Body& body) { step(body, 7, 3); }).ok());
      const int before = blended(2, 3, 1);
      EXPECT_EQ(number.first(), blended(value != 0 ? blended(before, 7, 3) : before, 5, 2));
    }
    EXPECT_EQ(fresh.stats().captures, 1u);
  }
};

TEST_F(ConditionalsMistakesTest, AnExceptionOfABodyPasses) {
  for (Cache* const in : {&cache, &cache}) {
    begin(2, 1);
    EXPECT_THROW((void)run(*in,
                           [&](Recorder&, Body& body) {
                             step(body, 7, 3);
                             throw std::runtime_error("of the body");
                           }),
                 std::runtime_error);
    EXPECT_FALSE(is_capturing(stream));
  }
  EXPECT_EQ(cache.stats().failed, 2u);
  // In a body inside a body.
  EXPECT_THROW((void)run(cache,
                         [&](Recorder&, Body& body) {
                           while_node(body, condition.get(),
                                      [&](Body&) { throw std::runtime_error("of the inner body"); });
                         }),
               std::runtime_error);
  expect_whole();
}

TEST_F(ConditionalsMistakesTest, AFailingCallInABodyFailsTheRun) {
  Cache uncached(direct());
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

TEST_F(ConditionalsMistakesTest, ALoopEndsIfACallInItFails) {
  Cache uncached(direct());
  begin(2, 3);
  int rounds = 0;
  EXPECT_FALSE(uncached
                   .run(key("loop"), stream,
                        [&](Recorder& rec) {
                          while_node(rec, condition.get(), [&](Body& body) {
                            ++rounds;
                            body.launch(count_down, {0, 1}, condition.get());
                          });
                        })
                   .ok());
  // The same for a call that the recorder does not make.
  EXPECT_FALSE(uncached
                   .run(key("loop"), stream,
                        [&](Recorder& rec) {
                          while_node(rec, condition.get(), [&](Body& body) {
                            ++rounds;
                            (void)launch(count_down, 0, 1, body.stream(), condition.get());
                          });
                        })
                   .ok());
  EXPECT_EQ(rounds, 2);
}

// The real driver crashes if a capture into the graph of a body breaks.
TEST_F(ConditionalsMistakesTest, ACallThatACaptureForbidsBreaksNoMoreThanTheCapture) {
  expect_direct(
      [&](Recorder&, Body& body) {
        step(body, 7, 3);
        (void)cudaStreamSynchronize(body.stream());
        cudaGetLastError();
        step(body, 11, 4);
      },
      "the body of a conditional node", [](int value) { return blended(blended(value, 7, 3), 11, 4); });
  expect_whole();
}

TEST_F(ConditionalsMistakesTest, CheckedCodeMayThrowErrorsOfForbiddenCalls) {
  expect_direct(
      [&](Recorder&, Body& body) {
        step(body, 7, 3);
        if (cudaStreamSynchronize(body.stream()) != cudaSuccess) {
          cudaGetLastError();
          throw std::runtime_error("a forbidden call");
        }
      },
      "the body of a conditional node", [](int value) { return blended(value, 7, 3); });
}

TEST_F(ConditionalsMistakesTest, AForkThatIsNotJoinedIsRunDirectly) {
  Stream side;
  Event forked;
  DeviceBuffer<int> beside(1);
  expect_direct(
      [&](Recorder&, Body& body) {
        step(body, 7, 3);
        CUDA_OK(cudaEventRecord(forked, body.stream()));
        CUDA_OK(cudaStreamWaitEvent(side, forked, 0));
        CUDA_OK(launch(blend, 1, 1, side, beside.get(), 1, 1, 1));
      },
      "cudaErrorStreamCaptureUnjoined", [](int value) { return blended(value, 7, 3); });
  CUDA_OK(cudaStreamSynchronize(side));
  EXPECT_EQ(beside.first(), 2);
  expect_whole();
}

TEST_F(ConditionalsMistakesTest, WorkThatWaitsForTheOuterCaptureIsRunDirectly) {
  Event recorded;
  for (const unsigned value : {1u, 0u}) {
    begin(2, value);
    EXPECT_RUN(kEager, cache.run(key("merged"), stream, [&](Recorder& rec) {
      step(rec, 3, 1);
      CUDA_OK(cudaEventRecord(recorded, rec.stream()));
      if_node(rec, condition.get(), [&](Body& body) {
        (void)cudaStreamWaitEvent(body.stream(), recorded, 0);
        cudaGetLastError();
        step(body, 7, 3);
      });
      step(rec, 5, 2);
    }));
    const int before = blended(2, 3, 1);
    EXPECT_EQ(number.first(), blended(value != 0 ? blended(before, 7, 3) : before, 5, 2));
  }
  expect_whole();
}

TEST_F(ConditionalsMistakesTest, WorkThatNoBodyMayHoldIsRunDirectly) {
  static int calls = 0;
  calls = 0;
  expect_direct(
      [&](Recorder&, Body& body) {
        CUDA_OK(cudaLaunchHostFunc(
            body.stream(), [](void*) { ++calls; }, nullptr));
        step(body, 7, 3);
      },
      "holds a host function", [](int value) { return blended(value, 7, 3); });
  EXPECT_EQ(calls, 2);
}

TEST_F(ConditionalsMistakesTest, SoIsAnAllocation) {
  expect_direct(
      [&](Recorder&, Body& body) {
        void* memory = nullptr;
        CUDA_OK(cudaMallocAsync(&memory, 256, body.stream()));
        step(body, 7, 3);
        CUDA_OK(cudaFreeAsync(memory, body.stream()));
      },
      "holds an allocation (cudaMallocAsync)", [](int value) { return blended(value, 7, 3); });
}

TEST_F(ConditionalsMistakesTest, SoIsACopyFromPageableMemory) {
  const int pageable = 77;
  expect_direct(
      [&](Recorder&, Body& body) {
        body.memcpy(number.get(), &pageable, sizeof pageable, cudaMemcpyHostToDevice);
        step(body, 7, 3);
      },
      "holds a copy from or to pageable memory", [](int) { return blended(77, 7, 3); });
}

TEST_F(ConditionalsMistakesTest, ASlotInABodyIsRefused) {
  Cache uncached(direct());
  for (Cache* const in : {&cache, &uncached}) {
    begin(2, 1);
    const absl::StatusOr<Outcome> done = in->run(key("slot"), stream, params(7), [&](Recorder& rec, Slot<int> v) {
      if_node(rec, condition.get(), [&](Body& body) {
        rec.on(body.stream()).launch(blend, {1, 1}, number.get(), 1, 3, v);
      });
    });
    EXPECT_FAILURE(kInvalidArgument, done);
    EXPECT_TRUE(mentions(done.status(), "a slot was used inside the body of a conditional node")) << done.status();
    EXPECT_EQ(number.first(), 2);
  }
}

TEST_F(ConditionalsMistakesTest, ARecorderInABodyIsRefused) {
  begin(2, 1);
  const absl::StatusOr<Outcome> done = run(cache, [&](Recorder& rec, Body&) { step(rec, 7, 3); });
  EXPECT_FAILURE(kInvalidArgument, done);
  EXPECT_TRUE(mentions(done.status(), "a recorder was used inside the body")) << done.status();
  EXPECT_EQ(number.first(), 2);
}

TEST_F(ConditionalsMistakesTest, TheBodyAroundABodyIsRefused) {
  begin(2, 1);
  const absl::StatusOr<Outcome> done =
      run(cache, [&](Recorder&, Body& body) { if_node(body, condition.get(), [&](Body&) { step(body, 7, 3); }); });
  EXPECT_FAILURE(kInvalidArgument, done);
  EXPECT_EQ(number.first(), 2);
}

// Such work would be done once at each replay, whatever the condition is.
TEST_F(ConditionalsMistakesTest, WorkOfABodyOnTheRunsStreamIsRefused) {
  begin(2, 1);
  const absl::StatusOr<Outcome> done =
      run(cache, [&](Recorder& rec, Body&) { CUDA_OK(launch(blend, 1, 1, rec.stream(), number.get(), 1, 7, 3)); });
  EXPECT_FAILURE(kInvalidArgument, done);
  EXPECT_TRUE(mentions(done.status(), "use Body::stream()")) << done.status();
  EXPECT_EQ(number.first(), 2);
  const absl::StatusOr<Outcome> inner = run(cache, [&](Recorder&, Body& body) {
    if_node(body, condition.get(), [&](Body&) { CUDA_OK(launch(blend, 1, 1, body.stream(), number.get(), 1, 7, 3)); });
  });
  EXPECT_FAILURE(kInvalidArgument, inner);
  EXPECT_TRUE(mentions(inner.status(), "use Body::stream()")) << inner.status();
  EXPECT_EQ(number.first(), 2);
}

TEST_F(ConditionalsMistakesTest, ANodeOnAForkOfABodyIsRefused) {
  Stream side;
  Event forked, joined;
  begin(2, 1);
  const absl::StatusOr<Outcome> done = run(cache, [&](Recorder&, Body& body) {
    CUDA_OK(cudaEventRecord(forked, body.stream()));
    CUDA_OK(cudaStreamWaitEvent(side, forked, 0));
    if_node(body.on(side), condition.get(), [&](Body& inner) { step(inner, 7, 3); });
    CUDA_OK(cudaEventRecord(joined, side));
    CUDA_OK(cudaStreamWaitEvent(body.stream(), joined, 0));
  });
  EXPECT_FAILURE(kInvalidArgument, done);
  EXPECT_TRUE(mentions(done.status(), "join that stream first")) << done.status();
}

TEST_F(ConditionalsMistakesTest, ANodeOnAForkOfTheRunWorks) {
  Stream side;
  Event forked, joined;
  for (const unsigned value : {1u, 0u, 1u}) {
    begin(2, value, 5);
    ASSERT_TRUE(cache
                    .run(key("forked"), stream,
                         [&](Recorder& rec) {
                           step(rec, 3, 1);
                           CUDA_OK(cudaEventRecord(forked, rec.stream()));
                           CUDA_OK(cudaStreamWaitEvent(side, forked, 0));
                           if_node(rec.on(side), condition.get(), [&](Body& body) { step(body, 7, 3); });
                           rec.launch(count_down, {1, 1}, other.get());
                           CUDA_OK(cudaEventRecord(joined, side));
                           CUDA_OK(cudaStreamWaitEvent(rec.stream(), joined, 0));
                           step(rec, 5, 2);
                         })
                    .ok());
    const int before = blended(2, 3, 1);
    EXPECT_EQ(number.first(), blended(value != 0 ? blended(before, 7, 3) : before, 5, 2));
    EXPECT_EQ(other.first(), 4u);
  }
  EXPECT_EQ(cache.stats().captures, 1u);
}

TEST_F(ConditionalsMistakesTest, InAForeignCaptureTheyAreRefused) {
  Options options;
  options.inline_in_foreign_capture = true;
  Cache inlining(options);
  begin(2, 1);
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const absl::StatusOr<Outcome> done = run(inlining, [&](Recorder&, Body& body) { step(body, 7, 3); });
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
  EXPECT_FAILURE(kInvalidArgument, done);
  EXPECT_TRUE(mentions(done.status(), "a capture by other code")) << done.status();
}

// Not captured, so nothing is known of it except that it is called.
TEST_F(ConditionalsMistakesTest, ARunWithParamsInABodyIsRunDirectly) {
  for (const int value : {3, 4}) {
    begin(2, 1);
    EXPECT_RUN(kEager, run(cache, [&](Recorder&, Body& body) {
                 const auto inner =
                     cache.run(key("inner"), body.stream(), params(value), [&](Recorder& rec, Slot<int> v) {
                       rec.launch(blend, {1, 1}, number.get(), 1, v, 1);
                     });
                 EXPECT_TRUE(inner.ok()) << inner.status();
               }));
    EXPECT_EQ(number.first(), blended(blended(blended(2, 3, 1), value, 1), 5, 2));
  }
}

// Verify mode examines bodies.
TEST_F(ConditionalsMistakesTest, VerifyModeFindsAValueThatABodyHolds) {
  Options options;
  options.verify_every = 1;
  Cache verified(options);
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
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(verified.stats().stale, 1u);
  EXPECT_NE(verified.entries().front().stale.back().text.find("argument 2 was 0x3"), std::string::npos)
      << verified.entries().front().stale.back().text;
  a = 3;
  b = 7;
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(verified.stats().stale, 2u);
  EXPECT_NE(verified.entries().front().stale.back().text.find("argument 3 was 0x1"), std::string::npos)
      << verified.entries().front().stale.back().text;
}

TEST_F(ConditionalsMistakesTest, VerifyModeFindsAnotherKindOfCondition) {
  Options options;
  options.verify_every = 1;
  Cache verified(options);
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
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(verified.stats().stale, 1u);
  is_empty = false;
  is_loop = true;
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(verified.stats().stale, 2u);
  EXPECT_NE(verified.entries().front().stale.back().text.find(
                "condition 0, if_node when the key was recorded, and is condition 0, while_node now"),
            std::string::npos);
}

}  // namespace
}  // namespace graphcache::test
