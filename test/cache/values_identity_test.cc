// Values that libraries choose kernels by have entries of their own: null, 0, 1, alignment, kinds of memory and equal
// pointers. On either runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "values_kernels.h"
#include "values_support.h"

namespace graphcache::test {
namespace {

class ValuesIdentityTest : public ValuesTest {
 protected:
  // data[i] = in[i], by a kernel.
  absl::StatusOr<Outcome> run_scale(Cache& cache, const float* in) {
    return cache.run(key("k"), stream, values(in), [&](cudaStream_t on, const float* from) {
      ++calls;
      return scale_to_data(on, from, 1.0f);
    });
  }
};

TEST_F(ValuesIdentityTest, TellsValuesApartByWhatKernelsAreChosenBy) {
  const float* const null = nullptr;
  const float *const p = part(0), *const q = part(1);
  const auto odd = [](const float* at) { return at + 1; };
  const std::pair<std::uint64_t, std::uint64_t> equal[] = {
      {values(2.0f).identity(), values(3.0f).identity()},
      {values(0.0f).identity(), values(-0.0f).identity()},
      {values(2.0).identity(), values(0.5).identity()},
      {values(__float2half(2.0f)).identity(), values(__float2half(3.0f)).identity()},
      {values(p).identity(), values(q).identity()},
      {values(odd(p)).identity(), values(odd(q)).identity()},
      {values(p, q).identity(), values(q, p).identity()},
      {values(p, q, p).identity(), values(q, p, q).identity()},
      {values(p, 2.0f).identity(), values(q, 3.0f).identity()},
      {values(2.0f, 2.0f).identity(), values(2.0f, 3.0f).identity()},
      {values(null, null).identity(), values(null, null).identity()},
  };
  for (const auto& [a, b] : equal) EXPECT_EQ(a, b) << &a - &equal[0].first;
  const std::vector<std::vector<std::uint64_t>> different = {
      {values(0.0f).identity(), values(1.0f).identity(), values(2.0f).identity()},
      // The last two are 0 and 1 as floats.
      {values(0.0).identity(), values(1.0).identity(), values(2.0).identity(), values(1e-50).identity(),
       values(1 + 1e-12).identity()},
      {values(__float2half(0.0f)).identity(), values(__float2half(1.0f)).identity(),
       values(__float2half(2.0f)).identity()},
      {values(null).identity(), values(p).identity(), values(odd(p)).identity()},
      {values(p, q).identity(), values(p, p).identity(), values(p, null).identity(), values(null, p).identity()},
      {values(p, q, p).identity(), values(p, p, q).identity(), values(p, q, q).identity(), values(p, p, p).identity()},
      {values(0.0f, 1.0f).identity(), values(1.0f, 0.0f).identity(), values(0.0f, 0.0f).identity()},
  };
  for (std::vector<std::uint64_t> row : different) {
    EXPECT_EQ(std::count(row.begin(), row.end(), 0u), 0);
    std::sort(row.begin(), row.end());
    EXPECT_EQ(std::adjacent_find(row.begin(), row.end()), row.end());
  }
}

TEST_F(ValuesIdentityTest, ZeroAndOneHaveEntriesOfTheirOwn) {
  Cache cache;
  const auto run = [&](float beta) {
    const absl::StatusOr<Outcome> outcome = run_fill(cache, beta);
    expect_data(beta);
    return outcome;
  };
  for (const float beta : {1.0f, 0.5f, 0.0f}) EXPECT_RUN(kInstantiated, run(beta));
  EXPECT_EQ(cache.entries().size(), 3u);
  for (const float beta : {1.0f, 0.5f, 0.0f}) EXPECT_RUN(kReplayed, run(beta));
  EXPECT_CAPTURED(run(0.25f));
  EXPECT_RUN(kReplayed, run(1.0f));
  EXPECT_CAPTURED(run(0.75f));
  EXPECT_RUN(kReplayed, run(0.0f));
  EXPECT_RUN(kPatched, run(2.0f));
  EXPECT_EQ(cache.entries().size(), 3u);
}

TEST_F(ValuesIdentityTest, NullHasAnEntryOfItsOwn) {
  Cache cache;
  std::map<bool, int> runs;
  for (const int which : {-1, 0, -1, 1, 2, -1, 3, 4, -1}) {
    const float* const in = which < 0 ? nullptr : part(which);
    const absl::StatusOr<Outcome> outcome =
        cache.run(key("k"), stream, values(in), [&](cudaStream_t on, const float* from) {
          return launch(copy_or_fill, kGrid, kBlock, on, data.get(), from, kSize, -5.0f);
        });
    const int i = runs[in == nullptr]++;
    EXPECT_TRUE(in == nullptr && i > 0 ? did(Outcome::kReplayed, outcome) : learned(i, outcome));
    if (in == nullptr) {
      expect_data(-5);
    } else {
      expect_copy_of(in);
    }
  }
  EXPECT_EQ(cache.entries().size(), 2u);
}

TEST_F(ValuesIdentityTest, PointersThatAreEqualHaveAnEntryOfTheirOwn) {
  Cache cache;
  const std::vector<std::pair<int, int>> row = {{0, 1}, {2, 2}, {1, 3}, {3, 3}, {4, 0}, {5, 5}, {6, 7}, {8, 8}};
  int i = 0;
  for (const auto& [p, q] : row) {
    EXPECT_TRUE(learned(i++ / 2,
                        cache.run(key("k"), stream, values(part(p), part(q)), [&](cudaStream_t on, float* a, float* b) {
                          CUDA_OK(scale_to_data(on, a, 3.0f));
                          return launch(axpy, kGrid, kBlock, on, data.get(), b, kSize, 5.0f);
                        })));
    EXPECT_EQ(data.read(), elements([&, p = p, q = q](int e) {
                return 3 * (content(part(p)) + static_cast<float>(e)) + 5 * (content(part(q)) + static_cast<float>(e));
              }));
  }
  EXPECT_EQ(cache.entries().size(), 2u);
}

TEST_F(ValuesIdentityTest, EachKindOfMemoryHasAnEntryOfItsOwn) {
  constexpr std::size_t kBytes = 8 * kPart * sizeof(float);
  float *pinned = nullptr, *managed = nullptr;
  CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), kBytes));
  CUDA_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), kBytes, cudaMemAttachGlobal));
  for (float* const to : {pinned, managed}) CUDA_OK(cudaMemcpy(to, memory.get(), kBytes, cudaMemcpyDefault));
  ASSERT_EQ((reinterpret_cast<std::uintptr_t>(pinned) | reinterpret_cast<std::uintptr_t>(managed)) & 0xff, 0u);
  for (const bool copies : {false, true}) {
    SCOPED_TRACE(copies ? "the source of a copy" : "an argument of a kernel");
    Cache cache;
    for (int i = 0; i < 6; ++i) {
      for (const float* const base : {static_cast<const float*>(memory.get()), static_cast<const float*>(pinned),
                                      static_cast<const float*>(managed)}) {
        const float* const in = base + i * kPart;
        EXPECT_TRUE(learned(i, copies ? cache.run(key("k"), stream, values(in),
                                                  [&](cudaStream_t on, const float* from) {
                                                    return cudaMemcpyAsync(data.get(), from, data.bytes(),
                                                                           cudaMemcpyDefault, on);
                                                  })
                                      : run_scale(cache, in)))
            << i;
        expect_copy_of(part(i));
      }
    }
    EXPECT_EQ(cache.entries().size(), 3u);
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFree(managed));
}

