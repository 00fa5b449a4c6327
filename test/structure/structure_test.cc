// The library's check of its own structures: each test introduces a fault, expects that it is named, and repairs it.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "structure/checks.h"
#include "support.h"

namespace graphcache::test {
namespace {

constexpr int kSize = 8;
constexpr dim3 kGrid(1), kBlock(8);

template <class T>
T exchanged(T& place, std::type_identity_t<T> value) {
  return std::exchange(place, std::move(value));
}
template <class T>
T exchanged(std::atomic<T>& place, std::type_identity_t<T> value) {
  return place.exchange(value);
}

// Changes a value until the end of the scope.
template <class Place>
class Wrong {
 public:
  using Value = decltype(exchanged(std::declval<Place&>(), {}));

  Wrong(Place& place, Value value) : place_(place), right_(exchanged(place, std::move(value))) {}
  ~Wrong() { place_ = right_; }
  Wrong(const Wrong&) = delete;
  Wrong& operator=(const Wrong&) = delete;

 private:
  Place& place_;
  const Value right_;
};

// A cache with two keys that have an executable and are siblings of a third, which has only a template; and a key that
// has nothing, because its capture breaks.
class StructureTest : public StreamTest, protected StructureChecker {
 protected:
  static auto body(int constant) {
    return [constant](Recorder& rec, Slot<int> value) {
      rec.launch(blend, {kGrid, kBlock}, memory(), kSize, constant, value);
      rec.launch(blend, {kGrid, kBlock}, memory(), kSize, constant, 1);
    };
  }
  StructureTest() {
    run("shared", 1);
    run("other", 2);
    EXPECT_TRUE(cache.warm(key("sibling"), stream, params(1), body(3)).ok());
    EXPECT_RUN(kEager, cache.run(key("broken"), stream, [](cudaStream_t s) { return cudaStreamSynchronize(s); }));
    EXPECT_EQ(find_fault(), "");
    EXPECT_EQ(entry("shared").state, State::kLive);
    EXPECT_EQ(entry("other").state, State::kLive);
    EXPECT_EQ(entry("sibling").state, State::kRecorded);
    EXPECT_EQ(entry("broken").state, State::kCold);
    EXPECT_EQ(entry("shared").signature, entry("sibling").signature);
  }
  ~StructureTest() override { EXPECT_EQ(find_fault(), "") << "a test has left its fault behind"; }

  void run(const char* name, int constant) {
    if (std::string(name) != "other") {
      EXPECT_TRUE(cache.run(key(name), stream, params(1), body(constant)).ok());
      return;
    }
    const auto otherwise = [constant](Recorder& rec) {
      rec.launch(blend, {kGrid, kBlock}, memory(), kSize, constant, 7);
    };
    EXPECT_TRUE(cache.run(key(name), stream, otherwise).ok());
  }
  static int* memory() {
    static int memory[kSize];
    return memory;
  }

