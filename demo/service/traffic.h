// The requests of the service, served by a cache.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <random>
#include <vector>

#include "graphcache/graphcache.h"

namespace demo {

class Traffic {
 public:
  Traffic();
  ~Traffic();
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  // Enqueues one request and waits for it. Request n is the same in every run of the program. Ends the program with a
  // message if a run fails.
  void serve(int n);
  // Makes the graph that serve() would make for the key. Returns NotFound if serve() has no such key.
  absl::Status warm(const graphcache::ManifestKey& key);
  // Whether the device memory has the expected contents after the requests so far.
  bool equals_reference() const;
  const graphcache::Cache& cache() const { return cache_; }

 private:
  // The work of a key with this label, count and number of layers: the kernels of the layers on the first elements.
  auto stirs(int count, int layers) const;
  void run(const char* label, int count, int layers);

  graphcache::Cache cache_;
  std::mt19937 random_{1};
  int decoding_ = 1;                   // batch size of the tokens
  std::uint32_t salt_ = 0;             // another one in each run
  std::vector<std::uint32_t> wanted_;  // expected contents of the memory
  std::uint32_t* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace demo
