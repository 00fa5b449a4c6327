// Structures of 1 to 4,000 bytes at many offsets, as slots and as constants that differ between keys, on either
// runtime. A device writes them in pieces that have an alignment to keep (docs/semantics.md, "What a kernel writes into
// nodes").
#include "structures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "size.h"
#include "support.h"

namespace graphcache::test {
namespace {

constexpr unsigned kMaxSize = 4000, kMaxLead = 32;
constexpr unsigned kMaxNode = kMaxLead + kMaxSize + 1;  // bytes that a node writes

// Where the nodes take their structure from.
enum class From { kSlot, kConstant, kBoth };
// Which of a row's two kernels the nodes launch.
enum class Kernels { kOne, kOther, kBoth };

bool takes_slot(From from, int node) { return from == From::kSlot || (from == From::kBoth && node / 2 % 2 == 0); }
bool takes_other(Kernels kernels, int node) {
  return kernels == Kernels::kOther || (kernels == Kernels::kBoth && node % 2 != 0);
}

// The values of a run.
struct Values {
  unsigned char before, after;
  unsigned char slot[kMaxSize];
};

struct Request {
  Cache* cache;
  cudaStream_t stream;
  int key;
  int nodes;
  From from;
  Kernels kernels;
  unsigned char lead[kMaxLead];
  unsigned char constant[kMaxSize];
  unsigned char* out;
};

template <class T>
T read(const unsigned char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <unsigned kLead, class T>
void take(Recorder& rec, const unsigned char* lead, const Arg<T>& value, Slot<unsigned char> after,
          unsigned char* out) {
  const StructureKernel<kLead, T> kernel = structure_kernel<kLead, T>();
  if constexpr (kLead == 0) {
    rec.launch(kernel, {1, 32}, value, after, out);
  } else {
    rec.launch(kernel, {1, 32}, read<Bytes<kLead>>(lead), value, after, out);
  }
}

template <unsigned kSize, unsigned kAlignment, unsigned kLead, unsigned kOtherLead, unsigned kBefore>
absl::StatusOr<Outcome> run_row(const Request& request, const Values& values) {
  using T = Bytes<kSize, kAlignment>;
  Bytes<kBefore> before;
  std::memset(&before, values.before, sizeof before);
  return request.cache->run(key("structure", kSize, kAlignment, request.key), request.stream,
                            params(before, read<T>(values.slot), values.after),
                            [&](Recorder& rec, Slot<Bytes<kBefore>>, Slot<T> slot, Slot<unsigned char> after) {
                              unsigned char* out = request.out;
                              for (int i = 0; i < request.nodes; ++i) {
                                const Arg<T> value =
                                    takes_slot(request.from, i) ? Arg<T>(slot) : Arg<T>(read<T>(request.constant));
                                const bool other = takes_other(request.kernels, i);
                                if (other) {
                                  take<kOtherLead, T>(rec, request.lead, value, after, out);
                                } else {
                                  take<kLead, T>(rec, request.lead, value, after, out);
                                }
                                out += (other ? kOtherLead : kLead) + kSize + 1;
                              }
                            });
}

struct Row {
  unsigned size, alignment, lead, other_lead;
  absl::StatusOr<Outcome> (*run)(const Request&, const Values&);

  std::string name() const {
    return std::to_string(size) + " bytes, alignment " + std::to_string(alignment) + ", behind " +
           std::to_string(lead) + " or " + std::to_string(other_lead) + " bytes";
  }
  unsigned offset(unsigned behind) const { return (behind + alignment - 1) / alignment * alignment; }
};

const Row kRows[] = {
#define GRAPHCACHE_TEST_ROW(size, alignment, lead, other_lead, before) \
  {size, alignment, lead, other_lead, &run_row<size, alignment, lead, other_lead, before>},
    GRAPHCACHE_TEST_STRUCTURES(GRAPHCACHE_TEST_ROW)
#undef GRAPHCACHE_TEST_ROW
};

// All rows in full size; otherwise one or two for each size.
std::vector<const Row*> chosen_rows() {
  std::mt19937 random(4);
  std::vector<const Row*> all;
  for (const Row* row = std::begin(kRows); row != std::end(kRows);) {
    const Row* const next = std::find_if(row, std::end(kRows), [&](const Row& r) { return r.size != row->size; });
    std::vector<const Row*> of_size;
    for (; row != next; ++row) of_size.push_back(row);
    std::shuffle(of_size.begin(), of_size.end(), random);
    of_size.resize(std::min(of_size.size(), by_size<std::size_t>(1, 2, of_size.size())));
    all.insert(all.end(), of_size.begin(), of_size.end());
  }
  return all;
}

class StructuresTest : public StreamTest {
 protected:
  static constexpr int kNodes = 30;  // By default, the device writes into that many.

  Request request_for(Cache& cache, From from, Kernels kernels, int nodes) {
    Request request{};
    request.cache = &cache;
    request.stream = stream;
    request.nodes = nodes;
    request.from = from;
    request.kernels = kernels;
    fill_at_random(request.lead);
    fill_at_random(request.constant);
    request.out = out.get();
    return request;
  }

  template <class T>
  void fill_at_random(T& bytes) {
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  }
  unsigned below(unsigned limit) { return static_cast<unsigned>(random() % limit); }

  // Another value for one byte, where a piece begins or ends as often as elsewhere.
  void change_byte(unsigned char* bytes, unsigned size) {
    unsigned at = below(size);
    if (below(2) == 0) at = std::min(size - 1, at / 8 * 8 + (below(2) == 0 ? 0 : 7));
    bytes[at] = static_cast<unsigned char>(bytes[at] + 1 + below(255));
  }

  // Runs, and compares all bytes that the nodes wrote.
  absl::StatusOr<Outcome> run(const Row& row, const Request& request, const Values& values) {
    CUDA_OK(cudaMemsetAsync(out.get(), 0x5a, out.bytes(), stream));
    const absl::StatusOr<Outcome> outcome = row.run(request, values);
    EXPECT_SUCCESS(outcome);
    std::vector<unsigned char> wanted;
    for (int i = 0; i < request.nodes; ++i) {
      const unsigned lead = takes_other(request.kernels, i) ? row.other_lead : row.lead;
      const unsigned char* const value = takes_slot(request.from, i) ? values.slot : request.constant;
      wanted.insert(wanted.end(), request.lead, request.lead + lead);
      wanted.insert(wanted.end(), value, value + row.size);
      wanted.push_back(values.after);
    }
    const std::vector<unsigned char> got = out.read();
    const auto differ = std::mismatch(wanted.begin(), wanted.end(), got.begin());
    EXPECT_TRUE(differ.first == wanted.end()) << "byte " << differ.first - wanted.begin() << " of " << wanted.size();
    return outcome;
  }

  // Runs of one key: new values, the same, a byte after the structure, a byte of it, the value before it in params().
  void expect_patches(const Options& options, const Row& row, Kernels kernels) {
    SCOPED_TRACE(testing::Message() << row.name() << ", kernels " << static_cast<int>(kernels));
    Cache cache(options);
    const Request request = request_for(cache, From::kSlot, kernels, kNodes);
    Values values{};
    for (int i = 0; i < 3; ++i) {
      fill_at_random(values.slot);
      values.after = static_cast<unsigned char>(i);
      EXPECT_TRUE(did(i == 0 ? Outcome::kInstantiated : Outcome::kPatched, run(row, request, values)));
    }
    EXPECT_RUN(kReplayed, run(row, request, values));
    values.after = 99;
    EXPECT_RUN(kPatched, run(row, request, values));
    for (int i = 0; i < 3; ++i) {
      change_byte(values.slot, row.size);
      EXPECT_RUN(kPatched, run(row, request, values));
    }
    values.before = 1;
    ASSERT_SUCCESS(run(row, request, values));
    EXPECT_EQ(cache.stats().refused_device_updates, 0u);
  }
  void expect_patches(Patching patching, Kernels kernels) {
    SCOPED_TRACE(testing::Message() << "patching " << static_cast<int>(patching));
    const Options options = forced(patching);
    for (const Row* row : chosen_rows()) {
      expect_patches(options, *row, kernels);
      if (HasFailure()) return;
    }
  }

  // Keys that differ in the constants of their nodes take turns by a table.
  void expect_switches(const Row& row, From from) {
    constexpr int kKeys = 4, kTableNodes = 6, kRounds = 3;
    SCOPED_TRACE(testing::Message() << row.name() << ", from " << static_cast<int>(from));
    Cache cache(forced(Sharing::kTable, {.max_executables = 2}));
    std::vector<Request> requests(kKeys, request_for(cache, from, Kernels::kBoth, kTableNodes));
    for (int i = 1; i < kKeys; ++i) {
      requests[i].key = i;
      // Many pieces differ, or one.
      if (i == 1) fill_at_random(requests[i].constant);
      change_byte(requests[i].constant, row.size);
      change_byte(requests[i].lead, kMaxLead);
    }
    Values values{};
    for (int round = 0; round < kRounds; ++round) {
      for (const Request& request : requests) {
        if (below(2) == 0) fill_at_random(values.slot);
        if (below(2) == 0) change_byte(values.slot, row.size);
        if (below(2) == 0) values.after = static_cast<unsigned char>(random());
        ASSERT_SUCCESS(run(row, request, values));
      }
    }
    EXPECT_EQ(cache.stats().instantiations, 1u);
    EXPECT_EQ(cache.stats().set_switches, kKeys * kRounds - 1u);
    EXPECT_EQ(cache.stats().refused_device_updates, 0u);
  }
  void expect_switches(From from) {
    for (const Row* row : chosen_rows()) {
      expect_switches(*row, from);
      if (HasFailure()) return;
    }
  }

  std::mt19937 random{7};
  DeviceBuffer<unsigned char> out{kNodes * kMaxNode};
};

// Also of those that pieces cut, which are the ones with an alignment to keep.
TEST_F(StructuresTest, TheChosenRowsHaveEverySizeAndEveryResidue) {
  std::set<unsigned> sizes, all_sizes, alignments, residues, residues_of_cut;
  for (const Row& row : kRows) all_sizes.insert(row.size);
  for (const Row* row : chosen_rows()) {
    sizes.insert(row->size);
    alignments.insert(row->alignment);
    for (const unsigned lead : {row->lead, row->other_lead}) {
      residues.insert(row->offset(lead) % 8);
      if (row->size > 32) residues_of_cut.insert(row->offset(lead) % 8);
    }
  }
  const std::set<unsigned> every = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(sizes, all_sizes);
  EXPECT_EQ(alignments, (std::set<unsigned>{1, 2, 4, 8, 16}));
  EXPECT_EQ(residues, every);
  EXPECT_EQ(residues_of_cut, every);
}

TEST_F(StructuresTest, AreWrittenByTheDeviceOrByTheHost) {
  for (const Patching patching : {Patching::kAuto, Patching::kDeviceUpdated}) {
    // Of the last, a slot goes to two kernels at two offsets.
    for (const Kernels kernels : {Kernels::kOne, Kernels::kOther, Kernels::kBoth}) expect_patches(patching, kernels);
  }
  expect_patches(Patching::kPerNode, Kernels::kBoth);
}

TEST_F(StructuresTest, AreSlotsAndConstantsThatDifferBetweenKeysOfATable) {
  for (const From from : {From::kSlot, From::kConstant, From::kBoth}) expect_switches(from);
}

// ---- Classes --------------------------------------------------------------------------------------------------------

// What a kernel does with its arguments in a captured run, in a hit, and in a direct run.
class ClassesTest : public StreamTest {
 protected:
  template <class Fn>
  void expect_in_all_runs(const std::vector<float>& wanted, Fn fn) {
    Cache captured;
    for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
      out.write(std::vector<float>(kSize, -7.0f));
      ASSERT_TRUE(did(outcome, captured.run(key("k"), stream, fn)));
      expect(wanted);
    }
    Cache direct({.max_executables = 0});
    out.write(std::vector<float>(kSize, -7.0f));
    ASSERT_TRUE(did(Outcome::kEager, direct.run(key("k"), stream, fn)));
    expect(wanted);
  }
  void expect(const std::vector<float>& wanted) {
    const std::vector<float> got = out.read();
    EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(wanted.size())), wanted);
  }