TEST_F(ValuesIdentityTest, WhichPointerIsToOtherMemoryMatters) {
  Cache cache;
  PinnedBuffer<float> pinned(kPart);
  pinned.fill(7);
  float* const other = pinned.get();
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(other) & 0xff, 0u);
  for (const auto& [p, q] : {std::pair(part(1), part(2)), {other, part(2)}, {part(1), other}}) {
    EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, values(p, q), [&](cudaStream_t on, float* a, float* b) {
      CUDA_OK(scale_to_data(on, a, 1.0f));
      return launch(axpy, kGrid, kBlock, on, data.get(), b, kSize, 1.0f);
    }));
    EXPECT_EQ(data.first(), (p == other ? 7 : content(p)) + (q == other ? 7 : content(q)));
  }
  EXPECT_EQ(cache.entries().size(), 3u);
}

// As equally aligned as the pinned memory before it.
TEST_F(ValuesIdentityTest, CopiesFromPageableMemoryAreDirect) {
  constexpr std::size_t kBytes = kPart * sizeof(float);
  const auto aligned = [] { return static_cast<float*>(std::aligned_alloc(256, kBytes)); };
  const std::unique_ptr<float, decltype(&std::free)> one(aligned(), &std::free), other(aligned(), &std::free);
  PinnedBuffer<float> pinned(8 * kPart);
  for (const bool is_first : {true, false}) {
    Cache cache;
    int value = 0;
    const auto run = [&](float* from) {
      std::fill_n(from, kSize, static_cast<float>(++value));
      const absl::StatusOr<Outcome> outcome =
          cache.run(key("k"), stream, values(from), [&](cudaStream_t on, const float* source) {
            return cudaMemcpyAsync(data.get(), source, data.bytes(), cudaMemcpyHostToDevice, on);
          });
      expect_data(static_cast<float>(value));
      return outcome;
    };
    const auto run_pageable = [&] {
      for (int i = 0; i < 3; ++i) {
        EXPECT_RUN(kEager, run(one.get()));
        EXPECT_RUN(kEager, run(other.get()));
      }
    };
    if (is_first) run_pageable();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(learned(i, run(pinned.get() + i * kPart)));
    run_pageable();
    EXPECT_RUN(kPatched, run(pinned.get() + 5 * kPart));
  }
}