  Entry& entry(const char* name) { return *index(cache).find(key(name)); }
  std::string find_fault() const { return StructureChecker::find_fault(cache); }
  testing::AssertionResult finds(const std::string& what) const {
    const std::string fault = find_fault();
    if (fault.find(what) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "found \"" << fault << "\", wanted \"" << what << "\"";
  }
  // Changes a field of an entry and expects the fault.
  template <class Place, class Value>
  void expect(const std::string& what, Place& place, Value value) {
    const Wrong<Place> wrong(place, static_cast<typename Wrong<Place>::Value>(value));
    EXPECT_TRUE(finds(what));
  }

  Cache cache{{.max_executables = 2}};
};

TEST_F(StructureTest, OrdersOfUse) {
  EXPECT_TRUE(cache.warm(key("another sibling"), stream, params(1), body(4)).ok());
  Entry& newest = entry("another sibling");
  Entry& oldest = entry("sibling");
  ASSERT_EQ(newest.state, State::kRecorded);
  expect("it is in the order of another state", oldest.state, State::kLive);
  expect("the order of use is linked wrongly", oldest.newer, nullptr);
  expect("the order of recorded entries ends elsewhere than it says", newest.older, nullptr);
  expect("the order of recorded entries is longer than it says", oldest.older, &newest);
  expect("its id is another's", newest.id, oldest.id);
}

TEST_F(StructureTest, ParameterTable) {
  Entry& here = entry("other");
  expect("the table holds more entries", here.next_of_bucket, &here);
  Key& name = const_cast<Key&>(here.key);
  Key of_another_bucket;
  for (int i = 0; (of_another_bucket.hash() ^ name.hash()) % 256 == 0; ++i) of_another_bucket = key(i);
  expect("it is not in the table", name, of_another_bucket);
  detail::Site& site = const_cast<detail::Site&>(here.site);
  run("shared", 1);
  EXPECT_TRUE(cache.run(key("other"), stream, [](cudaStream_t) {}).ok());  // the same key at another place
  Entry& there = entry("other");
  ASSERT_EQ(Index::next_of_key(&there), &here);
  expect("its tag is another's", site, there.site);
  expect("it is not in the table", there.next_of_bucket, nullptr);
}

TEST_F(StructureTest, ErasedEntries) {
  expect("it is erased, and in the table", entry("other").erased, true);
  const auto erase_it = [&](cudaStream_t) {
    Entry& busy = entry("busy");
    EXPECT_TRUE(cache.erase(key("busy")));
    EXPECT_EQ(find_fault(), "");
    expect("it is not erased, and waits for a sweep", busy.erased, false);
    policy(cache).pinned(busy.id, false);
    EXPECT_TRUE(finds("it is erased, and may lose its executable"));
    policy(cache).pinned(busy.id, true);
  };
  EXPECT_TRUE(cache.run(key("busy"), stream, erase_it).ok());
}

TEST_F(StructureTest, Siblings) {
  Signatures::value_type* const known = entry("shared").signature;
  expect("it has a signature", entry("broken").signature, known);
  expect("it has a family and no signature", entry("sibling").signature, nullptr);
  expect("a signature counts its entries wrongly", known->second, 3);
  std::shared_ptr<Content>& content = recorded(entry("sibling")).content;
  auto otherwise = std::make_shared<Content>(*content);
  otherwise->nodes[1].type = cudaGraphNodeTypeMemset;
  expect("its nodes are of other types than its siblings'", content, otherwise);
  otherwise->nodes.clear();
  expect("its nodes have not been read", content, otherwise);
}

TEST_F(StructureTest, Budgets) {
  Options& options = const_cast<Options&>(cache.options());
  expect("there are more executables than the options allow", options.max_executables, 1);
  expect("executables take more device memory than the options allow", options.max_device_bytes, 1000);
}

TEST_F(StructureTest, KnowledgeOfThePolicy) {
  Policy& known = policy(cache);
  known.lost(entry("other").id);
  EXPECT_TRUE(finds("the policy knows another state"));
  Plan anew;
  anew.action = Plan::Action::kOwn;
  anew.writes_slots = true;
  known.done(entry("other").id, anew);
  EXPECT_TRUE(finds("the policy does not know whether it has an updater node"));
  known.refuse_device_updates(entry("other").id);
  EXPECT_EQ(find_fault(), "");
  anew.action = Plan::Action::kTable;
  known.lost(entry("shared").id);
  known.done(entry("shared").id, anew);
  EXPECT_TRUE(finds("the policy does not know whether it has a table"));
  known.refuse_device_updates(entry("shared").id);
  EXPECT_EQ(find_fault(), "");
}

TEST_F(StructureTest, ContentsOfEntries) {
  Entry& live = entry("shared");
  Entry& sibling = entry("sibling");
  Entry& cold = entry("broken");
  auto& executable = recorded(live).executable;
  {
    std::unique_ptr<Executable> moved = std::move(executable);
    EXPECT_TRUE(finds("live: it has no executable"));
    recorded(sibling).executable = std::move(moved);
    EXPECT_TRUE(finds("recorded: it has an executable"));
    executable = std::move(recorded(sibling).executable);
  }
  cold.graphs = std::make_unique<Recorded>();
  EXPECT_TRUE(finds("cold: it has a template"));
  cold.graphs.reset();
  std::unique_ptr<EntryGraphs> graphs = std::move(sibling.graphs);
  EXPECT_TRUE(finds("recorded: it has no content"));
  sibling.graphs = std::move(graphs);
  {
    Template moved = std::exchange(recorded(sibling).graph, {});
    EXPECT_TRUE(finds("recorded: it has no template"));
    recorded(sibling).graph = std::move(moved);
    Wrong wrong(recorded(sibling).graph.nodes, {});
    EXPECT_TRUE(finds("its template is that of another content"));
  }
  expect("it does not report its content", sibling.info.nodes, 7);
  expect("its executable holds another's content", recorded(live).content, recorded(sibling).content);
}

TEST_F(StructureTest, ContentsOfExecutables) {
  Executable& executable = *executable_of(entry("shared"));
  {
    GraphExec gone = std::move(exec(executable));
    EXPECT_TRUE(finds("its executable has no handle"));
    exec(executable) = std::move(gone);
    Template moved = std::exchange(base(executable), {});
    EXPECT_TRUE(finds("its executable has no base"));
    base(executable) = std::move(moved);
  }
  {
    Wrong wrong(base(executable).nodes, {});
    EXPECT_TRUE(finds("the base of its executable is of another topology"));
  }
  {
    Wrong wrong(slots(executable).nodes, {});
    EXPECT_TRUE(finds("the shadow of its executable is of another content"));
  }
  unsigned char& byte = slots(executable).fields[slots(executable).bindings[0].target];
  expect("its executable holds other values than it says", byte, byte + 1);
}

TEST_F(StructureTest, HandlesHaveOneOwnerAndAreAlive) {
  const auto expect_two_owners = [&](const char* fault, auto& handle, auto& another) {
    using Handle = std::remove_reference_t<decltype(handle)>;
    const auto kept = handle.release();
    handle = Handle(another.get());
    EXPECT_TRUE(finds(fault));
    handle.release();
    handle = Handle(kept);
  };
  Executable& first = *executable_of(entry("shared"));
  Executable& second = *executable_of(entry("other"));
  expect_two_owners("a graph has two owners", base(first).graph, base(second).graph);
  expect_two_owners("its executable has two owners", exec(first), exec(second));
}

TEST_F(StructureTest, HandlesAreAlive) {
  const std::size_t graphs = hostrt::ledger().graphs;
  OwnedGraph& graph = recorded(entry("sibling")).graph.graph;
  const cudaGraph_t gone = graph.get();
  CUDA_OK(cudaGraphDestroy(gone));
  ASSERT_EQ(hostrt::ledger().graphs, graphs - 1);
  EXPECT_TRUE(finds("graphs 2 are alive"));
  cudaGraph_t another = nullptr;
  CUDA_OK(cudaGraphCreate(&another, 0));
  graph.release();
  graph = OwnedGraph(another);

  GraphExec& exec_of_other = exec(*executable_of(entry("other")));
  CUDA_OK(cudaGraphExecDestroy(exec_of_other.get()));
  EXPECT_TRUE(finds("of 2 executables 1 are alive"));
  cudaGraphExec_t new_exec = nullptr;
  CUDA_OK(cudaGraphInstantiate(&new_exec, base(*executable_of(entry("other"))).graph.get(), 0));
  exec_of_other.release();
  exec_of_other = GraphExec(new_exec);
  entry("other").exec = nullptr;
}

TEST_F(StructureTest, Counters) {
  Stats& counted = totals(cache);
  expect("there are more misses than captures", counted.captures, 1);
  expect("more runs brought an executable than were instantiated", counted.instantiations, 1);
  expect("more templates exist or were dropped than captures were made", counted.forgotten, 1);
  expect("more templates exist or were dropped than captures were made", counted.captures, 2);
  std::uint64_t& counted_runs = entry("other").counted.outcomes[static_cast<int>(Outcome::kReplayed)];
  expect("the cache has counted more runs", counted_runs, counted_runs + 5);
  Counter& of_sibling = entry("sibling").outcomes[static_cast<int>(Outcome::kReplayed)];
  of_sibling.add(1);
  EXPECT_TRUE(finds("the cache has not counted its runs"));
  of_sibling = 0;

  Cache other;
  EXPECT_TRUE(other.warm(key("warm"), stream, params(1), body(1)).ok());
  const Wrong wrong(totals(other).instantiations, std::uint64_t{0});
  EXPECT_EQ(StructureChecker::find_fault(other), "more executables live than were instantiated");
}

TEST_F(StructureTest, LaunchesOfHits) {
  run("other", 1);
  Entry& here = entry("other");
  ASSERT_NE(here.exec, nullptr);
  expect("hits launch another executable", here.exec, executable_of(entry("shared"))->exec());
  expect("on another stream than its last launch", here.ready_on, cudaStreamLegacy);
  expect("hits launch another executable", entry("sibling").exec, here.exec);
}

// A run that fails before it has any work to do finds surplus entries all the same.
TEST_F(StructureTest, EntriesOfRunsThatFailEarlyAreUsedAgain) {
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  for (std::size_t i = 0; i < Index::kMaxColdEntries + 500; ++i)
    EXPECT_FALSE(cache.run(key("fails", i), stream, [](cudaStream_t) {}).ok());
  end_capture(stream);
  EXPECT_LE(index(cache).next_id(), Index::kMaxColdEntries + 100);
}

TEST_F(StructureTest, AFaultEndsTheProcess) {
  const Wrong wrong(entry("other").ready_on, cudaStreamLegacy);
  EXPECT_DEATH(StructureChecker::check(cache),
               "graphcache: the cache is not in order: entry .*on another stream than its last launch");
}

}  // namespace
}  // namespace graphcache::test