  static constexpr std::size_t kSize = 8;
  DeviceBuffer<float> out{kSize};
};

TEST_F(ClassesTest, APairIsPassed) {
  expect_in_all_runs({3.0f, 0.5f}, [&](Recorder& rec) {
    rec.launch(take_pair, {1, 1}, std::make_pair(short{3}, 0.5f), out.get());  // converts
  });
}

TEST_F(ClassesTest, AViewIsCopiedOnceAndDestroyedBehindTheLaunch) {
  int alive = 0;
  {
    const View view(out.get(), &alive);
    expect_in_all_runs({1.0f}, [&](Recorder& rec) {
      rec.launch(take_view, {1, 1}, view);
      EXPECT_EQ(alive, 1);
    });
    // As a direct launch does.
    CUDA_OK(launch(take_view, 1, 1, stream, view));
    expect({1.0f});
    Cache cache;
    EXPECT_RUN(kInstantiated, cache.run(key("made for the launch"), stream, [&](Recorder& rec) {
      rec.launch(take_view, {1, 1}, View(out.get(), &alive));
    }));
  }
  EXPECT_EQ(alive, 0);
}

TEST_F(ClassesTest, EachThreadHasAParameterOfItsOwn) {
  int alive = 0;
  const View view(out.get(), &alive);
  expect_in_all_runs({11.0f, 11.0f}, [&](Recorder& rec) { rec.launch(change_view, {1, 2}, view, out.get()); });
}

