// An `fn` that fails under capture is called again, directly, and that call's result counts. Libraries refuse to work
// on a capturing stream without breaking its capture.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache_support.h"
#include "misuses.h"

namespace graphcache::test {

struct Cancelled {};
struct CancelledByUser : Cancelled {};
struct Stopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace graphcache::test

template <>
struct graphcache::OrdersToStop<> {
  using Types = graphcache::TypeList<graphcache::test::Cancelled, graphcache::test::Stopped>;
};

namespace graphcache::test {
namespace {

void not_a_kernel(float*) {}

// Ways in which a library refuses to work under capture.
using Refuse = std::function<cudaError_t(cudaStream_t on)>;
struct Refusal {
  const char* name;
  Refuse refuse;
  const char* error = "cudaError";  // In the entry's text.
};

class NotUnderCaptureTest : public CacheTest {
 protected:
  // Does half of its work, meets the library, and does the other half.
  auto work(const Refuse& refuse) {
    return [this, refuse](cudaStream_t on) -> cudaError_t {
      ++calls;
      if (const cudaError_t error = add_one(on); error != cudaSuccess) return error;
      if (is_capturing(on)) {
        if (const cudaError_t error = refuse(on); error != cudaSuccess) return error;
      }
      return add_one(on);
    };
  }
  absl::StatusOr<Outcome> run(Cache& cache, const Key& key, const Refuse& refuse) {
    return cache.run(key, stream, work(refuse));
  }

  std::vector<Refusal> refusals() {
    return {
        {"an error", [](cudaStream_t) { return cudaErrorNotSupported; }},
        {"an error of captures", [](cudaStream_t) { return cudaErrorStreamCaptureUnsupported; }},
        {"an exception", [](cudaStream_t) -> cudaError_t { throw std::runtime_error("as such"); }, "fn threw: as such"},
        {"an exception that is no object", [](cudaStream_t) -> cudaError_t { throw 7; }, "fn threw"},
        {"an error left behind",
         [&](cudaStream_t on) {
           (void)launch(not_a_kernel, 1, 1, on, data.get());
           return cudaSuccess;
         }},
        {"a broken capture and an exception",
         [](cudaStream_t on) -> cudaError_t {
           (void)cudaStreamSynchronize(on);
           throw std::runtime_error("synchronize failed");
         }},
        {"an error after a broken capture",
         [](cudaStream_t on) {
           (void)cudaStreamSynchronize(on);
           return cudaErrorNotSupported;
         }},
    };
  }
};

TEST_F(NotUnderCaptureTest, WorkIsDoneOnceInEveryRun) {
  misuses_on_purpose = true;
  for (const Refusal& refusal : refusals()) {
    Cache cache;
    data.write(std::vector<float>(kSize));
    calls = 0;
    for (int i = 1; i <= 6; ++i) {
      EXPECT_RUN(kEager, run(cache, key("k"), refusal.refuse)) << refusal.name;
      expect_sum(static_cast<float>(2 * i));
      EXPECT_FALSE(is_capturing(stream)) << refusal.name;
      CUDA_OK(cudaPeekAtLastError()) << refusal.name;
      const bool is_tried = i == 1 || i == 3 || i == 6;
      const EntryInfo entry = cache.entries().front();
      EXPECT_EQ(entry.eager_reason, is_tried ? EagerReason::kCaptureFailed : EagerReason::kBackoff) << refusal.name;
      EXPECT_NE(entry.error.find(refusal.error), std::string::npos) << refusal.name << ": the error stays";
    }
    EXPECT_EQ(calls, 6 + 3) << refusal.name;
    const Stats stats = cache.stats();
    EXPECT_EQ(stats.eager(EagerReason::kCaptureFailed), 3u) << refusal.name;
    EXPECT_EQ(stats.eager(EagerReason::kBackoff), 3u) << refusal.name;
    EXPECT_EQ(stats.failed, 0u) << refusal.name;
  }
}

TEST_F(NotUnderCaptureTest, KeyIsCapturedOnceTheLibraryWorks) {
  misuses_on_purpose = true;
  for (const Refusal& refusal : refusals()) {
    Cache cache;
    data.write(std::vector<float>(kSize));
    bool refuses = true;
    const auto once = [&](cudaStream_t on) { return std::exchange(refuses, false) ? refusal.refuse(on) : cudaSuccess; };
    EXPECT_RUN(kEager, run(cache, key("k"), once)) << refusal.name;
    EXPECT_RUN(kEager, run(cache, key("k"), once)) << refusal.name;
    EXPECT_RUN(kInstantiated, run(cache, key("k"), once)) << refusal.name;
    EXPECT_RUN(kReplayed, run(cache, key("k"), once)) << refusal.name;
    expect_sum(8);
    EXPECT_EQ(cache.entries().front().error, "") << refusal.name;
  }
}

TEST_F(NotUnderCaptureTest, WhatFailsDirectlyAsWellFailsTheRun) {
  Cache cache;
  const auto fail = [&](bool fails) {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      ++calls;
      if (!fails) return absl::Status(detail::fn_failure(add_one(on)));
      return is_capturing(on) ? absl::UnavailableError("under capture") : absl::DataLossError("directly");
    });
  };
  EXPECT_FAILURE(kDataLoss, fail(true));
  EXPECT_FAILURE(kDataLoss, fail(true));
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(cache.stats().failed, 2u);
  EXPECT_RUN(kInstantiated, fail(false));  // The failures say nothing about captures.
  expect_sum(1);
}

TEST_F(NotUnderCaptureTest, OneCallWhereTheOptionsWantNoSecondOneAndOfWarm) {
  misuses_on_purpose = true;
  for (const Refusal& refusal : refusals()) {
    for (const bool warms : {false, true}) {
      SCOPED_TRACE(testing::Message() << refusal.name << ", warms " << warms);
      Cache cache(warms ? Options() : called_once());
      calls = 0;
      try {
        const auto fn = work(refusal.refuse);
        EXPECT_FALSE(warms ? cache.warm(key("k"), stream, fn).ok() : cache.run(key("k"), stream, fn).ok());
      } catch (...) {  // From an intact capture.
      }
      EXPECT_EQ(calls, 1);
      EXPECT_FALSE(is_capturing(stream));
      CUDA_OK(cudaPeekAtLastError());
    }
  }
  expect_sum(0);
}

TEST_F(NotUnderCaptureTest, MisuseOfTheRecorderStaysAnError) {
  Cache cache;
  Stream other;
  for (const bool throws : {false, true}) {
    calls = 0;
    const auto misuse = [&] {
      return cache.run(key("k", throws), stream, [&](Recorder& rec) {
        ++calls;
        rec.on(other).launch(add, {kGrid, kBlock}, data.get(), kSize, 1);
        if (throws) throw std::runtime_error("too");
      });
    };
    if (throws) {
      EXPECT_THROW((void)misuse(), std::runtime_error);
    } else {
      EXPECT_FAILURE(kInvalidArgument, misuse());
    }
    EXPECT_EQ(calls, 1);
  }
  std::vector<Slot<float>> kept;
  const auto with_slot = [&](float value) {
    return cache.run(key("slots"), stream, params(value), [&](Recorder& rec, Slot<float> slot) {
      ++calls;
      kept.push_back(slot);
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, kept.front());
    });
  };
  EXPECT_RUN(kInstantiated, with_slot(1));
  cache.clear();
  calls = 0;
  EXPECT_FAILURE(kInvalidArgument, with_slot(1));
  EXPECT_EQ(calls, 1);
  expect_sum(1);
}

