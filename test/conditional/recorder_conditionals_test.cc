// Conditional nodes: the work of their bodies, captured and direct, and the lifetime of their graphs.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "conditional/conditional.h"
#include "conditionals_support.h"
#include "cuda/compat.h"

namespace graphcache::test {
namespace {

// With an older CUDA such a key runs directly.
#define NEEDS_ALL_KINDS() \
  if (CUDART_VERSION < 12080) GTEST_SKIP() << "else and switch are nodes since CUDA 12.8"

class RecorderConditionalsTest : public ConditionalsTest {
 protected:
  absl::StatusOr<Outcome> run_if(Cache& in, cudaStream_t on, const char* label = "if") {
    return in.run(key(label), on, [&](Recorder& rec) {
      ++calls;
      step(rec, 3, 1);
      if_node(rec, condition.get(), [&](Body& body) { step(body, 5, 2); });
      step(rec, 7, 3);
    });
  }
  static int after_if(int value, unsigned of_condition) {
    value = blended(value, 3, 1);
    if (of_condition != 0) value = blended(value, 5, 2);
    return blended(value, 7, 3);
  }

  // A loop. In each round another node makes a decision between two steps, and a last one does as well.
  absl::StatusOr<Outcome> run_nested(Cache& in, cudaStream_t on) {
    return in.run(key("nested"), on, [&](Recorder& rec) {
      ++calls;
      while_node(rec, condition.get(), [&](Body& body) {
        step(body, 3, 1);
        if_node(
            body, other.get(),
            [&](Body& inner) {
              step(inner, 5, 2);
              switch_node(inner, condition.get(), 3,
                          [&](Body& innermost, unsigned i) { step(innermost, 11 + static_cast<int>(i), 4); });
              step(inner, 13, 5);
            },
            [&](Body& inner) { step(inner, 17, 6); });
        step(body, 19, 7);
        if_node(body, other.get(), [&](Body& inner) { step(inner, 23, 8); });
        body.launch(count_down, {1, 1}, condition.get());
      });
      step(rec, 29, 9);
    });
  }
  static int after_nested(int value, unsigned rounds, unsigned of_other) {
    for (; rounds != 0; --rounds) {
      value = blended(value, 3, 1);
      if (of_other != 0) {
        value = blended(value, 5, 2);
        if (rounds < 3) value = blended(value, 11 + static_cast<int>(rounds), 4);
        value = blended(value, 13, 5);
      } else {
        value = blended(value, 17, 6);
      }
      value = blended(value, 19, 7);
      if (of_other != 0) value = blended(value, 23, 8);
    }
    return blended(value, 29, 9);
  }

  // The number after so many rounds of number = a * number + b.
  static int repeated(int value, unsigned rounds, int a, int b) {
    for (; rounds != 0; --rounds) value = blended(value, a, b);
    return value;
  }

  // Runs `fn` with each of the values as the condition, by a graph and directly. The number is `expected(value)` then.
  template <class Fn, class Expected>
  void expect_in_both(const std::vector<unsigned>& values, const Fn& fn, const Expected& expected) {
    Outcome wanted = Outcome::kInstantiated;
    for (Cache* const in : {&cache, &uncached}) {
      for (const unsigned value : values) {
        SCOPED_TRACE((in == &cache ? "captured, " : "direct, ") + std::to_string(value));
        begin(2, value);
        ASSERT_TRUE(did(in == &cache ? wanted : Outcome::kEager, in->run(key("both"), stream, fn)));
        wanted = Outcome::kReplayed;
        EXPECT_EQ(number.first(), expected(value));
      }
    }
    EXPECT_EQ(cache.stats().captures, 1u);
  }

