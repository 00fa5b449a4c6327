// Values that the cache finds in the graph by itself, on either runtime: what is found, what is not, and that the
// result is right in both cases.
#include "graphcache/values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/compat.h"
#include "recorder_support.h"
#include "size.h"
#include "values_kernels.h"
#include "values_support.h"

namespace graphcache::test {
namespace {

// kernel<<<kGrid, kBlock, 0, stream>>>() with arguments whose padding is passed on as it is.
template <class... P>
cudaError_t launch_at(void (*kernel)(P...), cudaStream_t stream, std::type_identity_t<P>*... arguments) {
  void* pointers[] = {arguments...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), kGrid, kBlock, pointers, 0, stream);
}

// A structure whose padding has this byte.
Scaling scaling(float factor, const float* in, float plus, unsigned char padding = 0) {
  Scaling by;
  std::memset(static_cast<void*>(&by), padding, sizeof by);
  by.factor = factor;
  by.in = in;
  by.plus = plus;
  return by;
}

// Calls f so many bytes deeper in the stack.
template <class F>
[[gnu::noinline]] auto deeper(std::size_t bytes, F&& f) {
  void* const room = __builtin_alloca(bytes + 1);
  auto result = f();
  asm volatile("" : : "r"(room) : "memory");
  return result;
}

// Adds a set to the capture of a stream that has no work yet.
cudaError_t add_set(cudaStream_t on, const cudaMemsetParams& set) {
  CaptureInfo info;
  CUDA_OK(capture_info(on, &info));
  cudaGraphNode_t node = nullptr;
  return cudaGraphAddMemsetNode(&node, info.graph, nullptr, 0, &set);
}

class ValuesFoundTest : public ValuesTest {
 protected:
  using Fn = std::function<cudaError_t(cudaStream_t, float)>;
  // Run i has found what it could, and the data is the first part times the value, plus 1.
  void expect_scaled_plus_one(int i, const absl::StatusOr<Outcome>& outcome) {
    EXPECT_TRUE(learned(i, outcome));
    std::vector<float> wanted = read(part(0));
    for (float& element : wanted) element = number(i) * element + 1;
    EXPECT_EQ(data.read(), wanted);
  }

  enum class Found { kYes, kAndHasTheResult, kNo };
  // Runs fn with value_of(i). Then element e of the result, which is in the data or at the value, is wanted(i, e).
  template <class Wanted, class ValueOf, class Fn>
  void expect_way(const char* name, Found found, const Wanted& wanted, const ValueOf& value_of, const Fn& fn) {
    SCOPED_TRACE(name);
    Cache cache;
    for (int i = 0; i < 6; ++i) {
      SCOPED_TRACE(i);
      const auto value = value_of(i);
      const auto run = [&] { return cache.run(key("k"), stream, values(value), fn); };
      const absl::StatusOr<Outcome> outcome = run();
      if (found != Found::kNo) {
        EXPECT_TRUE(learned(i, outcome));
      } else {
        EXPECT_TRUE(did(i == 0 ? Outcome::kInstantiated : Outcome::kUpdated, outcome));
      }
      const float* result = data.get();
      if constexpr (std::is_pointer_v<decltype(value_of(i))>) {
        if (found == Found::kAndHasTheResult) result = static_cast<const float*>(value);
      }
      EXPECT_EQ(read(result), elements([&](int e) { return wanted(i, e); }));
      EXPECT_RUN(kReplayed, run());
    }
    EXPECT_EQ(states(cache), found != Found::kNo ? "found" : "derived");
    if (found != Found::kNo) {
      EXPECT_EQ(cache.stats().value_captures, 2u);
    } else {
      EXPECT_GE(cache.stats().value_captures, 5u);
    }
    EXPECT_EQ(cache.entries().size(), 1u);
  }
};

// ---- What is found --------------------------------------------------------------------------------------------------

TEST_F(ValuesFoundTest, AValueIsFoundByTwoChanges) {
  Cache cache;
  const std::string wanted_states[] = {"unseen", "seen", "found", "found", "found"};
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    const absl::StatusOr<Outcome> outcome = run_fill(cache, number(i));
    // The policy chooses another executable once the value is found.
    EXPECT_TRUE(i == 1   ? did(Outcome::kUpdated, outcome)
                : i == 2 ? did(Outcome::kInstantiated, outcome)
                         : learned(i, outcome));
    expect_data(number(i));
    EXPECT_EQ(states(cache), wanted_states[i]);
    EXPECT_RUN(kReplayed, run_fill(cache, number(i)));
    expect_data(number(i));
    EXPECT_EQ(cache.entries().at(0).template_lost, i == 0 ? Loss::kNone : Loss::kValues);
  }
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(places(cache, 0).rfind("argument 2 of node 0 (kernel graphcache::test::fill", 0), 0u) << places(cache, 0);
  const Stats stats = cache.stats();
  EXPECT_EQ(stats.value_captures, 2u);
  EXPECT_EQ(stats.captures, 3u);
  EXPECT_EQ(stats.forgotten, 2u);
  EXPECT_EQ(stats.live_templates, 1u);
  EXPECT_EQ(stats.live_executables, 1u);
  EXPECT_EQ(stats.patched_nodes, 2u);
  EXPECT_EQ(cache.entries().size(), 1u);
}

