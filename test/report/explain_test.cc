// The text of Cache::explain() for each event of a key, on hostrt, which can provoke them all.
#include <gtest/gtest.h>

#include <string>

#include "cache_support.h"
#include "graphcache/hostrt.h"

namespace graphcache::test {
namespace {

class ExplainTest : public CacheTest {
 protected:
  void TearDown() override {
    hostrt::clear_failures();
    CacheTest::TearDown();
  }
};

TEST_F(ExplainTest, ABrokenCaptureAndABackOff) {
  Cache cache;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      (void)cudaStreamSynchronize(on);
      (void)cudaGetLastError();
      return add_one(on);
    });
  };
  EXPECT_RUN(kEager, run());
  const std::string broken = explain(cache, key("k"));
  EXPECT_TRUE(says(broken, "Runs: eager 1."));
  EXPECT_TRUE(says(broken, "Its last direct run was direct because its work could not be captured."));
  EXPECT_TRUE(says(broken, "Its last error: "));
  EXPECT_TRUE(says(broken, "cudaErrorStreamCapture"));
  EXPECT_RUN(kEager, run());
  EXPECT_TRUE(says(explain(cache, key("k")),
                   "an earlier run failed to make a graph, or CUDA refused one of its values; the next try is after"));
  EXPECT_TRUE(says(explain(cache, key("k")), "its next run that is not direct captures fn"));
}

TEST_F(ExplainTest, EntriesAlikeAreDescribedOnce) {
  Cache cache;
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, values(value), [&](cudaStream_t s, float v) { return add_value(s, v); });
  };
  for (const float value : {0.0f, 1.0f, 2.0f}) EXPECT_RUN(kInstantiated, run(value));
  const std::string kinds = "at one place, by kinds of values (null, 0 or 1, alignment, memory, equal pointers):\n";
  const std::string alike = explain(cache, key("k"));
  EXPECT_TRUE(says(alike, "Of 3 entries " + kinds + "Runs: instantiated 1."));
  EXPECT_EQ(alike.find("Runs: ", alike.find("Runs: ") + 1), std::string::npos);
  EXPECT_RUN(kReplayed, run(2));
  EXPECT_TRUE(says(explain(cache, key("k")), "Of 2 entries " + kinds + "Runs: instantiated 1."));
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));
  EXPECT_TRUE(says(explain(cache, key("k")), "Of 2 entries at other places of the program:\nRuns: instantiated 1."));
  EXPECT_RUN(kReplayed, run(1));
  EXPECT_TRUE(says(explain(cache, key("k")), "Of 1 entry at other places of the program:\nRuns: instantiated 1."));
}

TEST_F(ExplainTest, AValueThatIsPassedOnAndOneThatIsComputedWith) {
  Cache cache;
  const auto run = [&](float plain, float doubled) {
    EXPECT_TRUE(cache
                    .run(key("k"), stream, values(plain, doubled),
                         [&](cudaStream_t s, float a, float b) {
                           const cudaError_t error = add_value(s, a);
                           return error == cudaSuccess ? add_value(s, 2 * b) : error;
                         })
                    .ok());
    return explain(cache, key("k"));
  };
  const std::string unseen = run(5, 7);
  EXPECT_TRUE(says(unseen, "\nEach of values 0 to 1 has not changed yet, so its first change captures.\n"));
  for (const float plain : {6.f, 8.f}) run(plain, 7);
  std::string last;
  for (const float doubled : {9.f, 12.f}) last = run(8, doubled);
  EXPECT_TRUE(says(last, "\nValue 0 is found: "));
  EXPECT_TRUE(says(last, "Value 1 is derived ("));
  EXPECT_TRUE(says(last, "so each change captures: pass on what is computed from it, or make it a slot"));
}

TEST_F(ExplainTest, ADisabledCache) {
  Cache cache(unshared(0));
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  expect_sum(1);
  EXPECT_TRUE(says(explain(cache, key("k")), "The cache captures nothing"));
}

