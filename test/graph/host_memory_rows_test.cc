// Copies of rows, boxes and arrays from and to host memory, which only GPUs make: as in host_memory_test.cc, a key
// whose copies use pageable memory runs directly.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "host_memory_support.h"

namespace graphcache::test {
namespace {

// kRows rows of kWidth of kPitch floats.
constexpr std::size_t kRows = 4, kWidth = 5, kPitch = 8, kFloat = sizeof(float);

enum class Shape { kRowsOfPitch, kBox, kArray };

class HostMemoryRowsTest : public HostMemoryTest {
 protected:
  void SetUp() override {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
    CUDA_OK(cudaMallocArray(&array, &format, kWidth, kRows, cudaArrayDefault));
  }
  void TearDown() override {
    HostMemoryTest::TearDown();
    cudaFreeArray(array);
  }

  // Copies the rows of host memory to the device, or back.
  cudaError_t copy(Shape shape, float* host, cudaMemcpyKind kind, cudaStream_t on) {
    const bool to_host = kind == cudaMemcpyDeviceToHost;
    if (shape == Shape::kArray) {
      return to_host ? cudaMemcpy2DFromArrayAsync(host, kPitch * kFloat, array, 0, 0, kWidth * kFloat, kRows, kind, on)
                     : cudaMemcpy2DToArrayAsync(array, 0, 0, host, kPitch * kFloat, kWidth * kFloat, kRows, kind, on);
    }
    float* const to = to_host ? host : rows.get();
    const float* const from = to_host ? rows.get() : host;
    if (shape == Shape::kRowsOfPitch) {
      return cudaMemcpy2DAsync(to, kPitch * kFloat, from, kPitch * kFloat, kWidth * kFloat, kRows, kind, on);
    }
    cudaMemcpy3DParms box = {};
    box.srcPtr = {const_cast<float*>(from), kPitch * kFloat, kPitch * kFloat, kRows};
    box.dstPtr = {to, kPitch * kFloat, kPitch * kFloat, kRows};
    box.extent = {kWidth * kFloat, kRows, 1};
    box.kind = kind;
    return cudaMemcpy3DAsync(&box, on);
  }
  float last_of(const float* host) const { return host[(kRows - 1) * kPitch + kWidth - 1]; }

  DeviceBuffer<float> rows{kRows * kPitch};
  cudaArray_t array = nullptr;
};

TEST_F(HostMemoryRowsTest, PageableMemoryRunsDirectly) {
  for (const Shape shape : {Shape::kRowsOfPitch, Shape::kBox, Shape::kArray}) {
    SCOPED_TRACE(static_cast<int>(shape));
    for (int i = 1; i <= 3; ++i) {
      const auto value = static_cast<float>(i);
      EXPECT_RUN(kEager, cache.run(key("up", static_cast<int>(shape)), stream, [&](cudaStream_t on) {
        std::vector<float> temporary(kRows * kPitch, value);
        const cudaError_t error = copy(shape, temporary.data(), cudaMemcpyHostToDevice, on);
        std::fill(temporary.begin(), temporary.end(), -1.0f);
        return error;
      }));
      deeper(static_cast<std::size_t>(i) * 512, [&] {
        float local[kRows * kPitch] = {};
        EXPECT_RUN(kEager, cache.run(key("down", static_cast<int>(shape)), stream,
                                     [&](cudaStream_t on) { return copy(shape, local, cudaMemcpyDeviceToHost, on); }));
        CUDA_OK(cudaStreamSynchronize(stream));
        EXPECT_EQ(local[0], value);
        EXPECT_EQ(last_of(local), value);
      });
    }
    expect_advice(cache, key("up", static_cast<int>(shape)));
    expect_advice(cache, key("down", static_cast<int>(shape)));
  }
}

TEST_F(HostMemoryRowsTest, PinnedMemoryIsCopiedByGraphs) {
  PinnedBuffer<float> from(kRows * kPitch), to(kRows * kPitch);
  for (const Shape shape : {Shape::kRowsOfPitch, Shape::kBox, Shape::kArray}) {
    SCOPED_TRACE(static_cast<int>(shape));
    float value = 0;
    for (const Outcome outcome : {Outcome::kInstantiated, Outcome::kReplayed}) {
      from.fill(++value);
      EXPECT_TRUE(did(outcome, cache.run(key("k", static_cast<int>(shape)), stream, [&](cudaStream_t on) {
        const cudaError_t error = copy(shape, from.get(), cudaMemcpyHostToDevice, on);
        return error == cudaSuccess ? copy(shape, to.get(), cudaMemcpyDeviceToHost, on) : error;
      })));
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(*to.get(), value);
      EXPECT_EQ(last_of(to.get()), value);
    }
  }
}

// Each copy from or to an array is one of the host to the driver (docs/semantics.md).
TEST_F(HostMemoryRowsTest, OtherMemoryOfTheDeviceMayHaveTheAddressInACopyOfAnArray) {
  constexpr std::size_t kBytes = kWidth * kFloat, kValues = kWidth * kRows;
  for (const bool is_managed : {false, true}) {
    SCOPED_TRACE(is_managed);
    const auto kind = is_managed ? ReusedMemory::Kind::kManaged : ReusedMemory::Kind::kDevice;
    ReusedMemory memory(kind);
    const auto expect_copied = [&](Outcome outcome, float value) {
      const std::vector<float> up(kValues, value);
      std::vector<float> down(kValues);
      upload(memory.get(), up);
      EXPECT_TRUE(did(outcome, cache.run(key("k", is_managed), stream, [&](cudaStream_t on) {
        return cudaMemcpy2DToArrayAsync(array, 0, 0, memory.get(), kBytes, kBytes, kRows, cudaMemcpyDefault, on);
      })));
      CUDA_OK(cudaStreamSynchronize(stream));
      CUDA_OK(cudaMemcpy2DFromArray(down.data(), kBytes, array, 0, 0, kBytes, kRows, cudaMemcpyDefault));
      EXPECT_EQ(down, up);
    };
    expect_copied(Outcome::kInstantiated, 1);
    expect_copied(Outcome::kReplayed, 2);
    ASSERT_TRUE(memory.give_out_again(kind));
    expect_copied(Outcome::kRestored, 3);
    expect_copied(Outcome::kReplayed, 4);
  }
}

}  // namespace
}  // namespace graphcache::test