TEST_F(ValuesFoundTest, EachWayToPassAValue) {
  constexpr std::size_t kBytes = kSize * sizeof(float);
  using enum Found;
  const auto half = [](int i) { return __float2half(number(i)); };
  const auto pointer = [&](int i) { return static_cast<const float*>(part(i)); };
  const auto is_number = [](int i, int) { return number(i); };
  const auto is_copy = [&](int i, int e) { return content(part(i)) + static_cast<float>(e); };

  expect_way("a float", kYes, is_number, number, [&](cudaStream_t on, float v) { return fill_data(on, v); });
  expect_way("a float, by the recorder", kYes, is_number, number, [&](Recorder& rec, float v) {
    rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, v);
  });
  const auto is_twice = [](int i, int) { return 2 * number(i); };
  expect_way("a float in two nodes", kYes, is_twice, number, [&](cudaStream_t on, float v) {
    CUDA_OK(fill_data(on, v));
    return add_to_data(on, v);
  });
  const auto is_scaled = [&](int i, int e) { return number(i) * is_copy(1, e) + number(i); };
  expect_way("a float twice in a structure", kYes, is_scaled, number, [&](cudaStream_t on, float v) {
    float* out = data.get();
    int n = kSize;
    Scaling by = scaling(v, part(1), v);
    return launch_at(scale_by, on, &out, &n, &by);
  });
  const auto precise = [](int i) { return static_cast<double>(number(i)) + 1e-12; };
  expect_way("a double as a float", kYes, is_number, precise,
             [&](cudaStream_t on, double v) { return fill_data(on, static_cast<float>(v)); });
  expect_way("a half", kYes, is_number, half,
             [&](cudaStream_t on, __half v) { return launch(fill_half, kGrid, kBlock, on, data.get(), kSize, v); });
  expect_way("a half as a float", kYes, is_number, half,
             [&](cudaStream_t on, __half v) { return fill_data(on, __half2float(v)); });
  const auto bfloat16 = [](int i) { return __float2bfloat16(number(i)); };
  expect_way("a bfloat16", kYes, is_number, bfloat16, [&](cudaStream_t on, __nv_bfloat16 v) {
    return launch(fill_bfloat16, kGrid, kBlock, on, data.get(), kSize, v);
  });
  expect_way("a source", kYes, is_copy, pointer,
             [&](cudaStream_t on, const float* in) { return scale_to_data(on, in); });
  const auto is_scaled_copy = [&](int i, int e) { return 3 * is_copy(i, e) + 5; };
  expect_way("a source in a structure", kYes, is_scaled_copy, pointer, [&](cudaStream_t on, const float* in) {
    float* out = data.get();
    int n = kSize;
    Scaling by = scaling(3, in, 5);
    return launch_at(scale_by, on, &out, &n, &by);
  });
  const auto out = [&](int i) { return part(32 + i); };
  const auto is_seven = [](int, int) { return 7.0f; };
  expect_way("a result", kAndHasTheResult, is_seven, out,
             [&](cudaStream_t on, float* to) { return launch(fill, kGrid, kBlock, on, to, kSize, 7); });
  expect_way("the source of a copy", kYes, is_copy, pointer, [&](cudaStream_t on, const float* in) {
    return cudaMemcpyAsync(data.get(), in, kBytes, cudaMemcpyDeviceToDevice, on);
  });
  const auto untyped = [&](int i) -> void* { return part(40 + i); };
  const auto is_first = [&](int, int e) { return is_copy(0, e); };
  expect_way("the destination of a copy", kAndHasTheResult, is_first, untyped, [&](cudaStream_t on, void* to) {
    return cudaMemcpyAsync(to, part(0), kBytes, cudaMemcpyDeviceToDevice, on);
  });
  const auto is_zero = [](int, int) { return 0.0f; };
  const auto scratch = [&](int i) { return part(48 + i); };
  expect_way("a set, and the source of a copy, by the recorder", kYes, is_zero, scratch, [&](Recorder& rec, float* at) {
    rec.memset(at, 0, kBytes);
    rec.memcpy(data.get(), at, kBytes);
  });

  // What is computed of a value.
  const auto is_reciprocal = [](int i, int) { return 1 / number(i); };
  expect_way("a reciprocal", kNo, is_reciprocal, number,
             [&](cudaStream_t on, float v) { return fill_data(on, 1 / v); });
  expect_way("a float as a half", kNo, is_number, number, [&](cudaStream_t on, float v) {
    return launch(fill_half, kGrid, kBlock, on, data.get(), kSize, __float2half(v));
  });
  const auto is_squared = [](int i, int) { return number(i) + number(i) * number(i); };
  expect_way("a float beside its square", kNo, is_squared, number, [&](cudaStream_t on, float v) {
    CUDA_OK(fill_data(on, v));
    return add_to_data(on, v * v);
  });
  DeviceBuffer<float> other(memory.read());
  expect_way("an address in other memory", kNo, is_copy, pointer,
             [&](cudaStream_t on, const float* in) { return scale_to_data(on, other.get() + (in - part(0))); });
  const auto even = [&](int i) { return part(2 * i); };
  const auto is_odd_copy = [&](int i, int e) { return content(part(4 * i)) + 3 + static_cast<float>(e); };
  expect_way("an odd offset", kNo, is_odd_copy, even,
             [&](cudaStream_t on, const float* in) { return scale_to_data(on, part(0) + 2 * (in - part(0)) + 3); });
}

// CUDA patches no node that copies rows or slices (docs/semantics.md).
TEST_F(ValuesFoundTest, CopiesOfRowsAreCaptured) {
  constexpr std::size_t kPitch = kPart * sizeof(float), kWidth = 40 * sizeof(float);
  for (const bool has_slices : {false, true}) {
    SCOPED_TRACE(has_slices);
    Cache cache;
    for (int i = 0; i < 5; ++i) {
      float* const at = part(2 * i);
      EXPECT_TRUE(recorded(i, cache.run(key("k"), stream, values(at), [&](cudaStream_t on, float* from) {
        if (!has_slices) {
          return cudaMemcpy2DAsync(data.get(), kWidth, from, kPitch, kWidth, 2, cudaMemcpyDeviceToDevice, on);
        }
        cudaMemcpy3DParms copy = {};
        copy.srcPtr = {from, kPitch, kPitch, 1};
        copy.dstPtr = {data.get(), kWidth, kWidth, 1};
        copy.extent = {kWidth, 1, 2};
        copy.kind = cudaMemcpyDeviceToDevice;
        return cudaMemcpy3DAsync(&copy, on);
      }))) << i;
      const std::vector<float> found = data.read();
      for (int e = 0; e < 80; ++e) {
        ASSERT_EQ(found[static_cast<std::size_t>(e)], content(at) + static_cast<float>(e < 40 ? e : kPart + e - 40));
      }
    }
    EXPECT_EQ(states(cache), "derived");
    EXPECT_EQ(cache.entries().at(0).values.at(0).places,
              "a parameter of node 0 (copy of rows, which CUDA does not patch)");
  }
}