TEST_F(NotUnderCaptureTest, OrdersToStopPassAtOnce) {
  Cache cache;
  const auto stop = [&](const char* label, const std::function<void()>& order, bool breaks) {
    (void)cache.run(key(label, breaks), stream, [&, breaks](cudaStream_t on) {
      ++calls;
      CUDA_OK(add_one(on));
      if (breaks) (void)cudaStreamSynchronize(on);
      order();
    });
  };
  const std::function<void()> order = [] { throw Cancelled(); };
  const std::function<void()> derived_order = [] { throw CancelledByUser(); };
  const std::function<void()> exception = [] { throw Stopped("now"); };
  for (const bool breaks : {false, true}) {
    EXPECT_THROW(stop("a class", order, breaks), Cancelled);
    EXPECT_THROW(stop("a derived class", derived_order, breaks), CancelledByUser);
    EXPECT_THROW(stop("an exception", exception, breaks), Stopped);
    EXPECT_FALSE(is_capturing(stream));
    CUDA_OK(cudaPeekAtLastError());
  }
  EXPECT_EQ(calls, 6);
  expect_sum(0);
  const std::function<void()> another = [] { throw std::logic_error("not named"); };
  EXPECT_THROW(stop("another", another, false), std::logic_error);
  EXPECT_EQ(calls, 8);
  expect_sum(1);
}

