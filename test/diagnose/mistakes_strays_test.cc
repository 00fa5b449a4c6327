// Work that `fn` enqueues and the graph misses, as listed by the watcher of CUDA calls, and how to enable a watcher
// (Options::diagnose).
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "diagnose_support.h"
#include "graphcache/observe.h"
#include "listeners.h"

namespace graphcache::test {
namespace {

using MistakesStraysTest = DiagnoseTest;

// ---- Work that the graph misses -------------------------------------------------------------------------------------

TEST_F(MistakesStraysTest, WorkOutsideOfTheCaptureIsListed) {
  Stream other;
  DeviceBuffer<float> aside(kSize), cleared(kSize, 5), source(kSize, 9), copied(kSize), at_once(kSize);
  Cache cache(diagnosing());
  for (int run = 1; run <= 3; ++run) {
    EXPECT_SUCCESS(cache.run(key("k"), stream, [&](cudaStream_t on) {
      CUDA_OK(add_one(on));
      for (int i = 0; i < 40; ++i) add_aside(aside.get(), nullptr);
      clear_aside(cleared.get(), other);
      copy_aside(copied.get(), source.get(), other);
      EXPECT_TRUE(copy_at_once(at_once.get(), 4));
      CUDA_OK(add_one(on));
    }));
    expect_sum(static_cast<float>(2 * run));
  }
  EXPECT_EQ(aside.read(), std::vector<float>(kSize, 40)) << "in the run that captured";
  EXPECT_EQ(cleared.first(), 0);
  EXPECT_EQ(copied.first(), 9);
  EXPECT_EQ(at_once.first(), 4);
  std::vector<std::string> strays;
  const EntryInfo entry = cache.entries().at(0);
  for (const Counted& stray : entry.stray_work) strays.push_back(stray.text);
  ASSERT_EQ(strays.size(), 4u) << to_string(cache.entries()[0]);
  EXPECT_EQ(strays[0].find("kernel "), 0u) << strays[0];
  EXPECT_LT(strays[0].find("add"), strays[0].find(" was launched by ")) << strays[0];
  EXPECT_TRUE(contains(strays[0], " on stream 0 (the legacy stream)")) << strays[0];
  EXPECT_EQ(strays[1].find("cudaMemsetAsync was called by graphcache::test::clear_aside("), 0u) << strays[1];
  EXPECT_TRUE(contains(strays[1], ", which is not part of the capture")) << strays[1];
  EXPECT_EQ(strays[2].find("cudaMemcpyAsync was called by graphcache::test::copy_aside("), 0u) << strays[2];
  EXPECT_EQ(strays[3].find("cudaMemcpy was called by graphcache::test::copy_at_once("), 0u) << strays[3];
  EXPECT_TRUE(contains(to_string(cache.entries()[0]), strays[2]));
  ASSERT_EQ(lines.size(), 4u);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_TRUE(
        has(lines[i], {strays[i] + ": it runs now, and no replay repeats it: enqueue it on rec.stream() or on a stream "
                                   "forked from it, by an asynchronous call"}));
  }
}

// A hit would leave it out. The verified hit does it, so its result is right and hides the mistake.
TEST_F(MistakesStraysTest, VerifyModeFindsACopyThatTheGraphMisses) {
  Cache cache(diagnosing({.verify_every = 1, .on_stale = OnStale::kReturnError}));
  DeviceBuffer<float> target(kSize);
  const auto run = [&] {
    return cache.run(key("k"), stream, [&](cudaStream_t on) {
      EXPECT_TRUE(copy_at_once(target.get(), 4));
      return add_one(on);
    });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_FAILURE(kFailedPrecondition, run());
  EXPECT_TRUE(contains(cache.entries().at(0).stale.at(0).text,
                       "fn enqueues work that no replay repeats: cudaMemcpy was called by "));
}

TEST_F(MistakesStraysTest, AKeyThatIsCapturedAgainIsLoggedOnce) {
  Cache cache(diagnosing(without_templates(1)));
  DeviceBuffer<float> aside(kSize);
  for (int run = 1; run <= 3; ++run) {
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) {
      add_aside(aside.get(), nullptr);
      if (run > 1) clear_aside(aside.get(), nullptr);
      return add_one(on);
    }));
    EXPECT_RUN(kInstantiated, run_add(cache, key("other")));
  }
  expect_sum(6);
  EXPECT_EQ(aside.first(), 0);
  EXPECT_EQ(lines.size(), 2u) << "one of the launch, one of the set";
  EXPECT_EQ(cache.entries()[1].stray_work.size(), 2u);
}