TEST_F(ValuesFoundTest, AValueBesideACopyOfRowsIsFound) {
  constexpr std::size_t kWidth = 40 * sizeof(float);
  Cache cache;
  for (int i = 0; i < 20; ++i) {
    float* const at = part(i < 8 ? 2 * (i % 3) : 0);
    const float factor = static_cast<float>(i) + 2.5f;
    const auto outcome = cache.run(key("k"), stream, values(at, factor), [&](cudaStream_t on, float* from, float f) {
      cudaMemcpy2DAsync(data.get(), kWidth, from, kWidth, kWidth, 2, cudaMemcpyDeviceToDevice, on);
      return add_to_data(on, f);
    });
    if (i < 11) {  // It has to change alone twice, and once more.
      EXPECT_CAPTURED(outcome) << i;
    } else {
      EXPECT_RUN(kPatched, outcome) << i;
    }
    ASSERT_EQ(data.read()[5], content(at) + 5 + factor) << i;
  }
  EXPECT_EQ(states(cache), "derived found");
}

TEST_F(ValuesFoundTest, SetsOfRowsAndOfWideElementsAreFound) {
  constexpr unsigned kWords = 40;
  for (const unsigned element : {1u, 2u, 4u}) {
    for (const std::size_t rows : {1u, 2u}) {
      SCOPED_TRACE(testing::Message() << element << " bytes, " << rows << " rows");
      Cache cache;
      const unsigned number = element == 1 ? 0x25 : element == 2 ? 0x2525 : 0x25252525;
      for (int i = 0; i < 6; ++i) {
        float* const at = part(2 * i);
        const float before = content(at);
        EXPECT_TRUE(learned(i, cache.run(key("k"), stream, values(at), [&](cudaStream_t on, float* to) {
          return add_set(on, {.dst = to + 4,
                              .pitch = kPart * sizeof(float),
                              .value = number,
                              .elementSize = element,
                              .width = kWords * sizeof(float) / element,
                              .height = rows});
        })));
        const std::vector<float> found = read(at, 2 * kPart);
        for (unsigned e = 0; e < 2 * kPart; ++e) {
          const bool is_set = e / kPart < rows && e % kPart >= 4 && e % kPart < 4 + kWords;
          ASSERT_EQ(found[e], is_set ? from_bits(0x25252525) : before + static_cast<float>(e)) << e;
        }
        reset_memory();
      }
      EXPECT_EQ(states(cache), "found");
    }
  }
}

TEST_F(ValuesFoundTest, NumbersThatAreSetAreFound) {
  for (const std::size_t rows : {1u, 2u}) {
    Cache cache;
    for (int i = 0; i < 6; ++i) {
      const float v = 0.1f + number(i);
      EXPECT_TRUE(
          learned(i, cache.run(key("k"), stream, values(v, part(2 * i)), [&](cudaStream_t on, float by, float* to) {
            return add_set(on, {.dst = to,
                                .pitch = kPart * sizeof(float),
                                .value = bits(by),
                                .elementSize = sizeof(float),
                                .width = kPart,
                                .height = rows});
          })));
      const int count = static_cast<int>(rows) * kPart;
      EXPECT_EQ(read(part(2 * i), count), std::vector<float>(static_cast<std::size_t>(count), v));
    }
    EXPECT_EQ(states(cache), "found found");
  }
}

TEST_F(ValuesFoundTest, FloatsAreFoundAsDoublesAndDoublesAsFloats) {
  Cache cache;
  DeviceBuffer<double> out(10);
  for (int i = 0; i < 6; ++i) {
    const float f = 0.1f + static_cast<float>(i);
    const double d = 0.1 * (i + 17);
    EXPECT_TRUE(learned(i, cache.run(key("k"), stream, values(f, d), [&](cudaStream_t on, float a, double b) {
      return launch(many, 1, 1, on, out.get(), 'a', a, 3, static_cast<float>(b), 5, 6, 7, a, 9, b);
    })));
    EXPECT_EQ(out.read(), (std::vector<double>{97, f, 3, static_cast<float>(d), 5, 6, 7, f, 9, d}));
  }
  EXPECT_EQ(states(cache), "found found");
  EXPECT_EQ(places(cache, 0).rfind("2 places in 1 node", 0), 0u) << places(cache, 0);
}

// The upper half of 2 and of -2 as a double is 2 or -2 as a float, and the lower half is 0.
TEST_F(ValuesFoundTest, NumbersThatMayBeOfSeveralSizesTeachNothing) {
  DeviceBuffer<double> out(10);
  const auto expect_right = [&](auto unit) {
    for (const bool is_double : {false, true}) {
      Cache cache;
      for (const double number : {2.0, -2.0, 2.0, -2.0, 3.0, 5.0, 0.25, 7.0}) {
        SCOPED_TRACE(number);
        const auto value = static_cast<decltype(unit)>(number);
        EXPECT_SUCCESS(cache.run(key("k"), stream, values(value), [&](cudaStream_t on, decltype(unit) v) {
          const double wide = is_double ? v : 0;
          const float narrow = is_double ? 0 : static_cast<float>(v);
          return launch(many, 1, 1, on, out.get(), 0, wide, 0, narrow, 0, 0, 0, 0, 0, 0);
        }));
        EXPECT_EQ(out.read()[is_double ? 1 : 3], number);
      }
      EXPECT_EQ(states(cache), "found");
      EXPECT_EQ(cache.stats().value_captures, 5u);
    }
  };
  expect_right(1.0f);
  expect_right(1.0);
}

