// Two threads that use graphs which were cloned from one another, embedded as child graphs or instantiated. Making and
// destroying one writes to another, which no handle of the call names (facts 35).

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "hostrt_misuse.h"

namespace graphcache::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class HostrtRelatives : public HostrtMisuse {
 protected:
  static void add(cudaGraph_t child, cudaGraph_t parent) {
    cudaGraphNode_t node = nullptr;
    GIVES(cudaSuccess, cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, child));
  }
  static cudaGraph_t holding(cudaGraph_t child) {
    const cudaGraph_t made = empty_graph();
    add(child, made);
    return made;
  }

  static Work clones(cudaGraph_t graph) {
    return [graph] { clone_of(graph); };
  }
  static Work destroys(cudaGraph_t graph) {
    return [graph] { GIVES(cudaSuccess, cudaGraphDestroy(graph)); };
  }
  static Work destroys(cudaGraphExec_t executable) {
    return [executable] { GIVES(cudaSuccess, cudaGraphExecDestroy(executable)); };
  }
  static Work instantiates_with_flags(cudaGraph_t graph) {
    return [graph] {
      cudaGraphExec_t made = nullptr;
      GIVES(cudaSuccess, cudaGraphInstantiateWithFlags(&made, graph, 0));
    };
  }
  static Work adds(cudaGraph_t child) {
    return [child, parent = empty_graph()] { add(child, parent); };
  }

  struct Pair {
    Work a, b;
  };
};

TEST_F(HostrtRelatives, TwoThreadsMustNotMakeOrDestroyRelatives) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraph_t used = capture_adds();
  const cudaGraph_t first = capture_adds();
  const cudaGraph_t inner = holding(used);
  cudaGraph_t innermost = nullptr;
  OK(cudaGraphChildGraphNodeGetGraph(nodes_of(inner)[0], &innermost));
  const std::vector<Pair> pairs = {
      {clones(graph), destroys(clone_of(graph))},
      {destroys(clone_of(graph)), destroys(clone_of(graph))},
      {destroys(first), destroys(clone_of(first))},
      {instantiates(graph), destroys(clone_of(graph))},
      {instantiates_with_flags(graph), destroys(clone_of(graph))},
      {destroys(instantiate(graph)), clones(graph)},
      {destroys(instantiate(graph)), instantiates(graph)},
      {destroys(instantiate(graph)), destroys(instantiate(graph))},
      {destroys(instantiate(graph)), destroys(clone_of(graph))},
      {adds(used), destroys(holding(used))},
      {destroys(holding(used)), destroys(holding(used))},
      {clones(innermost), destroys(holding(inner))},
      {clones(used), destroys(holding(used))},
      {adds(graph), destroys(clone_of(graph))},
      {adds(graph), destroys(instantiate(graph))},
      {destroys(inner), destroys(clone_of(inner))},
  };
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    SCOPED_TRACE(i);
    const Overlap overlap(stream_, pairs[i].a, pairs[i].b);
    expect_misuse(
        AllOf(HasSubstr(": related graphs or executables made or destroyed by two threads at once\n"),
              ContainsRegex("\n  here: cudaGraph[A-Za-z]+, call [0-9]+, thread [0-9]+, at hostrt_relatives_test"),
              ContainsRegex("\n  meanwhile: cudaGraph[A-Za-z]+, thread [0-9]+, at hostrt_relatives_test")));
  }
}

TEST_F(HostrtRelatives, AChildGraphIsUsedByTheCallThatAddsIt) {
  const cudaGraph_t graph = capture_adds();
  for (const Pair& pair : {Pair{adds(graph), adds(graph)}, Pair{adds(graph), lists(graph)}}) {
    const Overlap overlap(stream_, pair.a, pair.b);
    expect_misuse(HasSubstr(": graph used by two threads at once\n"));
  }
}

TEST_F(HostrtRelatives, TwoThreadsMayUseGraphsThatAreNotWritten) {
  const cudaGraph_t graph = capture_adds();
  const cudaGraph_t another = capture_adds();
  const cudaGraph_t used = capture_adds();
  const cudaGraph_t one = clone_of(graph);
  const cudaGraph_t two = clone_of(graph);
  const cudaGraph_t three = holding(used);
  const cudaGraph_t four = holding(used);
  const std::vector<Pair> pairs = {
      {lists(graph), destroys(clone_of(graph))},
      {updates(instantiate(graph), graph), destroys(clone_of(graph))},
      {clones(one), clones(two)},
      {clones(one), destroys(clone_of(two))},
      {destroys(clone_of(one)), destroys(clone_of(two))},  // a common original of their originals does not count
      {clones(graph), destroys(clone_of(one))},
      {instantiates(one), instantiates(two)},
      {destroys(instantiate(one)), destroys(instantiate(two))},
      {clones(three), clones(four)},  // nor does one of embedded graphs
      {clones(three), destroys(clone_of(four))},
      {destroys(clone_of(three)), destroys(clone_of(four))},
      {instantiates(three), instantiates(four)},
      {destroys(instantiate(three)), destroys(instantiate(four))},
      {destroys(clone_of(graph)), destroys(clone_of(another))},
  };
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    SCOPED_TRACE(i);
    const Overlap overlap(stream_, pairs[i].a, pairs[i].b);
    expect_no_misuse();
  }
}

TEST_F(HostrtRelatives, OriginalsThatAreGoneAreNotWritten) {
  const cudaGraph_t graph = capture_adds();
  const std::vector<Pair> pairs = {
      {destroys(clone_of(graph)), destroys(clone_of(graph))},
      {destroys(instantiate(graph)), destroys(clone_of(graph))},
  };
  OK(cudaGraphDestroy(graph));
  for (const Pair& pair : pairs) {
    const Overlap overlap(stream_, pair.a, pair.b);
    expect_no_misuse();
  }
}

}  // namespace
}  // namespace graphcache::test