TEST_F(ClassesTest, WhatCanOnlyBeMovedIsMoved) {
  expect_in_all_runs({5.0f, 1.0f}, [&](Recorder& rec) { rec.launch(take_ticket, {1, 1}, Ticket(5), out.get()); });
}

TEST_F(ClassesTest, AnIteratorFollowsItsSlotsNeighbour) {
  const DeviceBuffer<float> in(std::vector<float>{1, 2, 3, 4, 5, 6});
  Cache cache;
  for (const int count : {3, 2, 1}) {
    out.write(std::vector<float>(kSize, -7.0f));
    const auto outcome = cache.run(key("k"), stream, params(count), [&](Recorder& rec, Slot<int> n) {
      rec.launch(take_iterator, {1, 32}, StridedIterator(in.get(), 2, 0.5f), n, out.get());
    });
    EXPECT_TRUE(did(count == 3 ? Outcome::kInstantiated : Outcome::kPatched, outcome));
    std::vector<float> wanted = {1.5f, 3.5f, 5.5f};
    std::fill(wanted.begin() + count, wanted.end(), -7.0f);
    expect(wanted);
  }
}

TEST_F(ClassesTest, PairsOfHalvesArePassed) {
  expect_in_all_runs({1.5f, -2.0f, 0.25f, 8.0f}, [&](Recorder& rec) {
    rec.launch(take_halves, {1, 1}, __floats2half2_rn(1.5f, -2.0f), __floats2bfloat162_rn(0.25f, 8.0f), out.get());
  });
}