TEST_F(ValuesFoundTest, BitsArriveAsTheyAre) {
  const float quiet = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> others = {
      1.5f, quiet, from_bits(0x7fc12345), from_bits(0xffc00000), infinity, -infinity, from_bits(1), quiet, -1.0f};
  const std::vector<float> zeros = {0.0f, -0.0f, 0.0f, -0.0f, 0.0f};
  for (const std::vector<float>& row : {others, zeros}) {
    Cache cache;
    int i = 0;
    for (const float v : row) {
      EXPECT_TRUE(learned(i++, run_fill(cache, v)));
      for (const float element : data.read()) ASSERT_EQ(bits(element), bits(v));
    }
    EXPECT_EQ(cache.entries().size(), 1u);
  }
}

TEST_F(ValuesFoundTest, EachValueIsFoundByItself) {
  Cache cache;
  const auto run = [&](float a, float b) { return run_sum(cache, a, b); };
  EXPECT_RUN(kInstantiated, run(2, 10));
  EXPECT_RUN(kUpdated, run(3, 10));
  EXPECT_RUN(kInstantiated, run(4, 10));
  EXPECT_EQ(states(cache), "found unseen");
  EXPECT_RUN(kPatched, run(5, 10));
  EXPECT_RUN(kInstantiated, run(5, 20));
  EXPECT_EQ(states(cache), "found seen");
  EXPECT_RUN(kPatched, run(6, 20));
  EXPECT_RUN(kInstantiated, run(7, 30));  // Both change, and both are found then.
  EXPECT_EQ(states(cache), "found found");
  EXPECT_RUN(kPatched, run(8, 40));
  EXPECT_RUN(kPatched, run(8, 2));
  EXPECT_EQ(cache.stats().value_captures, 4u);
}

TEST_F(ValuesFoundTest, ADerivedValueHindersNoOther) {
  Cache cache;
  const auto run = [&](float a, float b) { return run_squared(cache, a, b); };
  EXPECT_RUN(kInstantiated, run(2, 3));
  for (int i = 1; i < 4; ++i) EXPECT_RUN(kUpdated, run(2, number(i) + 1));
  EXPECT_EQ(states(cache), "unseen derived");
  EXPECT_EQ(places(cache, 1).rfind("argument 2 of node 1 (kernel graphcache::test::add", 0), 0u) << places(cache, 1);
  EXPECT_RUN(kUpdated, run(3, 6));
  EXPECT_RUN(kUpdated, run(4, 6));
  EXPECT_EQ(states(cache), "found derived");
  EXPECT_RUN(kPatched, run(5, 6));
  EXPECT_RUN(kUpdated, run(6, 7));  // Both change.
  EXPECT_RUN(kPatched, run(7, 7));
}

template <std::size_t... I>
void expect_all_found(Cache& cache, cudaStream_t stream, DeviceBuffer<float>* sum, std::index_sequence<I...>) {
  for (int i = 0; i < 5; ++i) {
    sum->write(std::vector<float>(kSize));
    const float first = 2 + 100 * static_cast<float>(i);
    const absl::StatusOr<Outcome> outcome =
        cache.run(key("k"), stream, values((first + static_cast<float>(I))...), [&](cudaStream_t on, auto... v) {
          EXPECT_TRUE(((launch(add, kGrid, kBlock, on, sum->get(), kSize, v) == cudaSuccess) && ...));
        });
    if (i == 1 || i == 2) {
      EXPECT_CAPTURED(outcome);
    } else {
      EXPECT_TRUE(did(i == 0 ? Outcome::kInstantiated : Outcome::kPatched, outcome));
    }
    EXPECT_EQ(sum->read(), std::vector<float>(kSize, ((first + static_cast<float>(I)) + ...)));
  }
}
TEST_F(ValuesFoundTest, AsManyValuesAsThereMayBe) {
  Cache cache, none;
  expect_all_found(cache, stream, &data, std::make_index_sequence<64>());
  EXPECT_EQ(cache.entries().at(0).values.size(), 64u);
  const auto run = [&] {
    return none.run(key("k"), stream, values(), [&](cudaStream_t on) { return fill_data(on, 5); });
  };
  EXPECT_RUN(kInstantiated, run());
  EXPECT_RUN(kReplayed, run());
  expect_data(5);
}

// ---- What could be taken for a value --------------------------------------------------------------------------------

TEST_F(ValuesFoundTest, EqualValuesAreFoundTogetherWhileTheyAreEqual) {
  Cache cache;
  const auto run = [&](float a, float b) {
    const absl::StatusOr<Outcome> outcome =
        cache.run(key("k"), stream, values(a, b), [&](cudaStream_t on, float x, float y) {
          CUDA_OK(fill_data(on, x));
          return scale_to_data(on, data.get(), y);
        });
    expect_data(a * b);
    return outcome;
  };
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(learned(i, run(number(i), number(i))));
  EXPECT_EQ(states(cache), "ambiguous ambiguous");
  const absl::StatusOr<Outcome> outcome = run(8, 9);
  ASSERT_TRUE(outcome.ok());
  EXPECT_FALSE(is_hit(*outcome));
  EXPECT_EQ(states(cache), "found found");
  for (const auto& [a, b] : {std::pair(9.0f, 8.0f), {9.0f, 5.0f}, {3.0f, 3.0f}, {3.0f, 4.0f}}) {
    EXPECT_RUN(kPatched, run(a, b));
  }
}

