// A user's program: the second run of a key is a replay with its own value. It also has tables of keys of its own.
#include <absl/hash/hash.h>
#include <cuda_runtime_api.h>
#include <device_launch_parameters.h>
#include <graphcache/graphcache.h>
#include <graphcache/hostrt.h>

#include <cstdio>
#include <cstring>
#include <unordered_set>

__global__ void scale(float* values, float factor) { values[threadIdx.x] *= factor; }
GRAPHCACHE_HOST_KERNEL(scale)

static int run() {
  constexpr int kCount = 32;
  float result[kCount];
  for (float& value : result) value = 1;
  float* values = nullptr;
  cudaStream_t stream = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&values), sizeof result);
  cudaMemcpy(values, result, sizeof result, cudaMemcpyHostToDevice);
  cudaStreamCreate(&stream);

  graphcache::Cache cache;
  for (const float factor : {2.0f, 3.0f}) {
    const absl::StatusOr<graphcache::Outcome> outcome =
        cache.run(graphcache::key("scale", kCount), stream, graphcache::params(factor),
                  [&](graphcache::Recorder& rec, graphcache::Slot<float> slot) {
                    rec.launch(scale, {1, kCount}, values, slot);
                  });
    if (!outcome.ok()) {
      std::printf("%s\n", outcome.status().ToString().c_str());
      return 1;
    }
    if (*outcome != (factor == 2.0f ? graphcache::Outcome::kInstantiated : graphcache::Outcome::kPatched)) {
      std::printf("not the expected outcome: %d\n", static_cast<int>(*outcome));
      return 1;
    }
  }
  cudaStreamSynchronize(stream);
  cudaMemcpy(result, values, sizeof result, cudaMemcpyDeviceToHost);
  cudaStreamDestroy(stream);
  cudaFree(values);
  for (const float value : result) {
    if (value != 6) {
      std::printf("%g instead of 6\n", static_cast<double>(value));
      return 1;
    }
  }
  return 0;
}

// Both hashes must link.
static bool keys_are_hashed() {
  const std::unordered_set<graphcache::Key> by_std = {graphcache::key("scale", 32)};
  const std::unordered_set<graphcache::Key, absl::Hash<graphcache::Key>> by_absl(by_std.begin(), by_std.end());
  return by_std.count(graphcache::key("scale", 32)) == 1 && by_absl.count(graphcache::key("scale", 32)) == 1;
}

int main() {
  if (std::strcmp(graphcache::kVersion, PACKAGE_VERSION) != 0) {
    std::printf("headers of %s in a package of %s\n", graphcache::kVersion, PACKAGE_VERSION);
    return 1;
  }
  if (!keys_are_hashed()) {
    std::printf("a table does not find its key\n");
    return 1;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
  return run();
}