TEST_F(ExplainTest, ACacheWhoseRunsFail) {
  Cache cache, invalid({.max_executables = -1});
  EXPECT_FALSE(run_add(invalid, key("k")).ok());
  EXPECT_TRUE(says(explain(invalid, key("k")), "Every run fails: Options::max_executables is -1"));
  hostrt::fail_call("cudaStreamIsCapturing", 1, cudaErrorInvalidResourceHandle);
  EXPECT_FAILURE(kInvalidArgument, run_add(cache, key("k")));
  EXPECT_SUCCESS(cache.status()) << "another stream may do";
}

TEST_F(ExplainTest, TheRuleThatGaveAnExecutable) {
  Cache cache({.max_executables = 1});
  EXPECT_TRUE(run_add(cache, key("a")).ok());
  EXPECT_TRUE(says(explain(cache, key("a")), "of its own because there was room (rule 1)"));
  EXPECT_RUN(kUpdated, run_add(cache, key("b")));
  EXPECT_TRUE(says(explain(cache, key("b")), "in the place of the one used longest ago (rule 3)"));
  EXPECT_TRUE(says(explain(cache, key("b")), "the other keys of family 1"));
  EXPECT_TRUE(says(explain(cache, key("a")), "It has a template and no executable"));
  EXPECT_TRUE(says(explain(cache, key("a")), "a sibling uses it now"));
  EXPECT_RUN(kInstantiated, cache.run(key("c"), stream, [&](cudaStream_t s) {
    (void)add_one(s);
    return add_one(s);
  }));
  EXPECT_TRUE(says(explain(cache, key("c")), "in the place of the one used longest ago (rule 3)"));
  Cache unshared({.max_executables = 1, .share = Share::kNever});
  EXPECT_TRUE(run_add(unshared, key("a")).ok());
  EXPECT_RUN(kUpdated, run_add(unshared, key("b")));
  EXPECT_TRUE(says(explain(unshared, key("a")), "an update gave it to another key, for which there was no room"));
}

TEST_F(ExplainTest, AKeyLooksForSiblingsWhenThereIsNoRoom) {
  Cache cache({.max_executables = 2});
  EXPECT_TRUE(run_add(cache, key("a", 1)).ok());
  EXPECT_TRUE(run_add(cache, key("a", 2)).ok());
  EXPECT_TRUE(says(explain(cache, key("a", 1)), "types of nodes, and there is no room for an executable of its own."));
  Cache always({.share = Share::kAlways});
  EXPECT_TRUE(run_add(always, key("a", 1)).ok());
  EXPECT_TRUE(says(explain(always, key("a", 1)), "It has not looked for siblings."));
  EXPECT_EQ(explain(always, key("a", 1)).find("no room"), std::string::npos);
  EXPECT_TRUE(run_add(always, key("a", 2)).ok());
  EXPECT_TRUE(always.entries().at(0).looked_for_siblings);
  EXPECT_RUN(kUpdated, run_add(cache, key("a", 3)));
  EXPECT_TRUE(says(explain(cache, key("a", 3)), "It may share executables with the other keys of family 1."));
  for (const EntryInfo& entry : cache.entries()) EXPECT_EQ(entry.looked_for_siblings, entry.family != 0);
}

TEST_F(ExplainTest, NoRoom) {
  Cache cache(unshared(1));
  EXPECT_TRUE(run_add(cache, key("pinned")).ok());
  EXPECT_TRUE(cache.pin(key("pinned")));
  EXPECT_RUN(kEager, run_add(cache, key("k")));
  EXPECT_TRUE(says(explain(cache, key("k")), "no executable could be evicted for it: all were pinned or in use"));
  EXPECT_TRUE(says(explain(cache, key("k")), "Options::max_executables is 1"));
  EXPECT_TRUE(says(explain(cache, key("pinned")),
                   "It has an executable, of its own because there was room (rule 1), and is pinned."));
}