TEST_F(ValuesFoundTest, ConstantsOfTheProgramStay) {
  // Each row has the values of the runs. The program has the constant 5.
  for (const std::vector<float>& row : {std::vector<float>{5, 6, 7, 5, 8}, {4, 5, 6, 7}, {2, 5, 2, 5}}) {
    Cache cache;
    int i = 0;
    for (const float v : row) {
      EXPECT_TRUE(learned(i++, cache.run(key("k"), stream, values(v), [&](cudaStream_t on, float value) {
        CUDA_OK(fill_data(on, 5));
        return scale_to_data(on, data.get(), value);
      })));
      expect_data(5 * v);
    }
  }
}

TEST_F(ValuesFoundTest, AValueThatIsNotUsed) {
  Cache cache;
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(learned(
        i, cache.run(key("k"), stream, values(number(i), part(i)), [&](cudaStream_t on, float, const float* in) {
          ++calls;
          return scale_to_data(on, in);
        })));
    expect_copy_of(part(i));
  }
  EXPECT_EQ(states(cache), "found found");
  EXPECT_EQ(places(cache, 0), "nowhere");
  EXPECT_EQ(calls, 3);
}

TEST_F(ValuesFoundTest, BuffersThatSwapOrMoveTogether) {
  using Row = std::vector<std::pair<int, int>>;
  const std::vector<std::pair<const char*, Row>> rows = {
      {"swapped in each run", {{0, 1}, {1, 0}, {0, 1}, {1, 0}, {0, 1}}},
      {"moving by equal distances", {{0, 10}, {1, 11}, {2, 12}, {3, 13}, {0, 10}}},
      {"each where the other was", {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}}},
      {"in a ring", {{0, 1}, {1, 2}, {2, 0}, {0, 1}, {1, 2}}},
  };
  for (const auto& [name, row] : rows) {
    SCOPED_TRACE(name);
    std::vector<float> contents(20);
    for (int p = 0; p < 20; ++p) {
      contents[static_cast<std::size_t>(p)] = static_cast<float>(p);
      CUDA_OK(launch(fill, kGrid, kBlock, stream, part(p), kSize, static_cast<float>(p)));
    }
    Cache cache;
    int i = 0;
    for (const auto& [in, out] : row) {
      EXPECT_TRUE(learned(i++, cache.run(key("k"), stream, values(static_cast<const float*>(part(in)), part(out)),
                                         [&](cudaStream_t on, const float* from, float* to) {
                                           return launch(axpy, kGrid, kBlock, on, to, from, kSize, 2);
                                         })));
      contents[static_cast<std::size_t>(out)] += 2 * contents[static_cast<std::size_t>(in)];
      for (int p = 0; p < 20; ++p) {
        ASSERT_EQ(read(part(p)), std::vector<float>(kSize, contents[static_cast<std::size_t>(p)])) << "part " << p;
      }
    }
  }
}

// ---- Runs that break the contract before a value is found -----------------------------------------------------------

TEST_F(ValuesFoundTest, WhatIsNotYetFoundIsRightWhateverFnDoes) {
  const auto expect_right = [&](const char* name, const auto& wanted, const auto& fn) {
    SCOPED_TRACE(name);
    // In no row do two values in turn show what is found at last.
    for (const std::vector<float>& row : {std::vector<float>{2, 3, 20, 4, 21, 5, 22, 6, 23},
                                          {20, 2, 30, 3, 40},
                                          {20, 21, 2, 22},
                                          {2, 3, 20, 21, 22},
                                          {20, 10, 5, 30}}) {
      Cache cache;
      for (const float v : row) {
        const absl::StatusOr<Outcome> outcome = cache.run(key("k"), stream, values(v), fn);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        EXPECT_FALSE(is_hit(*outcome)) << v;
        EXPECT_EQ(data.read(), elements([&](int e) { return wanted(v, e); })) << v;
      }
    }
  };
  const auto clamped = [](float v, int) { return std::min(v, 10.0f); };
  expect_right("a clamp", clamped, [&](cudaStream_t on, float v) { return fill_data(on, std::min(v, 10.0f)); });
  const auto perhaps_twice = [](float v, int) { return v > 10 ? 2 * v : v; };
  expect_right("another number of nodes", perhaps_twice, [&](cudaStream_t on, float v) {
    CUDA_OK(fill_data(on, v));
    return v > 10 ? add_to_data(on, v) : cudaSuccess;
  });
  const auto perhaps_added = [](float v, int) { return v > 10 ? v + 1 : v; };
  expect_right("another kernel", perhaps_added, [&](cudaStream_t on, float v) {
    CUDA_OK(fill_data(on, 1));
    return v > 10 ? add_to_data(on, v) : fill_data(on, v);
  });
  const auto perhaps_half = [](float v, int e) { return v > 10 && e >= static_cast<int>(kBlock.x) ? 1 : v; };
  expect_right("another grid", perhaps_half, [&](cudaStream_t on, float v) {
    CUDA_OK(fill_data(on, 1));
    return launch(fill, v > 10 ? 1 : 2, kBlock, on, data.get(), kSize, v);
  });
}

TEST_F(ValuesFoundTest, AfterSomeGraphsThatCannotBeComparedNothingIsLearnedForAWhile) {
  for (const int others : {3, 4}) {
    const int found = others == 3 ? others + 3 : others + 18;  // The first run that patches.
    Cache cache;
    for (int i = 0; i < found + 4; ++i) {
      const bool is_long = std::min(i, others) % 2 == 0;
      const absl::StatusOr<Outcome> outcome =
          cache.run(key("k"), stream, values(number(i)), [&](cudaStream_t on, float v) {
            CUDA_OK(fill_data(on, v));
            return is_long ? add_to_data(on, 1) : cudaSuccess;
          });
      EXPECT_TRUE(i < found ? captured(outcome) : did(Outcome::kPatched, outcome)) << i;
      expect_data(number(i) + (is_long ? 1 : 0));
      if (i == others + 2) {
        EXPECT_EQ(states(cache), others == 3 ? "found" : "derived");
      }
    }
    EXPECT_EQ(states(cache), "found");
  }
}

