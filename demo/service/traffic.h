// The requests of the service, served through a cache.
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

  // Enqueues one request and waits for it. The n-th request is the same in every run of the program. Ends the program
  // with a message if a run fails.
  void serve(int n);
  // Makes what serve() would make for the key when it comes. NotFound if serve() has no such key.
  absl::Status warm(const graphcache::ManifestKey& key);
  // Whether the device's memory holds what the requests so far have to leave there.
  bool equals_reference() const;
  const graphcache::Cache& cache() const { return cache_; }

 private:
  // What a key of this label, count and number of layers replays: the kernels of the layers on the first elements.
  auto stirs(int count, int layers) const;
  void run(const char* label, int count, int layers);

  graphcache::Cache cache_;
  std::mt19937 random_{1};
  int decoding_ = 1;                   // The batch of the tokens.
  std::uint32_t salt_ = 0;             // Another in each run.
  std::vector<std::uint32_t> wanted_;  // What the memory should hold.
  std::uint32_t* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace demo
