// Cache::graph() with failing calls, and names and attributes that only hostrt has.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cache_support.h"
#include "failing_calls.h"
#include "graph_support.h"
#include "graphcache/graph_info.h"
#include "graphcache/hostrt.h"

namespace graphcache::test {
namespace {

// The runtime reports mangled names of C++ kernels.
void mangled(int*) {}
void unreadable(int*) {}
void in_c(int*) {}
[[maybe_unused]] const bool are_registered =
    (hostrt::internal::register_kernel("_ZN3net7forwardEPi", mangled),
     hostrt::internal::register_kernel("_Z?", unreadable), hostrt::internal::register_kernel("in_c", in_c), true);

class GraphInfoFailuresTest : public CacheTest {
 protected:
  void TearDown() override {
    hostrt::clear_failures();
    CacheTest::TearDown();
  }
  // The text about a kernel with this attribute.
  std::string attribute(int id, const cudaLaunchAttributeValue& value) {
    cudaLaunchAttribute attribute;
    std::memset(&attribute, 0, sizeof attribute);
    attribute.id = static_cast<cudaLaunchAttributeID>(id);
    attribute.val = value;
    Cache cache;
    EXPECT_SUCCESS(cache.run(key("k"), stream, [&](cudaStream_t on) {
      cudaLaunchConfig_t config = {};
      config.gridDim = config.blockDim = dim3(1);
      config.stream = on;
      config.attrs = &attribute;
      config.numAttrs = 1;
      void* none = nullptr;
      return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(do_nothing), &none);
    }));
    const absl::StatusOr<GraphInfo> info = cache.graph(key("k"));
    EXPECT_TRUE(info.ok()) << info.status();
    std::string text;
    if (!info.ok()) return text;
    for (const GraphNode::Attribute& each : info->nodes.at(0).attributes) text += each.name + ": " + each.value + "; ";
    return text;
  }
};

TEST_F(GraphInfoFailuresTest, EachAttributeHasANameAndAText) {
  using Value = cudaLaunchAttributeValue;
  const struct {
    int id;
    const char* text;
    std::function<void(Value&)> set;
  } cases[] = {{1, "access policy window: 256 bytes, hit ratio 0.5; ",
                [&](Value& value) {
                  value.accessPolicyWindow.base_ptr = data.get();
                  value.accessPolicyWindow.num_bytes = 256;
                  value.accessPolicyWindow.hitRatio = 0.5f;
                }},
               {2, "cooperative: 1; ", [](Value& value) { value.cooperative = 1; }},
               {8, "priority: -1; ", [](Value& value) { value.priority = -1; }},
               {9, "memory synchronization domain map: 1, 0; ",
                [](Value& value) {
                  value.memSyncDomainMap.default_ = 1;
                  value.memSyncDomainMap.remote = 0;
                }},
               {14, "shared memory carveout: 25; ", [](Value& value) {
                  const unsigned percent = 25;
                  std::memcpy(&value, &percent, sizeof percent);
                }}};
  for (const auto& one : cases) {
    Value value;
    std::memset(&value, 0, sizeof value);
    one.set(value);
    EXPECT_TRUE(says(attribute(one.id, value), one.text)) << one.text;
  }
}

TEST_F(GraphInfoFailuresTest, NamesOfKernelsAreReadable) {
  Cache cache;
  DeviceBuffer<int> to(1);
  EXPECT_SUCCESS(cache.run(key("k"), stream, [&](cudaStream_t on) {
    for (const auto kernel : {mangled, unreadable, in_c}) CUDA_OK(launch(kernel, dim3(1), dim3(1), on, to.get()));
  }));
  const absl::StatusOr<GraphInfo> info = cache.graph(key("k"));
  ASSERT_TRUE(info.ok()) << info.status();
  std::string names;
  for (const GraphNode& node : info->nodes) names += node.name + "; ";
  EXPECT_EQ(names, "kernel net::forward(int*); kernel _Z?; kernel in_c; ");
  // A binding also matches a name that continues after the wanted text.
  const Kept graph(new_graph());
  add_kernel(graph, nullptr, in_c, dim3(1), dim3(1), to.get());
  const auto run = [&](const char* name) {
    return cache.run(key("a", name), stream, params(to.get()),
                     [&] { return Graph{.graph = graph, .bound = {bind(name, 0, 0)}}; });
  };
  EXPECT_FAILURE(kInvalidArgument, run("in_"));
  EXPECT_RUN(kInstantiated, run("in_c"));
}

// The place where a capture broke contains the last kernel's name, if the runtime reports it.
TEST_F(GraphInfoFailuresTest, AKernelWithoutANameIsAKernel) {
  for (const bool is_known : {true, false}) {
    Cache cache;
    EXPECT_RUN(kEager, cache.run(key("k"), stream, [&](Recorder& rec) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, 1.0f);
      (void)cudaStreamSynchronize(rec.stream());
      (void)cudaGetLastError();
      if (!is_known) hostrt::fail_call("cudaFuncGetName", 1, cudaErrorUnknown, -1);
    }));
    hostrt::clear_failures();
    const std::string text = explain(cache, key("k"));
    EXPECT_TRUE(says(text, is_known ? "rec.launch of graphcache::test::add" : "rec.launch of a kernel")) << text;
  }
}

// Each call of Cache::graph() fails in turn: the result is an error, or part of a node is missing, and the entry is
// intact.
TEST_F(GraphInfoFailuresTest, AnyCallMayFail) {
  Cache cache;
  DeviceBuffer<float> other(kSize);
  const auto run = [&](float value) {
    return cache.run(key("k"), stream, params(value), [&](Recorder& rec, Slot<float> v) {
      rec.launch(add, {kGrid, kBlock}, data.get(), kSize, v);
      rec.memcpy(other.get(), data.get(), other.bytes());
      rec.memset(other.get(), 0, other.bytes());
    });
  };
  EXPECT_RUN(kInstantiated, run(1));
  bool fails = false, lacks_arguments = false;
  const auto test = [&](const FailingCall& call) {
    SCOPED_TRACE(call.to_string());
    call.begin();
    call.arm();
    const absl::StatusOr<GraphInfo> info = cache.graph(key("k"));
    call.end();
    CUDA_OK(cudaPeekAtLastError());
    if (!info.ok()) {
      fails = true;
      EXPECT_TRUE(absl::IsInternal(info.status()) || cuda_error(info.status()) == cudaErrorUnknown) << info.status();
      return;
    }
    ASSERT_EQ(info->nodes.size(), 3u);
    for (std::uint32_t i = 0; i < 3; ++i) {
      const GraphNode& node = info->nodes[i];
      EXPECT_EQ(node.dependencies, i == 0 ? std::vector<std::uint32_t>() : std::vector<std::uint32_t>{i - 1});
      EXPECT_TRUE(node.arguments.empty() || node.arguments.size() == 3) << node.arguments.size();
      lacks_arguments = lacks_arguments || node.arguments.empty();
    }
  };
  for_each_call(test, /*spared=*/{"cudaGetLastError", "cudaPeekAtLastError"});
  EXPECT_TRUE(fails);
  EXPECT_TRUE(lacks_arguments);
  EXPECT_RUN(kPatched, run(2));
  expect_sum(3);
}

}  // namespace
}  // namespace graphcache::test