TEST_F(ValuesFoundTest, ASumThatSwallowsOneOfItsValues) {
  Cache cache;
  const auto run = [&](float a, float b) {
    const absl::StatusOr<Outcome> outcome = cache.run(
        key("k"), stream, values(a, b), [&](cudaStream_t on, float x, float y) { return fill_data(on, x + y); });
    expect_data(a + b);
    return outcome;
  };
  const float large = 1e20f;
  EXPECT_RUN(kInstantiated, run(1 * large, 2));
  EXPECT_CAPTURED(run(2 * large, 2));
  EXPECT_CAPTURED(run(3 * large, 2));
  EXPECT_RUN(kPatched, run(4 * large, 2));
  EXPECT_CAPTURED(run(4 * large, large));  // It has never changed before.
  EXPECT_CAPTURED(run(5 * large, 2));
  EXPECT_CAPTURED(run(5, 3));
}

// An argument that is sometimes the one, sometimes the other of two values depends on both.
class ValuesChosenTest : public ValuesTest {
 protected:
  using Choice = std::function<float(float a, float b)>;
  void expect_right(const Choice& choose, const std::vector<std::pair<float, float>>& row) {
    for (const bool passes_second : {false, true}) {  // Whether the second one is also an argument of its own.
      Cache cache;
      for (const auto& [a, b] : row) {
        ASSERT_SUCCESS(cache.run(key("k"), stream, values(a, b), [&](cudaStream_t on, float x, float y) {
          CUDA_OK(fill_data(on, choose(x, y)));
          return passes_second ? launch(fill, kGrid, kBlock, on, part(0), kSize, y) : cudaSuccess;
        }));
        EXPECT_EQ(data.first(), choose(a, b)) << a << ", " << b;
        if (passes_second) {
          EXPECT_EQ(read(part(0), 1).at(0), b);
        }
      }
    }
  }
};

TEST_F(ValuesChosenTest, TheLargerOne) {
  const Choice larger = [](float a, float b) { return std::max(a, b); };
  expect_right(larger, {{2, 5}, {5, 5}, {7, 5}, {8, 5}, {3, 5}});
  expect_right(larger, {{7, 5}, {8, 5}, {8, 9}, {8, 10}, {8, 11}, {12, 11}, {13, 11}, {14, 20}});
  // Each of them alone has changed the argument, before the one changes it again.
  expect_right(larger, {{2, 5}, {6, 5}, {7, 5}, {3, 6}, {3, 2}, {4, 2}, {4, 5}});
  // The first one is found before the second one takes its place.
  expect_right(larger, {{3, 2}, {4, 2}, {5, 2}, {5, 9}, {12, 9}, {13, 9}});
}

// The second one changes what is derived of both only together with the first one, until it changes alone.
TEST_F(ValuesChosenTest, BothInOneByte) {
  const Choice both = [](float a, float b) { return from_bits(0x40490000 + static_cast<unsigned>(16 * a + b)); };
  expect_right(both, {{2, 3}, {4, 3}, {5, 6}, {7, 8}, {7, 9}, {8, 9}});
  // The second one changes it alone, but not always.
  const Choice half = [](float a, float b) { return from_bits(0x40490000 + static_cast<unsigned>(16 * a + b / 2)); };
  expect_right(half, {{2, 2}, {4, 2}, {4, 4}, {4, 5}, {4, 6}, {5, 8}});
}

// The second one has changed the argument only together with the first one.
TEST_F(ValuesChosenTest, WhichOneByTheFirst) {
  const Choice first_if_odd = [](float a, float b) { return static_cast<int>(a) % 2 != 0 ? a : b; };
  expect_right(first_if_odd, {{2, 5}, {3, 5}, {5, 5}, {7, 5}, {9, 6}, {8, 7}, {8, 9}, {11, 9}});
}

// Values that differ so little that a float does not show it.
TEST_F(ValuesFoundTest, ChangesThatTheFloatDoesNotShowCountForNothing) {
  const double small = 3e-4;
  for (const bool takes_double : {false, true}) {
    Cache cache;
    DeviceBuffer<double> out(10);
    const auto fn = [&](cudaStream_t on, double v) {
      if (takes_double) {
        CUDA_OK(launch(many, 1, 1, on, out.get(), 0, v, 0, 0, 0, 0, 0, 0, 0, 0));
      }
      return fill_data(on, static_cast<float>(v));
    };
    for (const double v : {small, small * (1 + 1e-12), small * (1 + 2e-12), small * (1 + 3e-12), 2e-4, 1e-4, 5e-5}) {
      EXPECT_TRUE(cache.run(key("k"), stream, values(v), fn).ok());
      expect_data(static_cast<float>(v));
    }
    EXPECT_EQ(states(cache), "found");
  }
}

TEST_F(ValuesFoundTest, AValueThatIsRoundedMoreIsNotFoundNowhere) {
  std::vector<int> small(20);
  std::iota(small.begin(), small.end(), 0);
  // A bfloat16 shows the ninth of the small changes first, and of the others only the last one: it is rounded to even.
  for (const std::vector<int>& row : {small, {15, 16, 15, 40}, {24, 40, 24, 60}}) {
    Cache cache;
    for (const int i : row) {
      const float v = 3 + static_cast<float>(i) / 1024;
      EXPECT_SUCCESS(cache.run(key("k"), stream, values(v), [&](cudaStream_t on, float value) {
        return launch(fill_bfloat16, kGrid, kBlock, on, data.get(), kSize, __float2bfloat16(value));
      }));
      expect_data(__bfloat162float(__float2bfloat16(v)));
    }
  }
}

