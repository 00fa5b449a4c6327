// The streams of a recorder, and misplaced slots, on either runtime.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "recorder_support.h"

namespace graphcache::test {
namespace {

// ---- Streams --------------------------------------------------------------------------------------------------------

TEST_F(RecorderTest, ForksAreRecordedAndFollowEachRun) {
  Branch other;
  for (int i = 0; i < 4; ++i) {
    const auto v = static_cast<float>(i + 1);
    EXPECT_TRUE(ran(i, true, params(v, 2 * v), [&](Recorder& rec, Slot<float> a, Slot<float> b) {
      other.fork(rec.stream(), [&] {
        rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, a);
        Recorder branch = rec.on(other.stream);
        EXPECT_EQ(branch.stream(), static_cast<cudaStream_t>(other.stream));
        branch.launch(fill, {kGrid, kBlock}, other.data.get(), kSize, b);
        branch.launch(add, {kGrid, kBlock}, other.data.get(), kSize, a);
      });
      rec.launch(axpy, {kGrid, kBlock}, data.get(), other.data.get(), kSize, b);
    }));
    EXPECT_EQ(data.read(), std::vector<float>(kSize, v + 3 * v * 2 * v));
    EXPECT_FALSE(is_capturing(other.stream));
  }
}

TEST_F(RecorderTest, StreamThatIsNotForkedIsRefusedAndNothingIsEnqueued) {
  Stream other;
  DeviceBuffer<float> second(kSize);
  const auto run = [&](int what) {
    return cache.run(key("my label", what), stream, params(1.0f), [&, what](Recorder& rec, Slot<float> one) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, one);
      if (what == 0) rec.on(other).launch(add, {kGrid, kBlock}, second.get(), kSize, one);
      if (what == 1) rec.on(other).memset(second.get(), 1, 4);
      if (what == 2) rec.on(other).memcpy(second.get(), data.get(), 4);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, one);
    });
  };
  for (int what = 0; what < 3; ++what) {
    EXPECT_ERROR(kInvalidArgument, run(what), "my label") << what;
  }
  EXPECT_EQ(data.read(), std::vector<float>(kSize));
  EXPECT_EQ(second.read(), std::vector<float>(kSize));
  EXPECT_RUN(kInstantiated, run(3));
  EXPECT_EQ(data.read(), std::vector<float>(kSize, 2));
}

TEST_F(RecorderTest, StreamOfAnotherCaptureIsRefused) {
  Stream other;
  CUDA_OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
  EXPECT_FAILURE(kInvalidArgument, cache.run(key("k"), stream, [&](Recorder& rec) {
    rec.on(other).launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
  }));
  EXPECT_EQ(end_capture(other), 0u);
}

// Work on a stream outside the outer capture would run once and never again on a replay.
TEST_F(RecorderTest, StreamThatIsNotForkedIsRefusedInAnInlinedRunToo) {
  Stream other;
  DeviceBuffer<float> second(kSize);
  int refused = 0;
  EXPECT_RUN(kEager, cache.run(key("outer"), stream, [&](cudaStream_t on) {
    const auto inner = cache.run(key("inner"), on, [&](Recorder& rec) {
      rec.on(other).launch(add, {kGrid, kBlock}, second.get(), kSize, 1);
    });
    EXPECT_FAILURE(kInvalidArgument, inner);
    refused += inner.ok() ? 0 : 1;
    return launch(add, kGrid, kBlock, on, data.get(), kSize, 1.0f);
  }));
  EXPECT_EQ(refused, 2);  // Inside the outer capture, and in one of its own.
  EXPECT_EQ(second.read(), std::vector<float>(kSize));
  EXPECT_EQ(data.read(), std::vector<float>(kSize, 1));
}