// A __half2 is not trivially copyable; what it is made of is.
TEST_F(ClassesTest, ASlotMayBecomeAClassThatIsNotTriviallyCopyable) {
  Cache cache;
  for (const float value : {1.0f, 2.0f, 2.0f, 3.0f}) {
    const __half2_raw halves = __floats2half2_rn(value, -value);
    ASSERT_SUCCESS(cache.run(key("k"), stream, params(halves), [&](Recorder& rec, Slot<__half2_raw> slot) {
      rec.launch(take_halves, {1, 1}, slot, __floats2bfloat162_rn(4.0f, 5.0f), out.get());
    }));
    expect({value, -value, 4.0f, 5.0f});
  }
  EXPECT_EQ(cache.stats().captures, 1u);
}

TEST_F(ClassesTest, AnArgumentIsConvertedAsInACall) {
  expect_in_all_runs({2.0f}, [&](Recorder& rec) { rec.launch(take_rounded, {1, 1}, 2.75, out.get()); });
  CUDA_OK(launch(take_rounded, 1, 1, stream, 3.75, out.get()));
  expect({3.0f});
}

TEST_F(ClassesTest, EmptyClassesNullAndEnumerationsArePassed) {
  expect_in_all_runs({1.0f, static_cast<float>('b'), -1.0f}, [&](Recorder& rec) {
    rec.launch(take_plain, {1, 1}, Nothing(), true, Letter::kB, nullptr, nullptr, out.get());
  });
}

}  // namespace
}  // namespace graphcache::test
