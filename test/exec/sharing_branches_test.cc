// Keys of graphs with branches that share executables, on either runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "sharing_support.h"

namespace graphcache::test {
namespace {

// Work on three streams that begin and end together and exchange data through boxes.
class BranchesTest : public SharingTest {
 protected:
  static constexpr int kStreams = 3, kBoxes = 6, kRegion = 32;

  struct Step {
    enum Kind { kBlend, kSet, kSend, kReceive } kind;
    int role;    // number of the stream
    int number;  // number of a box, or of the step
  };
  // The order in which one sibling enqueues the steps.
  struct Order {
    std::vector<Step> steps;
    std::array<int, kStreams> stream_of = {0, 1, 2}, joined = {0, 1, 2};
    int salt = 0;
    bool ends_apart = false;  // no kernel follows the join
  };

  int* region(int role) const { return at(kRegion * role); }
  int* box(int number) const { return at(kRegion * (kStreams + number)); }

  void enqueue(Recorder& rec, const Order& order, Slot<int> value) {
    const cudaStream_t streams[kStreams] = {rec.stream(), sides[0], sides[1]};
    rec.launch(blend, {kStreams, kRegion}, at(0), kRegion * kStreams, 3, order.salt);
    for (int i = 1; i < kStreams; ++i) let_follow(streams[i], streams[0]);
    for (const Step& step : order.steps) {
      const cudaStream_t s = streams[order.stream_of[static_cast<std::size_t>(step.role)]];
      int* const p = region(step.role);
      switch (step.kind) {
        case Step::kBlend:
          rec.on(s).launch(blend, {1 + static_cast<unsigned>(order.salt) % 3, 8}, p, kRegion,
                           5 + 2 * (step.number + order.salt), step.role == 1 ? Arg<int>(value) : Arg<int>(order.salt));
          break;
        case Step::kSet:
          CUDA_OK(cudaMemsetAsync(p + step.number, order.salt, 8, s));
          break;
        case Step::kSend:
          CUDA_OK(cudaMemcpyAsync(box(step.number), p, kRegion * sizeof(int), cudaMemcpyDeviceToDevice, s));
          CUDA_OK(cudaEventRecord(sent[static_cast<std::size_t>(step.number)], s));
          break;
        case Step::kReceive:
          CUDA_OK(cudaStreamWaitEvent(s, sent[static_cast<std::size_t>(step.number)], 0));
          CUDA_OK(launch(blend_in, 1, kRegion, s, p, box(step.number), kRegion, 7 + order.salt));
          break;
      }
    }
    for (const int i : order.joined) {
      if (i != 0) let_follow(streams[0], streams[i]);
    }
    if (!order.ends_apart) rec.launch(blend, {kStreams, kRegion}, at(0), kRegion * kStreams, 9, order.salt);
  }

  absl::StatusOr<Outcome> run_order(const char* name, const Order& order) {
    return run(key(name), params(++runs), [&](Recorder& rec, Slot<int> value) { enqueue(rec, order, value); });
  }