// pthread_exit() unwinds the stack as a cancellation does, and must not be caught.
TEST_F(NotUnderCaptureTest, ThreadThatEndsInFnLeavesTheStreamAndTheKey) {
  Cache cache;
  for (const bool breaks : {false, true}) {
    std::atomic<int> called{0};
    std::atomic<bool> went_on{false};
    std::thread([&] {
      (void)cache.run(key("k"), stream, [&](cudaStream_t on) {
        ++called;
        CUDA_OK(add_one(on));
        if (breaks) (void)cudaStreamSynchronize(on);
        pthread_exit(nullptr);
      });
      went_on = true;
    }).join();
    EXPECT_EQ(called, 1);
    EXPECT_FALSE(went_on);
    EXPECT_FALSE(is_capturing(stream));
  }
  expect_sum(0);
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  expect_sum(1);
}

// Only fn may be unwound. The library goes on to its end, with its listeners and what they do.
TEST_F(NotUnderCaptureTest, ThreadThatIsCancelledInsideTheLibraryGoesOn) {
  class Stops : public Listener {
   public:
    absl::Status begin(const CacheEvent&) override { return pthread_testcancel(), absl::OkStatus(); }
    void end(const CacheEvent&) override { pthread_testcancel(); }
    void message(std::string_view) override { pthread_testcancel(); }
  };
  auto cache = std::make_unique<Cache>(Options{.max_executables = 2, .listeners = {std::make_shared<Stops>()}});
  int steps = 0;
  const auto cancelled = [&](const auto& f) {
    std::thread([&] {
      pthread_cancel(pthread_self());
      f();
      ++steps;
      pthread_testcancel();
      ++steps;
    }).join();
  };
  for (const char* const label : {"k", "k", "other", "third", "k"}) {
    cancelled([&] { EXPECT_SUCCESS(run_add(*cache, key(label))); });
  }
  for (int i = 0; i < 600; ++i) ASSERT_SUCCESS(run_add(*cache, key("many", i)));
  cancelled([&] { EXPECT_TRUE(cache->erase(key("many", 599))); });
  cancelled([&] { cache->clear(); });
  cancelled([&] { EXPECT_SUCCESS(run_add(*cache, key("k"))); });
  cancelled([&] {
    (void)cache->run(key("stops"), stream, [&](cudaStream_t) { pthread_testcancel(); });
    ADD_FAILURE() << "fn went on";
  });
  EXPECT_FALSE(is_capturing(stream));
  cancelled([&] { cache.reset(); });
  EXPECT_EQ(steps, 9);
  expect_sum(606);
}

// A fork of a broken capture fails, and leaves its stream outside. That is no misuse of the recorder.
TEST_F(NotUnderCaptureTest, ACaptureThatBreaksBeforeAForkRunsDirectly) {
  Branch other;
  for (const bool in_thread : {false, true}) {
    Cache cache(unshared());
    data.write(std::vector<float>(kSize));
    other.data.write(std::vector<float>(kSize));
    for (int i = 1; i <= 3; ++i) {
      EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](Recorder& rec) {
        rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1.0f);
        if (in_thread) {
          std::thread([] { (void)cudaDeviceSynchronize(); }).join();
        } else {
          (void)cudaStreamQuery(rec.stream());
        }
        (void)cudaEventRecord(other.forked, rec.stream());
        (void)cudaStreamWaitEvent(other.stream, other.forked, 0);
        rec.on(other.stream).launch(add, {kGrid, kBlock}, other.data.get(), kSize, 1.0f);
        (void)cudaEventRecord(other.joined, other.stream);
        (void)cudaStreamWaitEvent(rec.stream(), other.joined, 0);
        cudaGetLastError();
      }));
      expect_sum(static_cast<float>(i));
      EXPECT_EQ(other.data.first(), static_cast<float>(i));
    }
  }
}

// An inner graph could not follow the slots of the run around it.
TEST_F(NotUnderCaptureTest, AnInnerRunThatUsesTheOuterSlotsIsDirectAsTheOuterOneIs) {
  for (const bool refuses : {false, true}) {
    Cache cache(unshared());
    data.write(std::vector<float>(kSize));
    float sum = 0;
    for (const float value : {1.0f, 2.0f, 3.0f, 4.0f, 5.0f}) {
      EXPECT_SUCCESS(
          cache.run(key("outer"), stream, params(value), [&](Recorder& rec, Slot<float> slot) -> absl::Status {
            const auto inner = cache.run(key("inner"), rec.stream(), [&](cudaStream_t) {
              rec.launch(add, {kGrid, kBlock}, data.get(), kSize, slot);
            });
            if (!inner.ok()) return inner.status();
            if (refuses && is_capturing(rec.stream())) return absl::UnavailableError("not under capture");
            return absl::OkStatus();
          }));
      sum += value;
      expect_sum(sum);
    }
  }
}

}  // namespace
}  // namespace graphcache::test