  Cache uncached{{.max_executables = 0}};
  int calls = 0;
};

TEST_F(RecorderConditionalsTest, AnIfFollowsItsConditionAtEachHit) {
  for (const cudaStream_t on : {static_cast<cudaStream_t>(stream), cudaStreamLegacy}) {
    Cache in;
    calls = 0;
    bool first = true;
    for (const unsigned value : {0u, 1u, 7u, 0u, ~0u}) {
      SCOPED_TRACE((on == stream ? "a stream, " : "the legacy stream, ") + std::to_string(value));
      begin(2, value);
      EXPECT_TRUE(did(first ? Outcome::kInstantiated : Outcome::kReplayed, run_if(in, on)));
      first = false;
      EXPECT_EQ(number.first(), after_if(2, value));
    }
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(in.stats().captures, 1u);
  }
}

TEST_F(RecorderConditionalsTest, TheSecondBodyOfAnIfIsItsElse) {
  NEEDS_ALL_KINDS();
  const auto fn = [&](Recorder& rec) {
    if_node(
        rec, condition.get(), [&](Body& body) { step(body, 5, 2); }, [&](Body& body) { step(body, 7, 3); });
  };
  expect_in_both({0, 1, 0, 9}, fn, [](unsigned value) { return value != 0 ? blended(2, 5, 2) : blended(2, 7, 3); });
}

TEST_F(RecorderConditionalsTest, AWhileRepeatsUntilItsBodyEndsIt) {
  const auto fn = [&](Recorder& rec) {
    while_node(rec, condition.get(), [&](Body& body) {
      step(body, 3, 1);
      body.launch(count_down, {1, 1}, condition.get());
    });
    step(rec, 5, 2);
  };
  expect_in_both({10, 0, 1, 33, 0}, fn, [&](unsigned rounds) {
    EXPECT_EQ(condition.first(), 0u);
    return blended(repeated(2, rounds, 3, 1), 5, 2);
  });
}

TEST_F(RecorderConditionalsTest, ASwitchRunsTheBodyOfThatNumberOrNone) {
  NEEDS_ALL_KINDS();
  const auto fn = [&](Recorder& rec) {
    switch_node(rec, condition.get(), 3, [&](Body& body, unsigned i) { step(body, 3 + static_cast<int>(i), 1); });
    step(rec, 5, 2);
  };
  expect_in_both({0, 1, 2, 3, 99, ~0u, 1}, fn, [](unsigned index) {
    return blended(index < 3 ? blended(2, 3 + static_cast<int>(index), 1) : 2, 5, 2);
  });
}

TEST_F(RecorderConditionalsTest, ASwitchWithoutBodiesDoesNothing) {
  const auto fn = [&](Recorder& rec) {
    switch_node(rec, condition.get(), 0, [&](Body& body, unsigned) { step(body, 3, 1); });
    step(rec, 5, 2);
  };
  expect_in_both({0}, fn, [](unsigned) { return blended(2, 5, 2); });
}

TEST_F(RecorderConditionalsTest, NodesInBodiesWorkInEveryCaptureModeAndADirectRunDoesTheSame) {
  NEEDS_ALL_KINDS();
  Cache global({.capture_mode = cudaStreamCaptureModeGlobal}), relaxed({.capture_mode = cudaStreamCaptureModeRelaxed});
  const std::pair<const char*, Cache*> caches[] = {
      {"thread-local", &cache}, {"global", &global}, {"relaxed", &relaxed}, {"direct", &uncached}};
  for (const auto& [name, in] : caches) {
    for (const unsigned rounds : {4u, 0u, 1u, 2u}) {
      for (const unsigned inner : {0u, 1u}) {
        SCOPED_TRACE(name + (": " + std::to_string(rounds)) + ", " + std::to_string(inner));
        begin(2, rounds, inner);
        ASSERT_SUCCESS(run_nested(*in, stream));
        EXPECT_EQ(number.first(), after_nested(2, rounds, inner));
      }
    }
    EXPECT_EQ(in->stats().captures, in == &uncached ? 0u : 1u) << name;
    EXPECT_EQ(in->stats().outcome(Outcome::kEager), in == &uncached ? 8u : 0u) << name;
  }
  // The nodes and the memory of all bodies count.
  EXPECT_GT(cache.stats().estimated_device_bytes, std::size_t{4} << 17);
  EXPECT_GE(cache.entries().front().nodes, 17u);
}

TEST_F(RecorderConditionalsTest, TheConditionMayBeASlot) {
  NEEDS_ALL_KINDS();
  DeviceBuffer<unsigned> places(std::vector<unsigned>{3, 0, 2, 1});
  for (Cache* const in : {&cache, &uncached}) {
    for (const int at : {0, 1, 2, 3, 0}) {
      const std::vector<unsigned> before{3, 0, 2, 1};
      places.write(before);
      begin(2);
      ASSERT_SUCCESS(
          in->run(key("slots"), stream, params(places.get() + at), [&](Recorder& rec, Slot<unsigned*> place) {
            if_node(rec, place, [&](Body& body) { step(body, 3, 1); });
            switch_node(rec, place, 3, [&](Body& body, unsigned i) { step(body, 5 + static_cast<int>(i), 2); });
            while_node(rec, place, [&](Body& body) {
              step(body, 7, 3);
              // The body cannot know which one it is.
              for (int i = 0; i < places.size(); ++i) body.launch(count_down, {1, 1}, places.get() + i);
            });
          }));
      int expected = 2;
      const unsigned value = before[static_cast<std::size_t>(at)];
      if (value != 0) expected = blended(expected, 3, 1);
      if (value < 3) expected = blended(expected, 5 + static_cast<int>(value), 2);
      EXPECT_EQ(number.first(), repeated(expected, value, 7, 3)) << at;
    }
  }
  EXPECT_EQ(cache.stats().captures, 1u);
}

TEST_F(RecorderConditionalsTest, SlotsBesideANodeFollowEachRun) {
  DeviceBuffer<int> results(8), written(1);
  bool first = true;
  for (const int value : {5, -6, 7}) {
    for (const unsigned of_condition : {0u, 1u}) {
      begin(2, of_condition);
      const absl::StatusOr<Outcome> done =
          cache.run(key("beside"), stream, params(value, results.get() + (value & 7)),
                    [&](Recorder& rec, Slot<int> v, Slot<int*> result) {
                      rec.launch(blend, {1, 1}, number.get(), 1, 3, v);
                      rec.write(written.get(), v);
                      if_node(rec, condition.get(), [&](Body& body) {
                        body.launch(blend_in, {1, 1}, number.get(), written.get(), 1, 5);
                        step(body, 7, 1);
                      });
                      rec.launch(blend, {1, 1}, number.get(), 1, 11, v);
                      rec.memcpy(result, number.get(), sizeof(int), cudaMemcpyDeviceToDevice);
                    });
      EXPECT_TRUE(did(first                ? Outcome::kInstantiated
                      : of_condition == 0u ? Outcome::kPatched
                                           : Outcome::kReplayed,
                      done));
      first = false;
      int expected = blended(2, 3, value);
      if (of_condition != 0) expected = blended(blended(expected, 5, value), 7, 1);
      expected = blended(expected, 11, value);
      EXPECT_EQ(results.read()[static_cast<std::size_t>(value & 7)], expected) << value << ", " << of_condition;
    }
  }
}

// With this many slots a graph without conditional nodes would be updated by the device, which needs a clone.
TEST_F(RecorderConditionalsTest, ManySlotsBesideANodeAreSetByTheHost) {
  const auto add_by_hand = [](cudaStream_t on) {
    CaptureInfo info;
    CUDA_OK(capture_info(on, &info));
    cudaGraphNodeParams node = {};
    node.type = cudaGraphNodeTypeConditional;
    node.conditional.type = cudaGraphCondTypeIf;
    node.conditional.size = 1;
    constexpr unsigned kFlags = cudaGraphCondAssignDefault;
    CUDA_OK(cudaGraphConditionalHandleCreate(&node.conditional.handle, info.graph, 0, kFlags));
    cudaGraphNode_t added = nullptr;
    CUDA_OK(add_node(&added, info.graph, info.dependencies, info.dependency_count, &node));
    CUDA_OK(set_capture_dependency(on, added));
  };
  for (const bool by_hand : {false, true}) {
    Cache many;
    for (const int value : {1, 2, 3}) {
      begin(2, 1);
      EXPECT_TRUE(did(value == 1 ? Outcome::kInstantiated : Outcome::kPatched,
                      many.run(key("many"), stream, params(value), [&](Recorder& rec, Slot<int> v) {
                        for (int i = 0; i < 40; ++i) rec.launch(blend, {1, 1}, number.get(), 1, 3, v);
                        if (by_hand) return add_by_hand(rec.stream());
                        if_node(rec, condition.get(), [&](Body& body) { step(body, 5, 2); });
                      })));
      const int expected = repeated(2, 40, 3, value);
      EXPECT_EQ(number.first(), by_hand ? expected : blended(expected, 5, 2));
    }
    EXPECT_EQ(many.stats().refused_device_updates, 0u) << by_hand;
    EXPECT_EQ(many.stats().patched_nodes, 80u);
  }
}

TEST_F(RecorderConditionalsTest, ABodyMayCopyAndSet) {
  DeviceBuffer<int> a(std::vector<int>{3, 4, 5}), b(3);
  const auto fn = [&](Recorder& rec) {
    if_node(rec, condition.get(), [&](Body& body) {
      body.memcpy(b.get(), a.get(), b.bytes(), cudaMemcpyDeviceToDevice);
      body.memset(a.get() + 1, 1, sizeof(int));
      CUDA_OK(cudaMemcpyAsync(a.get() + 2, number.get(), sizeof(int), cudaMemcpyDeviceToDevice, body.stream()));
    });
  };
  expect_in_both({1, 0}, fn, [&](unsigned value) {
    EXPECT_EQ(b.read(), value != 0 ? std::vector<int>({3, 4, 5}) : std::vector<int>({0, 0, 0}));
    EXPECT_EQ(a.read(), value != 0 ? std::vector<int>({3, 0x01010101, 2}) : std::vector<int>({3, 4, 5}));
    a.write({3, 4, 5});
    b.write({0, 0, 0});
    return 2;
  });
}

TEST_F(RecorderConditionalsTest, ABodyMayForkAndJoin) {
  Stream side;
  DeviceBuffer<int> beside(1, 1);
  const auto fn = [&](Recorder& rec) {
    while_node(rec, condition.get(), [&](Body& body) {
      step(body, 3, 1);
      let_follow(side, body.stream());
      body.on(side).launch(blend, {1, 1}, beside.get(), 1, 5, 2);
      body.launch(count_down, {1, 1}, condition.get());
      let_follow(body.stream(), side);
      body.launch(blend_in, {1, 1}, number.get(), beside.get(), 1, 1);
    });
  };
  expect_in_both({3, 0}, fn, [&](unsigned rounds) {
    int expected = 2, expected_beside = 1;
    for (unsigned i = 0; i < rounds; ++i) {
      expected_beside = blended(expected_beside, 5, 2);
      expected = blended(expected, 3, 1) + expected_beside;
    }
    EXPECT_EQ(beside.first(), expected_beside);
    beside.write({1});
    return expected;
  });
}

TEST_F(RecorderConditionalsTest, ABodyMayBeEmpty) {
  NEEDS_ALL_KINDS();
  const auto fn = [&](Recorder& rec) {
    if_node(
        rec, condition.get(), [](Body&) {}, [&](Body& body) { step(body, 3, 1); });
    if_node(rec, condition.get(), [](Body&) {});
    step(rec, 5, 2);
  };
  expect_in_both({1, 0}, fn, [](unsigned value) { return blended(value != 0 ? 2 : blended(2, 3, 1), 5, 2); });
}

// The work that another key's run enqueues in a body becomes part of the body.
TEST_F(RecorderConditionalsTest, ARunInABodyIsInlined) {
  int inlined = 0;
  const auto fn = [&](Recorder& rec) {
    while_node(rec, condition.get(), [&](Body& body) {
      step(body, 3, 1);
      EXPECT_RUN(kInlined, cache.run(key("inner"), body.stream(), [&](Recorder& inner) {
        ++inlined;
        step(inner, 5, 2);
        if_node(inner, other.get(), [&](Body& innermost) {
          EXPECT_RUN(kInlined,
                     cache.run(key("innermost"), innermost.stream(), [&](Recorder& last) { step(last, 7, 3); }));
        });
        step(inner, 11, 4);
      }));
      body.launch(count_down, {1, 1}, condition.get());
    });
    EXPECT_RUN(kInlined, run_if(cache, rec.stream()));
  };
  for (const unsigned rounds : {2u, 3u, 0u}) {
    begin(2, rounds, 1);
    ASSERT_TRUE(cache.run(key("outer"), stream, fn).ok());
    int expected = 2;
    for (unsigned i = 0; i < rounds; ++i) {
      expected = blended(blended(blended(blended(expected, 3, 1), 5, 2), 7, 3), 11, 4);
    }
    EXPECT_EQ(number.first(), after_if(expected, 0)) << rounds;
  }
  EXPECT_EQ(inlined, 1);
  EXPECT_EQ(cache.stats().captures, 1u);
}

TEST_F(RecorderConditionalsTest, AnExecutableThatWasEvictedIsInstantiatedAgain) {
  Cache small({.max_executables = 1});
  for (int i = 0; i < 4; ++i) {
    for (const char* const label : {"a", "b"}) {
      begin(2, static_cast<unsigned>(i % 2));
      EXPECT_TRUE(did(i == 0 ? Outcome::kInstantiated : Outcome::kRestored, run_if(small, stream, label)));
      EXPECT_EQ(number.first(), after_if(2, static_cast<unsigned>(i % 2)));
    }
  }
  EXPECT_EQ(small.stats().captures, 2u);
  EXPECT_EQ(small.stats().updates, 0u);
  // Without waiting between the runs.
  begin(2, 1);
  int expected = 2;
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(run_if(small, stream, i % 2 == 0 ? "a" : "b").ok());
    expected = after_if(expected, 1);
  }
  EXPECT_EQ(number.first(), expected);
}

TEST_F(RecorderConditionalsTest, ALoopWhoseConditionIsASlotIsInstantiatedAgainWhenEvicted) {
  Cache small({.max_executables = 1});
  const auto fn = [&](Recorder& rec, Slot<unsigned*> at) {
    while_node(rec, at, [&](Body& body) {
      step(body, 3, 1);
      body.launch(count_down, {1, 1}, condition.get());
      body.launch(count_down, {1, 1}, other.get());
    });
  };
  for (int i = 0; i < 3; ++i) {
    begin(2, 2, 3);
    DeviceBuffer<unsigned>& place = i % 2 == 0 ? condition : other;
    ASSERT_TRUE(small.run(key("loop"), stream, params(place.get()), fn).ok());
    EXPECT_EQ(number.first(), repeated(2, i % 2 == 0 ? 2 : 3, 3, 1));
    ASSERT_TRUE(run_if(small, stream, "other").ok());
  }
  EXPECT_EQ(small.stats().captures, 2u);
  EXPECT_EQ(small.stats().outcome(Outcome::kRestored), 4u);
}

TEST_F(RecorderConditionalsTest, ValuesAreFoundOutsideOfBodies) {
  DeviceBuffer<float> outside(std::vector<float>{0}), inside(std::vector<float>{0});
  const auto run = [&](float value, bool in_body) {
    return cache.run(key("values", in_body), stream, values(value), [&, in_body](Recorder& rec, float v) {
      rec.launch(fill, {1, 1}, outside.get(), 1, v);
      if_node(rec, condition.get(), [&](Body& body) {
        body.launch(fill, {1, 1}, inside.get(), 1, in_body ? v : 7.0f);
        if_node(body, other.get(), [&](Body& inner) { inner.launch(add, {1, 1}, inside.get(), 1, 2.0f); });
      });
    });
  };
  for (const bool in_body : {false, true}) {
    for (int i = 0; i < 8; ++i) {
      const float value = 3.0f + static_cast<float>(i);
      begin(1, i % 2 == 0, i % 4 == 0);
      inside.write({0});
      const Outcome wanted = i < 3 || in_body ? Outcome::kInstantiated : Outcome::kPatched;
      EXPECT_TRUE(did(wanted, run(value, in_body))) << in_body << i;
      EXPECT_EQ(outside.first(), value);
      EXPECT_EQ(inside.first(), i % 2 != 0 ? 0 : (in_body ? value : 7.0f) + (i % 4 == 0 ? 2 : 0)) << i;
    }
    EXPECT_EQ(cache.entries().at(0).values.at(0).state, in_body ? ValueState::kDerived : ValueState::kFound);
  }
}

TEST_F(RecorderConditionalsTest, AWarmedKeyIsReplayed) {
  const auto fn = [&](Recorder& rec) { if_node(rec, condition.get(), [&](Body& body) { step(body, 5, 2); }); };
  ASSERT_TRUE(cache.warm(key("warm"), stream, fn).ok());
  begin(2, 1);
  EXPECT_RUN(kReplayed, cache.run(key("warm"), stream, fn));
  EXPECT_EQ(number.first(), blended(2, 5, 2));
}

TEST_F(RecorderConditionalsTest, TwoStreamsRunTheirKeys) {
  Stream second;
  DeviceBuffer<int> numbers(std::vector<int>{1, 1});
  DeviceBuffer<unsigned> conditions(std::vector<unsigned>{0, 0});
  const auto run = [&](int i, cudaStream_t on) {
    return cache.run(key("streams", i), on, [&](Recorder& rec) {
      rec.launch(store, {1, 1}, conditions.get() + i, 5u);
      while_node(rec, conditions.get() + i, [&](Body& body) {
        body.launch(blend, {1, 1}, numbers.get() + i, 1, 3, 1 + i);
        body.launch(count_down, {1, 1}, conditions.get() + i);
      });
    });
  };
  std::vector<int> expected{1, 1};
  for (int turn = 0; turn < 10; ++turn) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(run(i, i == 0 ? stream : second).ok());
      int& value = expected[static_cast<std::size_t>(i)];
      value = repeated(value, 5, 3, 1 + i);
    }
  }
  EXPECT_EQ(numbers.read(), expected);
}

}  // namespace
}  // namespace graphcache::test