TEST_F(MistakesStraysTest, ForkedWorkAndWorkOfOthersAreNotListed) {
  Stream side, of_thread;
  DeviceBuffer<float> aside(kSize), of_others(kSize);
  Cache cache(diagnosing());
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) {
    let_follow(side, on);
    add_aside(aside.get(), side);
    let_follow(on, side);
    std::thread([&] { add_aside(of_others.get(), of_thread); }).join();
    return add_one(on);
  }));
  EXPECT_TRUE(cache.entries()[0].stray_work.empty()) << cache.entries()[0].stray_work[0].text;
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(aside.read(), std::vector<float>(kSize, 1));
  EXPECT_EQ(of_others.read(), std::vector<float>(kSize, 1));
}

TEST_F(MistakesStraysTest, StraysOfAnEmptyCaptureAreListedAndInItsError) {
  Stream other;
  const auto strays = std::make_shared<StrayCounter>();
  Options options = diagnosing();
  options.listeners.push_back(strays);
  Cache cache(options);
  for (int run = 1; run <= 2; ++run) {
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](cudaStream_t) { add_aside(data.get(), other); }));
    expect_sum(static_cast<float>(run));
  }
  const EntryInfo entry = cache.entries()[0];
  EXPECT_TRUE(has(entry.error, {"fn enqueued nothing on its stream", " was launched by "}));
  ASSERT_EQ(entry.stray_work.size(), 1u);
  EXPECT_TRUE(contains(entry.stray_work[0].text, " was launched by "));
  EXPECT_EQ(strays->counts().size(), 1u);
}

// ---- How it is enabled ----------------------------------------------------------------------------------------------

TEST_F(MistakesStraysTest, NothingIsReportedByDefault) {
  DeviceBuffer<float> aside(kSize);
  Options options = diagnosing();
  options.diagnose = false;
  const std::string error = error_with(options, stream, [&](Recorder& rec) {
    add_aside(aside.get(), nullptr);
    wait_until_done(rec.stream());
  });
  EXPECT_FALSE(contains(error, "wait_until_done")) << error;
  EXPECT_TRUE(contains(error, "(calls 1 and 2 of the recorder)")) << error;
  Cache cache(options);
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, [&](cudaStream_t on) {
    add_aside(aside.get(), nullptr);
    return add_one(on);
  }));
  EXPECT_TRUE(cache.entries()[0].stray_work.empty());
  EXPECT_EQ(aside.read(), std::vector<float>(kSize, 3)) << "twice in the run that broke, and once more";
}

TEST_F(MistakesStraysTest, TheEnvironmentMayAskForIt) {
  Options options = diagnosing();
  options.diagnose = false;
  const auto is_diagnosed = [&] {
    return contains(error_with(options, stream, [&](Recorder& rec) { wait_until_done(rec.stream()); }),
                    "wait_until_done(");
  };
  for (const char* value : {"1", "0", "", "Off", "no", "false"}) {
    ASSERT_EQ(setenv("GRAPHCACHE_DIAGNOSE", value, 1), 0);
    EXPECT_EQ(is_diagnosed(), *value == '1') << value;
  }
  ASSERT_EQ(unsetenv("GRAPHCACHE_DIAGNOSE"), 0);
}

using MistakesStraysTestOnGpu = MistakesStraysTest;

TEST_F(MistakesStraysTestOnGpu, ACacheWorksWithoutTheComponent) {
  ASSERT_EQ(setenv("GRAPHCACHE_DIAGNOSE", "/nowhere/libgraphcache_diagnose.so", 1), 0);
  const auto asking = std::make_shared<Functions>();
  Options options = diagnosing();
  options.listeners.push_back(asking);
  Cache cache(options);
  asking->on_message = [&](std::string_view) { EXPECT_SUCCESS(cache.status()); };
  EXPECT_RUN(kInstantiated, run_add(cache, key("k")));  // It is looked for in the first run.
  ASSERT_EQ(unsetenv("GRAPHCACHE_DIAGNOSE"), 0);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(has(lines[0], {"captures are not diagnosed: ", "/nowhere/libgraphcache_diagnose.so"}));
  EXPECT_RUN(kReplayed, run_add(cache, key("k")));
  expect_sum(2);
}

}  // namespace
}  // namespace graphcache::test
