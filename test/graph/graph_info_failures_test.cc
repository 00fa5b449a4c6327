// Cache::graph() with failing calls, and names and attributes that only hostrt has.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cache_support.h"
#include "graphcache/graph_info.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "support.h"

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
    EXPECT_EQ(hostrt::misuses(), 0u) << hostrt::last_misuse();
  }
  // The text about a kernel with this attribute.
  std::string attribute(int id, const cudaLaunchAttributeValue& value) {
    cudaLaunchAttribute attribute;
    std::memset(&attribute, 0, sizeof attribute);
    attribute.id = static_cast<cudaLaunchAttributeID>(id);
    attribute.val = value;
    Cache cache;
    EXPECT_TRUE(cache
                    .run(key("k"), stream,
                         [&](cudaStream_t on) {
                           cudaLaunchConfig_t config = {};
                           config.gridDim = config.blockDim = dim3(1);
                           config.stream = on;
                           config.attrs = &attribute;
                           config.numAttrs = 1;
                           void* none = nullptr;
                           return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(do_nothing), &none);
                         })
                    .ok());
    const absl::StatusOr<GraphInfo> info = cache.graph(key("k"));
    EXPECT_TRUE(info.ok()) << info.status();
    std::string text;
    if (!info.ok()) return text;
    for (const GraphNode::Attribute& each : info->nodes.at(0).attributes) text += each.name + ": " + each.value + "; ";
    return text;
  }
};

TEST_F(GraphInfoFailuresTest, EachAttributeHasANameAndAText) {
  const auto value = [](auto&& set) {
    cudaLaunchAttributeValue value;
    std::memset(&value, 0, sizeof value);
    set(value);
    return value;
  };
  using Value = cudaLaunchAttributeValue;
  EXPECT_TRUE(says(attribute(1, value([&](Value& v) {
                               v.accessPolicyWindow.base_ptr = data.get();
                               v.accessPolicyWindow.num_bytes = 256;
                               v.accessPolicyWindow.hitRatio = 0.5f;
                             })),
                   "access policy window: 256 bytes, hit ratio 0.5; "));
  EXPECT_TRUE(says(attribute(2, value([](Value& v) { v.cooperative = 1; })), "cooperative: 1; "));
  EXPECT_TRUE(says(attribute(8, value([](Value& v) { v.priority = -1; })), "priority: -1; "));
  EXPECT_TRUE(says(attribute(9, value([](Value& v) {
                               v.memSyncDomainMap.default_ = 1;
                               v.memSyncDomainMap.remote = 0;
                             })),
                   "memory synchronization domain map: 1, 0; "));
  const auto carveout = value([](Value& v) {
    const unsigned percent = 25;
    std::memcpy(&v, &percent, sizeof percent);
  });
  EXPECT_TRUE(says(attribute(14, carveout), "shared memory carveout: 25; "));
}

TEST_F(GraphInfoFailuresTest, NamesOfKernelsAreReadable) {
  Cache cache;
  DeviceBuffer<int> to(1);
  EXPECT_TRUE(cache
                  .run(key("k"), stream,
                       [&](cudaStream_t on) {
                         for (const auto kernel : {mangled, unreadable, in_c}) {
                           CUDA_OK(launch(kernel, dim3(1), dim3(1), on, to.get()));
                         }
                       })
                  .ok());
  const absl::StatusOr<GraphInfo> info = cache.graph(key("k"));
  ASSERT_TRUE(info.ok()) << info.status();
  std::string names;
  for (const GraphNode& node : info->nodes) names += node.name + "; ";
  EXPECT_EQ(names, "kernel net::forward(int*); kernel _Z?; kernel in_c; ");
  // A binding also matches a name that continues after the wanted text.
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(launch(in_c, dim3(1), dim3(1), stream, to.get()));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  const auto run = [&](const char* name) {
    return cache.run(key("a", name), stream, params(to.get()),
                     [&] { return Graph{.graph = graph, .bound = {bind(name, 0, 0)}}; });
  };
  EXPECT_FAILURE(kInvalidArgument, run("in_"));
  EXPECT_RUN(kInstantiated, run("in_c"));
  CUDA_OK(cudaGraphDestroy(graph));
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
  std::map<std::string, std::uint64_t> calls = {{"", 1}};
  bool fails = false, lacks_arguments = false;
  for (const bool counts : {true, false}) {
    const auto counted = calls;
    for (const auto& [function, times] : counted) {
      if (function == "cudaGetLastError" || function == "cudaPeekAtLastError") continue;
      for (int nth = 1; nth <= static_cast<int>(times); ++nth) {
        SCOPED_TRACE(function + ", call " + std::to_string(nth));
        hostrt::reset_calls();
        if (!counts) hostrt::fail_call(function.c_str(), nth, cudaErrorUnknown);
        const absl::StatusOr<GraphInfo> info = cache.graph(key("k"));
        hostrt::clear_failures();
        if (counts) calls = hostrt::call_counts();
        CUDA_OK(cudaPeekAtLastError());
        if (!info.ok()) {
          fails = true;
          EXPECT_TRUE(absl::IsInternal(info.status()) || cuda_error(info.status()) == cudaErrorUnknown)
              << info.status();
          continue;
        }
        ASSERT_EQ(info->nodes.size(), 3u);
        for (std::uint32_t i = 0; i < 3; ++i) {
          const GraphNode& node = info->nodes[i];
          EXPECT_EQ(node.dependencies, i == 0 ? std::vector<std::uint32_t>() : std::vector<std::uint32_t>{i - 1});
          EXPECT_TRUE(node.arguments.empty() || node.arguments.size() == 3) << node.arguments.size();
          lacks_arguments = lacks_arguments || node.arguments.empty();
        }
      }
    }
  }
  EXPECT_TRUE(fails);
  EXPECT_TRUE(lacks_arguments);
  EXPECT_RUN(kPatched, run(2));
  expect_sum(3);
}

}  // namespace
}  // namespace graphcache::test
