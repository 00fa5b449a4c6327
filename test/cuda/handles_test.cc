// Handles of related graphs: no two threads make or destroy relatives at the same time (fact 35), and unrelated graphs
// do not wait for each other. On hostrt, which reports violations.
#include "cuda/handles.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "graphcache/hostrt.h"
#include "support.h"

namespace graphcache::test {
namespace {

class HandlesTest : public testing::Test {
 protected:
  void SetUp() override { hostrt::reset(); }
  void TearDown() override {
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
    hostrt::reset();
  }

  static OwnedGraph make_graph() {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaGraphCreate(&graph, 0));
    return OwnedGraph(graph);
  }
  static OwnedGraph clone_of(OwnedGraph& original) {
    OwnedGraph copy;
    CUDA_OK(clone(original, &copy));
    return copy;
  }

  // Whether `call`, made by another thread, reaches a runtime call while the graph is being destroyed.
  bool meets_destruction(OwnedGraph graph, const std::function<void()>& call) {
    destruction_ = Destruction::kAhead;
    met_ = false;
    cudaUserObject_t object = nullptr;
    CUDA_OK(cudaUserObjectCreate(&object, this, &HandlesTest::wait, 1, cudaUserObjectNoDestructorSync));
    CUDA_OK(cudaGraphRetainUserObject(graph.get(), object, 1, cudaGraphUserObjectMove));
    std::thread other([&] {
      while (destruction_ == Destruction::kAhead) std::this_thread::yield();
      call();
    });
    { const OwnedGraph destroyed = std::move(graph); }
    other.join();
    return met_;
  }

  // The call again and again during the destruction, so that both meet however the threads are scheduled.
  std::function<void()> repeated(const std::function<void()>& call) {
    return [this, call] {
      while (destruction_ == Destruction::kUnderWay) call();
    };
  }

 private:
  enum class Destruction { kAhead, kUnderWay, kOver };

  // Called inside the destruction, because the graph has the object's last reference.
  static void wait(void* self) {
    auto& test = *static_cast<HandlesTest*>(self);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    test.destruction_ = Destruction::kUnderWay;
    while (!test.met_ && std::chrono::steady_clock::now() < deadline) {
      test.met_ = hostrt::threads_inside() == 2;
      std::this_thread::yield();
    }
    test.destruction_ = Destruction::kOver;
  }

  std::atomic<Destruction> destruction_{Destruction::kAhead};
  bool met_ = false;
};

TEST_F(HandlesTest, RelativesAreMadeAndDestroyedOneAfterTheOther) {
  OwnedGraph graph = make_graph();
  OwnedGraph another = clone_of(graph);
  GraphExec executable;
  CUDA_OK(instantiate(graph, 0, &executable));
  const auto instantiate_it = [&] {
    GraphExec made;
    CUDA_OK(instantiate(graph, 0, &made));
  };
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"cloning", [&] { clone_of(graph); }},
      {"destroying a clone", [&] { const OwnedGraph destroyed = std::move(another); }},
      {"instantiating", instantiate_it},
      {"destroying an executable", [&] { const GraphExec destroyed = std::move(executable); }},
  };
  for (const auto& [name, call] : calls) EXPECT_FALSE(meets_destruction(clone_of(graph), call)) << name;
}

TEST_F(HandlesTest, ACloneOutlivesItsOriginal) {
  OwnedGraph graph = make_graph();
  OwnedGraph copy = clone_of(graph);
  EXPECT_FALSE(meets_destruction(std::move(graph), [&] { clone_of(copy); }));
  GraphExec executable;
  CUDA_OK(instantiate(copy, 0, &executable));
}

TEST_F(HandlesTest, StrangersDoNotWait) {
  OwnedGraph graph = make_graph();
  OwnedGraph stranger = make_graph();
  EXPECT_TRUE(meets_destruction(clone_of(graph), repeated([&] { clone_of(stranger); })));
  EXPECT_TRUE(meets_destruction(clone_of(stranger), repeated([&] {
                                  GraphExec executable;
                                  CUDA_OK(instantiate(graph, 0, &executable));
                                })));
}

}  // namespace
}  // namespace graphcache::test
