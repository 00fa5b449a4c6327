// values() of a list, whose number and types are known only at run time. On either runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "recorder_support.h"
#include "values_support.h"

namespace graphcache::test {
namespace {

class ValuesListTest : public ValuesTest {
 protected:
  ValueList list(float* to, double v) const {
    ValueList all;
    all.add(to, to, kPart * sizeof(float));
    all.add(v);
    return all;
  }
  // Fills a part of the memory.
  static cudaError_t fill_part(cudaStream_t on, const ListedValues& given) {
    return launch(fill, kGrid, kBlock, on, static_cast<float*>(given.pointer(0)), kSize,
                  static_cast<float>(given.number(1)));
  }
};

TEST_F(ValuesListTest, IsFoundAsValuesAre) {
  Cache cache;
  auto step = cache.prepare(key("step"), fill_part);
  for (int i = 0; i < 6; ++i) {
    const ValueList all = list(part(i), number(i));
    EXPECT_TRUE(learned(i, cache.run(key("stream"), stream, values(all), fill_part)));
    EXPECT_EQ(read(part(i)), std::vector<float>(kSize, number(i)));
    reset_memory();
    EXPECT_TRUE(learned(i, step.run(stream, values(all))));
    EXPECT_EQ(read(part(i)), std::vector<float>(kSize, number(i)));
    reset_memory();
    EXPECT_TRUE(
        learned(i, cache.run(key("recorder"), stream, values(all), [&](Recorder& rec, const ListedValues& given) {
          rec.launch(fill, {kGrid, kBlock}, static_cast<float*>(given.pointer(0)), kSize,
                     static_cast<float>(given.number(1)));
        })));
    EXPECT_EQ(read(part(i)), std::vector<float>(kSize, number(i)));
    EXPECT_TRUE(cache.warm(key("warm"), stream, values(all), fill_part).ok());
  }
  const ValueList last = list(part(9), 99);
  EXPECT_RUN(kPatched, cache.run(key("warm"), stream, values(last), fill_part));
  EXPECT_EQ(read(part(9)), std::vector<float>(kSize, 99));
  for (const EntryInfo& entry : cache.entries()) {
    ASSERT_EQ(entry.values.size(), 2u);
    for (const ValueInfo& value : entry.values) EXPECT_EQ(value.state, ValueState::kFound);
  }
}

TEST_F(ValuesListTest, TakesAsManyAsSixtyFour) {
  Cache cache;
  constexpr int kMost = static_cast<int>(ValueList::kMost);
  for (int i = 0; i < 6; ++i) {
    ValueList all;
    for (int v = 0; v < kMost; ++v) all.add(v + 10 * i + 2.5);
    EXPECT_EQ(all.size(), ValueList::kMost);
    EXPECT_TRUE(learned(i, cache.run(key("k"), stream, values(all), [&](cudaStream_t on, const ListedValues& given) {
      CUDA_OK(fill_data(on, 0));
      for (std::size_t v = 0; v < ValueList::kMost; ++v) {
        CUDA_OK(add_to_data(on, static_cast<float>(given.number(v))));
      }
      return cudaSuccess;
    })));
    expect_data(static_cast<float>(kMost * (kMost - 1) / 2 + kMost * (10 * i) + kMost * 2.5));
  }
}

TEST_F(ValuesListTest, AnAddressFollowsAPointerOnlyIntoItsOwnMemory) {
  Cache cache;
  for (int i = 0; i < 8; ++i) {
    // Both move by one distance, and by other ones in the last runs.
    float* const to = part(2 * i);
    float* const from = part(2 * i + (i < 5 ? 1 : 2 * i - 5));
    ValueList all;
    all.add(to, to, kPart * sizeof(float));
    all.add(from, from, kPart * sizeof(float));
    reset_memory();
    EXPECT_SUCCESS(cache.run(key("k"), stream, values(all), [&](cudaStream_t on, const ListedValues& given) {
      return cudaMemcpyAsync(given.pointer(0), given.pointer(1), kSize * sizeof(float), cudaMemcpyDeviceToDevice, on);
    }));
    EXPECT_EQ(read(part(2 * i), 1).front(), content(from)) << i;
  }
}

// Undefined bytes may be others in the first recording than in all later ones, or agree in some by chance.
TEST_F(ValuesListTest, WhatDoesNotDependOnTheValuesIsNoise) {
  for (const std::vector<unsigned>& undefined : {std::vector<unsigned>{0, 1, 1, 1, 1, 1}, {0, 1, 1, 2, 3, 4}}) {
    Cache cache;
    std::size_t recordings = 0;
    for (int i = 0; i < 6; ++i) {
      const ValueList all = list(part(i), number(i));
      EXPECT_TRUE(learned(i, cache.run(key("k"), stream, values(all), [&](cudaStream_t on, const ListedValues& given) {
        CUDA_OK(fill_part(on, given));
        return fill_data(on, from_bits(0x01010101 * undefined.at(recordings++)));
      })));
      EXPECT_EQ(read(part(i)), std::vector<float>(kSize, number(i)));
    }
    EXPECT_EQ(states(cache), "found found");
    EXPECT_EQ(cache.stats().value_captures, 4u);  // Two changes, and two recordings that show the noise.
  }
}

TEST_F(ValuesListTest, WhatDependsOnTheValuesIsDerived) {
  Cache cache;
  for (int i = 0; i < 6; ++i) {
    const ValueList all = list(part(i), number(i));
    EXPECT_TRUE(recorded(i, cache.run(key("k"), stream, values(all), [&](cudaStream_t on, const ListedValues& given) {
      CUDA_OK(fill_part(on, given));
      return fill_data(on, 1 / static_cast<float>(given.number(1)));
    }))) << i;
    expect_data(1 / number(i));
    EXPECT_EQ(read(part(i)), std::vector<float>(kSize, number(i)));
  }
  EXPECT_EQ(states(cache), "derived derived");  // Neither has changed alone.
}

// Beyond sixteen entries of a key, all others share one, also lists of other sizes.
TEST_F(ValuesListTest, ListsOfOtherSizesAreOtherWork) {
  Cache cache;
  int count = 0;
  const auto fn = [&](cudaStream_t on, const ListedValues& given) {
    CUDA_OK(fill_data(on, 0));
    for (int v = 0; v < count; ++v) {
      const auto number = static_cast<float>(given.number(static_cast<std::size_t>(v)));
      CUDA_OK(add_to_data(on, number));
    }
    return cudaSuccess;
  };
  auto step = cache.prepare(key("k"), fn), other = step;
  const auto run = [&](int size, decltype(step)* by) {
    ValueList all;
    for (int v = 0; v < size; ++v) all.add(v + 2.5);
    count = size;
    EXPECT_SUCCESS(by != nullptr ? by->run(stream, values(all)) : cache.run(key("k"), stream, values(all), fn));
    expect_data(static_cast<float>(size * (size - 1) / 2 + 2.5 * size));
  };
  for (int size = 0; size < 24; ++size) run(size, nullptr);
  for (const int size : {20, 18, 20, 22, 0, 3, 23}) run(size, nullptr);
  for (int i = 0; i < 6; ++i) run(20 + i % 2, i % 2 == 0 ? &step : &other);
  for (const int size : {17, 20, 17}) run(size, size == 17 ? &step : &other);
}

TEST_F(ValuesListTest, MemoryOfEarlierRunsMayBeGone) {
  Cache cache;
  int recordings = 0;
  for (int i = 0; i < 6; ++i) {
    const DeviceBuffer<float> to(kPart);
    const ValueList all = list(to.get(), number(i));
    EXPECT_SUCCESS(cache.run(key("k"), stream, values(all), [&](cudaStream_t on, const ListedValues& given) {
      CUDA_OK(fill_part(on, given));
      return fill_data(on, static_cast<float>(std::min(recordings++, 1)));
    }));
    EXPECT_EQ(read(to.get()), std::vector<float>(kSize, number(i)));
  }
}

}  // namespace
}  // namespace graphcache::test