TEST_F(RecorderTest, InlinedRunsRecordThroughTheirRecorder) {
  Branch other;
  for (int i = 1; i <= 3; ++i) {
    EXPECT_SUCCESS(cache.run(key("outer"), stream, [&](cudaStream_t on) {
      EXPECT_RUN(kInlined, cache.run(key("inner"), on, [&](Recorder& rec) {
        rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
        other.fork(rec.stream(), [&] {
          rec.on(other.stream).launch(add, {kGrid, kBlock}, other.data.get(), kSize, 2);
        });
      }));
    }));
    EXPECT_EQ(data.first(), static_cast<float>(i));
    EXPECT_EQ(other.data.first(), static_cast<float>(2 * i));
  }
}

// ---- Misplaced slots ------------------------------------------------------------------------------------------------

TEST_F(RecorderTest, SlotOfAnotherRunIsRefused) {
  std::optional<Slot<float>> kept;
  EXPECT_RUN(kInstantiated, cache.run(key("first"), stream, params(1.0f), [&](Recorder& rec, Slot<float> v) {
    kept = v;
    rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
  }));
  const auto run = [&](Cache& by, bool bad) {
    return by.run(key("my label"), stream, params(10.0f), [&](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
      if (bad) rec.launch(add, {kGrid, kBlock}, data.get(), kSize, *kept);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
    });
  };
  EXPECT_ERROR(kInvalidArgument, run(cache, true), "my label");
  EXPECT_EQ(data.read(), std::vector<float>(kSize, 1));
  EXPECT_RUN(kInstantiated, run(cache, false));
  EXPECT_EQ(data.read(), std::vector<float>(kSize, 21));

  Cache eager({.max_executables = 0});
  EXPECT_FAILURE(kInvalidArgument, run(eager, true));
  EXPECT_RUN(kEager, run(eager, false));
}

TEST_F(RecorderTest, SlotOfAnotherRunIsRefusedInCopiesSetsWritesAndShapes) {
  std::optional<Slot<int>> kept;
  std::optional<Slot<float*>> pointer;
  EXPECT_RUN(kInstantiated,
             cache.run(key("first"), stream, params(4, data.get()), [&](Recorder& rec, Slot<int> v, Slot<float*> p) {
               rec.memset(p, 0, sizeof(float));
               kept = v;
               pointer = p;
             }));
  for (int what = 0; what < 10; ++what) {
    EXPECT_FAILURE(kInvalidArgument, cache.run(key("second", what), stream, params(4), [&](Recorder& rec, Slot<int>) {
      if (what == 0) rec.memset(data.get(), 1, *kept);
      if (what == 1) rec.memset(data.get(), *kept, 4);
      if (what == 2) rec.memcpy(data.get(), data.get() + 8, *kept);
      if (what == 3) rec.launch(add, {*kept, kBlock}, data.get(), kSize, 1);
      if (what == 4) rec.launch(add, {kGrid, *kept}, data.get(), kSize, 1);
      if (what == 5) rec.launch(add, {kGrid, kBlock, *kept}, data.get(), kSize, 1);
      if (what == 6) rec.memset(*pointer, 1, 4);
      if (what == 7) rec.memcpy(*pointer, data.get() + 8, 4);
      if (what == 8) rec.memcpy(data.get(), *pointer, 4);
      if (what == 9) rec.write(reinterpret_cast<int*>(data.get()), *kept);
    })) << what;
  }
  EXPECT_EQ(data.read(), std::vector<float>(kSize));
}

TEST_F(RecorderTest, FirstFailureIsKept) {
  Stream other;
  const auto outcome = cache.run(key("k"), stream, [&](Recorder& rec) -> cudaError_t {
    rec.on(other).memset(data.get(), 1, 4);
    rec.launch(add, {0, 0}, data.get(), kSize, 1);
    return cudaSuccess;
  });
  EXPECT_ERROR(kInvalidArgument, outcome, "Recorder::on");
  EXPECT_FALSE(is_capturing(stream));
}

}  // namespace
}  // namespace graphcache::test