  Stream sides[kStreams - 1];
  std::array<Event, kBoxes> sent;
  int runs = 0;
};

TEST_F(BranchesTest, SymmetricBranchesInEitherOrder) {
  const std::vector<Step> there = {
      {Step::kBlend, 1, 1}, {Step::kBlend, 1, 2}, {Step::kBlend, 2, 3}, {Step::kBlend, 2, 4}};
  const std::vector<Step> back = {there[2], there[3], there[0], there[1]};
  const std::vector<Step> mixed = {there[2], there[0], there[1], there[3]};
  const Order orders[] = {{.steps = there, .salt = 1},
                          {.steps = there, .salt = 2},
                          {.steps = back, .salt = 3},
                          {.steps = back, .joined = {0, 2, 1}, .salt = 4},
                          {.steps = there, .joined = {0, 2, 1}, .salt = 5},
                          {.steps = mixed, .salt = 6},
                          {.steps = there, .stream_of = {0, 2, 1}, .salt = 7},
                          {.steps = back, .stream_of = {1, 0, 2}, .salt = 8}};
  for (Order a : orders) {
    for (Order b : orders) {
      use(at_most(1, Sharing::kUpdatesAcross));
      for (int i = 0; i < 6; ++i) {
        a.ends_apart = b.ends_apart = i >= 3;
        if (i == 3) cache->clear();
        EXPECT_SUCCESS(run_order("a", a)) << a.salt << " to " << b.salt;
        EXPECT_SUCCESS(run_order("b", b)) << a.salt << " to " << b.salt;
      }
      EXPECT_EQ(calls, 4u);
      EXPECT_EQ(cache->stats().capture_failures, 0u);
    }
  }
  use(at_most(1));
  EXPECT_RUN(kInstantiated, run_order("a", orders[0]));
  EXPECT_RUN(kUpdated, run_order("b", orders[1]));  // only values differ
  EXPECT_RUN(kSwitched, run_order("a", orders[0]));
}

TEST_F(BranchesTest, RandomGraphsAndTheirSiblings) {
  std::uint64_t shared = 0, refusals = 0;
  for (unsigned number = 0; number < 100; ++number) {
    SCOPED_TRACE(number);
    std::mt19937 random(number);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Order a;
    int boxes = 0;
    std::vector<std::pair<int, int>> open;  // boxes that were sent, and the sending streams
    for (int i = 3 + below(12); i > 0; --i) {
      const int role = below(kStreams);
      const int kind = below(6);
      if (kind == 0) {
        a.steps.push_back({Step::kSet, role, below(kRegion - 2)});
      } else if (kind == 1 && boxes < kBoxes) {
        a.steps.push_back({Step::kSend, role, boxes});
        open.emplace_back(boxes++, role);
      } else if (kind == 2 && !open.empty() && open.front().second != role) {
        a.steps.push_back({Step::kReceive, role, open.front().first});
        open.erase(open.begin());
      } else {
        a.steps.push_back({Step::kBlend, role, below(100)});
      }
    }
    a.salt = 1;
    a.ends_apart = number % 8 >= 4;
    Order b = a;
    b.salt = 2 + below(50);
    if (number % 4 >= 1) {  // in another order that gives each stream the same steps
      std::array<std::vector<Step>, kStreams> left;
      for (const Step& step : a.steps) left[static_cast<std::size_t>(step.role)].push_back(step);
      std::set<int> sent_already;
      b.steps.clear();
      while (b.steps.size() < a.steps.size()) {
        std::vector<Step>& of_one = left[static_cast<std::size_t>(below(kStreams))];
        if (of_one.empty()) continue;
        const Step next = of_one.front();
        if (next.kind == Step::kReceive && sent_already.count(next.number) == 0) continue;
        if (next.kind == Step::kSend) sent_already.insert(next.number);
        b.steps.push_back(next);
        of_one.erase(of_one.begin());
      }
    }
    if (number % 4 >= 2) std::shuffle(b.joined.begin(), b.joined.end(), random);
    if (number % 4 >= 3) std::shuffle(b.stream_of.begin(), b.stream_of.end(), random);
    use(at_most(1, Sharing::kUpdatesAcross));
    for (int i = 0; i < 3; ++i) {
      EXPECT_SUCCESS(run_order("a", a));
      EXPECT_SUCCESS(run_order("b", b));
    }
    const Stats stats = cache->stats();
    EXPECT_EQ(stats.captures, 2u);
    if (number % 4 == 0) {
      EXPECT_EQ(stats.families, 1u);
      EXPECT_EQ(stats.refused_updates, 0u);
    }
    shared += stats.families == 1 ? 1 : 0;
    refusals += stats.refused_updates;
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GE(shared, 25u);
  RecordProperty("shared", static_cast<int>(shared));
  RecordProperty("refused", static_cast<int>(refusals));
}

}  // namespace
}  // namespace graphcache::test
