// Nodes and launch attributes newer than the library, on a hostrt with a future driver: graphs that contain one have no
// siblings.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "signature_support.h"

namespace graphcache::test {
namespace {

// The library queries the version once, so this comes before the first call.
[[maybe_unused]] const bool is_of_the_future = (hostrt::set_driver_version(hostrt::kFutureDriver), true);

constexpr int kPortableClusterSizeMode = 17, kSharedMemoryMode = 18, kFirstUnknown = 19;

using SignatureNewerTest = SignatureTest;

TEST_F(SignatureNewerTest, TheDriverIsOfTheFuture) { EXPECT_EQ(driver().version, hostrt::kFutureDriver); }

TEST_F(SignatureNewerTest, PortableClusterSizesAndSharedMemoryModesMustAgree) {
  for (const int id : {kPortableClusterSizeMode, kSharedMemoryMode}) {
    const auto with = [this, id](int mode) {
      return [=, this](cudaStream_t s) {
        step(s);
        set_attribute(s, id, mode);
      };
    };
    EXPECT_TRUE(alike(with(1), with(1))) << id;
    EXPECT_FALSE(alike(with(1), with(2))) << id;
    EXPECT_FALSE(alike(with(0), with(2))) << id;
  }
}

#if CUDART_VERSION >= 13020
TEST_F(SignatureNewerTest, SyncModesOfHostFunctionsMustAgree) {
  int number = 0;
  const auto call = [&](unsigned mode) {
    return [&, mode](cudaStream_t s) {
      CUDA_OK(cudaLaunchHostFunc(s, add_one, &number));
      cudaGraphNodeParams params = {};
      params.type = cudaGraphNodeTypeHost;
      params.host.fn = add_one;
      params.host.userData = &number;
      params.host.syncMode = mode;
      CUDA_OK(cudaGraphNodeSetParams(last_node(s), &params));
    };
  };
  EXPECT_TRUE(alike(call(cudaHostTaskSpinWait), call(cudaHostTaskSpinWait)));
  EXPECT_FALSE(alike(call(cudaHostTaskSpinWait), call(cudaHostTaskBlocking)));
}
#endif

TEST_F(SignatureNewerTest, AnUnknownAttributeMakesNoSiblings) {
  const auto with = [this](int number) {
    return described([=, this](cudaStream_t s) {
      step(s);
      set_attribute(s, hostrt::kFutureAttribute, number);
      step(s);
    });
  };
  EXPECT_GE(hostrt::kFutureAttribute, kFirstUnknown);
  EXPECT_TRUE(with(0).signature);
  EXPECT_FALSE(with(1).signature);
}

TEST_F(SignatureNewerTest, AnUnreadableUnknownAttributeMakesNoSiblings) {
  const auto attributes_read = [this] {
    hostrt::reset_calls();
    EXPECT_TRUE(kernels(1).signature);
    return static_cast<int>(hostrt::calls("cudaGraphKernelNodeGetAttribute"));
  };
  const int last = attributes_read();
  hostrt::fail_call("cudaGraphKernelNodeGetAttribute", last, cudaErrorNotSupported);
  EXPECT_FALSE(kernels(1).signature);
  EXPECT_EQ(hostrt::failures_injected(), 1u);
}

// All known types of nodes, and newer ones.
TEST_F(SignatureNewerTest, NodesOfOtherTypesMakeNoSiblings) {
  const auto set_of_type = [this](int type) {
    return described([=, this](cudaStream_t s) {
      CUDA_OK(cudaMemsetAsync(at(0), 1, 64, s));
      if (type >= 0) hostrt::set_node_type(last_node(s), type);
    });
  };
  EXPECT_TRUE(set_of_type(-1).signature);
  for (int type = cudaGraphNodeTypeGraph; type <= 40; ++type) {
    if (type == cudaGraphNodeTypeEmpty) continue;
    EXPECT_FALSE(set_of_type(type).signature) << type;
  }
}

// ---- Through a cache ------------------------------------------------------------------------------------------------

struct NewerWay {
  const char* name;
  void (*mark)(cudaStream_t stream);  // marks the most recently captured node
  bool shares;
};
void PrintTo(const NewerWay& way, std::ostream* out) { *out << way.name; }

constexpr int kMemcpyBatch = 14;

class NewerNodesTest : public SignatureTest, public testing::WithParamInterface<NewerWay> {};

// Two keys that differ in an argument: if they may share, the second takes over the executable of the first.
TEST_P(NewerNodesTest, ShareNothingAndRunRight) {
  constexpr int kCount = 64;
  Cache cache({.max_executables = 1});
  for (int round = 0; round < 4; ++round) {
    for (const int which : {3, 5}) {
      CUDA_OK(cudaMemsetAsync(at(0), 0, kCount * sizeof(int), *stream));
      const absl::StatusOr<Outcome> outcome = cache.run(key("newer", which), *stream, [&](cudaStream_t s) {
        CUDA_OK(launch(blend, 2, 32, s, at(0), kCount, which, 1));
        CaptureInfo info;
        CUDA_OK(capture_info(s, &info));
        if (info.status == cudaStreamCaptureStatusActive) GetParam().mark(s);
        CUDA_OK(launch(blend, 2, 32, s, at(0), kCount, which, 2));
      });
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      const bool is_first = round == 0 && which == 3;
      if (is_first) {
        EXPECT_EQ(*outcome, Outcome::kInstantiated);
      } else if (GetParam().shares) {
        EXPECT_EQ(*outcome, round == 0 ? Outcome::kUpdated : Outcome::kSwitched);
      } else {
        EXPECT_EQ(*outcome, round == 0 ? Outcome::kInstantiated : Outcome::kRestored);
      }
      CUDA_OK(cudaStreamSynchronize(*stream));
      std::vector<int> expected(static_cast<std::size_t>(memory->size()));
      for (int i = 0; i < kCount; ++i) expected[static_cast<std::size_t>(i)] = which * (1 + i) + 2 + i;  // by two steps
      EXPECT_EQ(memory->read(), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, NewerNodesTest,
    testing::Values(
        NewerWay{"Plain", [](cudaStream_t) {}, true},
        NewerWay{"MemcpyBatch", [](cudaStream_t s) { hostrt::set_node_type(last_node(s), kMemcpyBatch); }, false},
        NewerWay{"Attribute", [](cudaStream_t s) { set_attribute(s, hostrt::kFutureAttribute, 1); }, false}),
    [](const testing::TestParamInfo<NewerWay>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace graphcache::test