TEST_F(ValuesFoundTest, FnGetsNoValuesOfEarlierRuns) {
  Cache cache;
  int undefined = 0;
  for (int i = 0; i < 6; ++i) {
    EXPECT_SUCCESS(cache.run(key("k"), stream, values(number(i), part(i)), [&](cudaStream_t on, float v, float* to) {
      EXPECT_EQ(v, number(i));
      EXPECT_EQ(to, part(i));
      CUDA_OK(launch(fill, kGrid, kBlock, on, to, kSize, 1 / v));
      return fill_data(on, static_cast<float>(std::min(undefined++, 1)));
    }));
    EXPECT_EQ(read(part(i)), std::vector<float>(kSize, 1 / number(i)));
  }
}

TEST_F(ValuesFoundTest, AValueThatChangesWithoutADerivedWordIsNoSuspect) {
  Cache cache;
  const float all[][2] = {{2, 2}, {3, 4}, {4, 4}, {5, 4}, {6, 4}, {6, 8}, {7, 8}};
  for (const auto& [a, b] : all) {
    EXPECT_SUCCESS(cache.run(key("k"), stream, values(a, b), [&](cudaStream_t on, float x, float y) {
      CUDA_OK(fill_data(on, x));
      return add_to_data(on, 1 / y);
    }));
    expect_data(a + 1 / b);
  }
  EXPECT_EQ(states(cache), "found derived");
}

// A suspect that changes beside others, or once alone, without the word is still one.
TEST_F(ValuesFoundTest, WhatStaysOnceIsDerivedAllTheSame) {
  const auto run_all = [&](std::initializer_list<std::array<float, 3>> all, const auto& of) {
    Cache cache;
    for (const auto& [to, a, b] : all) {
      float* const at = part(static_cast<int>(to));
      EXPECT_SUCCESS(cache.run(key("k"), stream, values(at, a, b), [&](cudaStream_t on, float* out, float x, float y) {
        return launch(fill, kGrid, kBlock, on, out, kSize, of(x, y));
      }));
      EXPECT_EQ(read(at), std::vector<float>(kSize, of(a, b))) << a << ", " << b;
    }
  };
  const auto sum = [](float x, float y) { return x + y; };
  run_all({{0, 2, 3}, {2, 4, 5}, {2, 5, 4}, {2, 4, 5}, {2, 4, 8}, {2, 6, 8}, {2, 6.5f, 9}, {4, 7, 9}}, sum);
  const auto least = [](float x, float) { return std::min(x, 1.0f); };
  run_all({{0, 0.25f, 3}, {2, 2, 5}, {2, 3, 5}, {2, 0.5f, 5}, {4, 0.75f, 6}, {2, 0.3f, 6}}, least);
}

// Undefined bytes beside a derived number may make an address of it.
TEST_F(ValuesFoundTest, ANumberBesidePartsOfAnAddressIsDerived) {
  Cache cache;
  for (int i = 0; i < 8; ++i) {
    const float v = number(i);
    EXPECT_SUCCESS(cache.run(key("k"), stream, values(v), [&](cudaStream_t on, float value) {
      Halved half;
      const void* const here = &half;
      std::memcpy(reinterpret_cast<char*>(&half) + sizeof(float*), &here, sizeof here);
      half.out = data.get();
      half.value = __float2half(value);
      return launch(store_half, 1, 1, on, half);
    }));
    EXPECT_EQ(data.first(), v);
  }
  EXPECT_EQ(states(cache), "derived");
}

TEST_F(ValuesFoundTest, OffsetsOfPointersAreKept) {
  Cache cache;
  const auto sum = [&](const float* p, const float* q, int e) { return content(p) + content(q) + 2.0f * e; };
  for (int i = 0; i < 10; ++i) {
    const float *const p = part(i), *const q = part(63 - i);
    ASSERT_SUCCESS(cache.run(key("k"), stream, values(p, q), [&](cudaStream_t on, const float* a, const float* b) {
      CUDA_OK(scale_to_data(on, a + 3));
      return launch(axpy, kGrid, kBlock, on, data.get(), b + 28, kSize, 1);
    }));
    EXPECT_EQ(data.read(), elements([&](int e) { return sum(p + 3, q + 28, e); })) << i;
  }
}

TEST_F(ValuesFoundTest, NoiseHindersNoValue) {
  // Bytes that each call of fn leaves another way, beside the value.
  unsigned char noise = 0;
  const auto padding = [&](cudaStream_t on, float v) {
    float* out = data.get();
    int n = kSize;
    Scaling by = scaling(v, part(0), 1, ++noise);
    return launch_at(scale_by, on, &out, &n, &by);
  };
  const auto address = [&](cudaStream_t on, float v) {  // It is not read.
    float local = 0;
    CUDA_OK(launch(scale, kGrid, kBlock, on, data.get(), &local, 0, 1));
    CUDA_OK(scale_to_data(on, part(0), v));
    return add_to_data(on, 1);
  };
  const auto late = [&](cudaStream_t on, float v) {  // The second byte differs between two equal recordings, once.
    constexpr unsigned char kSecond[] = {0, 0, 0, 7, 8};
    float* out = data.get();
    int n = kSize;
    Scaling by = scaling(v, part(0), 1);
    auto* const bytes = reinterpret_cast<unsigned char*>(&by);
    bytes[offsetof(Scaling, factor) + sizeof(float)] = ++noise;
    bytes[offsetof(Scaling, plus) + sizeof(float)] = kSecond[std::min<std::size_t>(noise, 4)];
    return launch_at(scale_by, on, &out, &n, &by);
  };
  // Between two recordings more bytes of an address may change than between equal ones: the third, from 64 KiB on.
  for (const std::size_t depth : {0, 0x10000}) {
    SCOPED_TRACE(depth);
    for (const Fn& fn : {Fn(padding), Fn(address), Fn(late)}) {
      Cache cache;
      noise = 0;
      const auto run = [&](int i) {
        return cache.run(key("k"), stream, values(number(i)), [&](cudaStream_t on, float v) { return fn(on, v); });
      };
      for (int i = 0; i < 6; ++i) {
        expect_scaled_plus_one(i, deeper(i == 0 ? depth : 0, [&] { return run(i); }));
      }
      EXPECT_EQ(states(cache), "found");
    }
  }
}