// Whichever of the values it is.
TEST_F(ValuesIdentityTest, TheKindOfMemoryOfEachValueCounts) {
  PinnedBuffer<float> pinned(kSize);
  std::vector<float> pageable(kSize, 3);
  std::fill_n(pinned.get(), kSize, 5.0f);
  for (std::size_t index = 0; index < 5; ++index) {
    Cache cache;
    const auto run = [&](const float* from) {
      std::array<const float*, 5> all;
      for (int i = 0; i < 5; ++i) all[static_cast<std::size_t>(i)] = part(20 + 2 * i);
      all[index] = from;
      return cache.run(
          key("k"), stream, values(all[0], all[1], all[2], all[3], all[4]),
          [&](cudaStream_t on, const float* a, const float* b, const float* c, const float* d, const float* e) {
            const std::array<const float*, 5> given{a, b, c, d, e};
            return cudaMemcpyAsync(data.get(), given[index], data.bytes(), cudaMemcpyDefault, on);
          });
    };
    for (int i = 0; i < 5; ++i) EXPECT_SUCCESS(run(part(2 * i)));
    EXPECT_RUN(kEager, run(pageable.data())) << index;
    expect_data(3);
    EXPECT_RUN(kInstantiated, run(pinned.get())) << index;
    expect_data(5);
  }
}

TEST_F(ValuesIdentityTest, PointersIntoABufferAndToItsEnd) {
  Cache cache;
  for (const int i : {0, 1, 2, 3, 10, kParts - 1, 4}) {
    const float v = number(i);
    const absl::StatusOr<Outcome> outcome =
        cache.run(key("k"), stream, values(part(i), static_cast<const float*>(part(i + 1)), v),
                  [](cudaStream_t on, float* begin, const float* end, float value) {
                    return launch(fill_range, kGrid, kBlock, on, begin, end, value);
                  });
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    // At the end of the memory is another allocation, or none.
    if (i < 4) {
      EXPECT_TRUE(learned(i, outcome));
    } else if (i != kParts - 1) {
      EXPECT_RUN(kPatched, outcome);
    }
    EXPECT_EQ(read(part(i), kPart), std::vector<float>(kPart, v));
    EXPECT_EQ(read(part(20), 1).front(), content(part(20)));
  }
}

TEST_F(ValuesIdentityTest, BeyondSixteenEntriesEachChangeIsCaptured) {
  constexpr int kMost = 16, kAll = 24;
  Cache cache;
  const auto expect_finding = [&] {
    const std::vector<Finding> findings = advise(cache);
    EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [](const Finding& one) {
      return one.kind == FindingKind::kValuesNotFound &&
             one.text.find("aligned or equal in too many ways") != std::string::npos;
    }));
  };
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < kAll; ++i) {
      SCOPED_TRACE(i);
      const float* const in = part(round == 3 ? 1 : 0) + i;  // In the last round, equally aligned ones.
      const absl::StatusOr<Outcome> outcome = run_scale(cache, in);
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_EQ(is_hit(*outcome), i < kMost && round != 0 && round != 3);
      expect_copy_of(in);
    }
    expect_finding();  // From the first round on, in which each run captures.
  }
  const std::vector<EntryInfo> entries = cache.entries();
  EXPECT_GE(entries.size(), 16u);
  EXPECT_LE(entries.size(), 17u);
  EXPECT_TRUE(
      std::any_of(entries.begin(), entries.end(), [](const EntryInfo& one) { return one.has_many_identities; }));
  // Another key is not concerned.
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(learned(i, run_fill(cache, key("other"), number(i))));
}

TEST_F(ValuesIdentityTest, ParamsAndValuesOfOneKeyHaveEntriesOfTheirOwn) {
  Cache cache;
  const auto fn = [&](Recorder& rec, auto v) {
    ++calls;
    rec.launch(fill, {kGrid, kBlock}, data.get(), kSize, v);
  };
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, params(2.0f), fn));
  EXPECT_RUN(kInstantiated, cache.run(key("k"), stream, values(3.0f), fn));
  expect_data(3);
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, params(2.0f), fn));
  expect_data(2);
  EXPECT_RUN(kPatched, cache.run(key("k"), stream, params(4.0f), fn));
  expect_data(4);
  EXPECT_RUN(kReplayed, cache.run(key("k"), stream, values(3.0f), fn));
  expect_data(3);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(cache.entries().size(), 2u);
}

}  // namespace
}  // namespace graphcache::test