TEST_F(ExplainTest, CallsThatFail) {
  const auto text_after = [&](const char* function, cudaError_t error, int times, bool is_hit = false) {
    Cache cache;
    if (is_hit) {
      EXPECT_TRUE(run_add(cache, key("k")).ok());
    }
    hostrt::fail_call(function, 1, error, times);
    EXPECT_RUN(kEager, run_add(cache, key("k")));
    hostrt::clear_failures();
    return explain(cache, key("k"));
  };
  const std::string without_memory = text_after("cudaGraphInstantiate", cudaErrorMemoryAllocation, -1);
  EXPECT_TRUE(says(without_memory, "device memory ran out when its executable was made"));
  EXPECT_TRUE(says(without_memory, "It lost an executable the last time because of an error."));
  EXPECT_TRUE(says(without_memory, "Its last error: cudaGraphInstantiate: cudaErrorMemoryAllocation"));
  const std::string refused = text_after("cudaGraphInstantiate", cudaErrorUnknown, 1);
  EXPECT_TRUE(says(refused, "the runtime refused its graph, or a new value of one of its nodes"));
  EXPECT_TRUE(says(refused, "It lost a template the last time because of an error."));
  const std::string not_launched = text_after("cudaGraphLaunch", cudaErrorUnknown, 1, /*is_hit=*/true);
  EXPECT_TRUE(says(not_launched, "Its last direct run was direct because its launch failed."));
}

TEST_F(ExplainTest, MemoryThatFnHandsOut) {
  Cache cache;
  float* memory = nullptr;
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(cudaMallocAsync(reinterpret_cast<void**>(&memory), sizeof(float), on));
      return add_one(on);
    });
  };
  EXPECT_RUN(kEager, run());
  EXPECT_TRUE(says(explain(cache, key("k")),
                   "fn hands out memory of cudaMallocAsync: free it in fn, or allocate it before the run"));
  CUDA_OK(cudaFreeAsync(memory, stream));
}

TEST_F(ExplainTest, ALimitOfBytes) {
  Cache cache(unshared({.max_executables = 10, .max_device_bytes = 200'000}));
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_TRUE(run_add(cache, key("other")).ok());
  EXPECT_TRUE(says(explain(cache, key("k")), "Options::max_device_bytes is 200000"));
}

TEST_F(ExplainTest, StaleValues) {
  for (const OnStale reaction : {OnStale::kReport, OnStale::kForget}) {
    Cache cache({.verify_every = 1, .on_stale = reaction});
    float value = 1;
    const auto run = [&] { return cache.run(key("k"), stream, [&](cudaStream_t on) { return add_value(on, value); }); };
    EXPECT_TRUE(run().ok());
    value = 2;
    EXPECT_TRUE(run().ok());
    const std::string text = explain(cache, key("k"));
    EXPECT_TRUE(says(text, "Verify mode found: "));
    const bool forgotten = text.find("verify mode found it so (OnStale::kForget)") != std::string::npos;
    EXPECT_EQ(forgotten, reaction == OnStale::kForget);
  }
}

TEST_F(ExplainTest, ARefusedUpdate) {
  Cache cache(renting());
  const auto run = [&](int byte) {  // only an update can change the byte of a set
    return cache.run(key("k", byte), stream,
                     [&](cudaStream_t on) { return cudaMemsetAsync(data.get(), byte, data.bytes(), on); });
  };
  EXPECT_RUN(kInstantiated, run(1));
  EXPECT_EQ(explain(cache, key("k", 1)).find("refused"), std::string::npos);
  hostrt::fail_call("cudaGraphExecUpdate", 1, cudaErrorGraphExecUpdateFailure);
  EXPECT_RUN(kInstantiated, run(2));
  EXPECT_TRUE(says(explain(cache, key("k", 2)),
                   "The runtime refused to update an executable to its graph: the runtime does not support"));
}

TEST_F(ExplainTest, StrayWork) {
  Cache cache({.diagnose = true});
  Stream other;
  EXPECT_SUCCESS(cache.run(key("k"), stream, [&](cudaStream_t on) {
    (void)add_one(other);
    return add_one(on);
  }));
  EXPECT_TRUE(says(explain(cache, key("k")), "Not in its graph: kernel graphcache::test::add was launched"));
}

}  // namespace
}  // namespace graphcache::test