// Where fn allocates, addresses of the graph's memory differ between recordings.
TEST_F(ValuesFoundTest, BesideEventsAndMemoryOfTheGraph) {
  Event event;
  const auto with_event = [&](cudaStream_t on, float v) {
    CUDA_OK(scale_to_data(on, part(0), v));
    CUDA_OK(cudaEventRecordWithFlags(event, on, cudaEventRecordExternal));
    CUDA_OK(cudaStreamWaitEvent(on, event, cudaEventWaitExternal));
    return add_to_data(on, 1);
  };
  const auto with_memory = [&](cudaStream_t on, float v) {
    void* allocated[] = {nullptr, nullptr};
    const std::size_t bytes = kSize * sizeof(float);
    for (void*& memory : allocated) CUDA_OK(cudaMallocAsync(&memory, bytes, on));
    float *const one = static_cast<float*>(allocated[0]), *const two = static_cast<float*>(allocated[1]);
    CUDA_OK(launch(scale, kGrid, kBlock, on, one, part(0), kSize, v));
    CUDA_OK(cudaMemsetAsync(two, 0, bytes, on));
    CUDA_OK(launch(axpy, kGrid, kBlock, on, two, one, kSize, 1));
    CUDA_OK(cudaMemcpyAsync(data.get(), two, bytes, cudaMemcpyDeviceToDevice, on));
    CUDA_OK(cudaFreeAsync(two, on));
    CUDA_OK(cudaFreeAsync(one, on));
    return add_to_data(on, 1);
  };
  for (int round = 0; round < 40; ++round) {  // Two recordings may have the same addresses by chance.
    const Fn fn = round == 0 ? Fn(with_event) : Fn(with_memory);
    Cache cache;
    for (int i = 0; i < 6; ++i) {
      expect_scaled_plus_one(
          i, cache.run(key("k"), stream, values(number(i)), [&](cudaStream_t on, float v) { return fn(on, v); }));
    }
    EXPECT_EQ(states(cache), "found");
  }
}

TEST_F(ValuesFoundTest, SizesOfTheGraphsMemoryAreDerived) {
  Cache cache;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(recorded(i, cache.run(key("k"), stream, values(number(i)), [&](cudaStream_t on, float v) {
      void* memory = nullptr;
      CUDA_OK(cudaMallocAsync(&memory, static_cast<std::size_t>(v) * 4096, on));
      CUDA_OK(scale_to_data(on, part(0), v));
      return cudaFreeAsync(memory, on);
    })));
    EXPECT_EQ(data.first(), number(i) * content(part(0)));
  }
  EXPECT_EQ(states(cache), "derived");
}

// ---- Many runs ------------------------------------------------------------------------------------------------------

// Random values of small sets, so that many are equal by chance, change together, or are 0 or 1.
TEST_F(ValuesFoundTest, RandomRunsAreRight) {
  std::uint64_t hits = 0, captures = 0;
  const int seeds = by_size(4, 24, 400);
  for (int seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](std::size_t bound) { return random() % bound; };
    // Some worlds have few identities, others more than are kept.
    const std::vector<float> numbers = seed % 2 == 0 ? std::vector<float>{2, 3, 4, -5} : std::vector<float>{0, 1, 2, 3};
    const int ins = seed % 3 == 0 ? 1 : 4, outs = 4;
    Cache cache({.max_executables = 1 + static_cast<int>(below(3)), .share = static_cast<Share>(below(3))});
    float a = 2, b = 3;
    double c = 4;
    const float *p = part(0), *q = part(8);
    float* out = part(16);
    for (int step = 0; step < 40; ++step) {
      const auto which = static_cast<unsigned>(below(3));
      if (below(2) == 0) a = numbers[below(4)];
      if (below(2) == 0) b = numbers[below(4)];
      if (below(4) == 0) c = numbers[below(4)];
      if (below(3) == 0) p = part(static_cast<int>(below(static_cast<std::size_t>(ins))));
      if (below(3) == 0) q = part((ins == 1 ? 8 : 0) + static_cast<int>(below(4)));
      if (below(3) == 0) out = part(16 + static_cast<int>(below(static_cast<std::size_t>(outs))));
      if (below(30) == 0) cache.erase(key("k", which));
      const float constant = static_cast<float>(which + 2);
      ASSERT_SUCCESS(
          cache.run(key("k", which), stream, values(a, p, b, c, q, out),
                    [&](cudaStream_t on, float va, const float* vp, float vb, double vc, const float* vq, float* to) {
                      int n = kSize;
                      float* scratch = data.get();
                      Scaling by = scaling(vb, vq, constant);
                      CUDA_OK(launch(fill, kGrid, kBlock, on, to, kSize, va));
                      CUDA_OK(launch(axpy, kGrid, kBlock, on, to, vp, kSize, vb));
                      CUDA_OK(launch_at(scale_by, on, &scratch, &n, &by));
                      CUDA_OK(launch(axpy, kGrid, kBlock, on, to, scratch, kSize, 1));
                      return launch(add, kGrid, kBlock, on, to, kSize, static_cast<float>(vc));
                    }));
      const auto wanted = [&](int element) {
        const auto e = static_cast<float>(element);
        return a + b * (content(p) + e) + (b * (content(q) + e) + constant) + static_cast<float>(c);
      };
      ASSERT_EQ(read(out), elements(wanted)) << "step " << step;
    }
    hits += cache.stats().hits();
    captures += cache.stats().value_captures;
  }
  EXPECT_NE(hits, 0u);
  EXPECT_NE(captures, 0u);
}

}  // namespace
}  // namespace graphcache::test
