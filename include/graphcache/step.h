// A key and its work, prepared for a hot loop: the cheapest way to run them again and again.
//
//   auto step = cache.prepare(graphcache::key("decode", batch), [&](graphcache::Recorder& rec, graphcache::Slot<int> n)
//   {
//     ...
//   });
//   while (...) {
//     absl::StatusOr<graphcache::Outcome> outcome = step.run(stream, graphcache::params(n));
//   }
//
// A run of a step does what Cache::run() does with the same key, `fn` and params, and counts as that does. A step
// remembers its entry: a hit on an explicit stream or the legacy one, with the values of the run before, looks nothing
// up. It holds nothing: the key may be evicted, erased or cleared as any other, and the next run captures it again.
// After the cache has ended, runs return FailedPrecondition.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "graphcache/detail/call.h"
#include "graphcache/detail/hit.h"
#include "graphcache/key.h"
#include "graphcache/params.h"

namespace graphcache {

// Made by Cache::prepare(). One step is for one thread at a time; a copy, which has a copy of `fn`, serves another.
template <class Fn>
class Step {
 public:
  const Key& key() const { return key_; }

  // As Cache::run() has it. Without a stream, Options::stream.
  absl::StatusOr<Outcome> run() { return run(Params<>()); }
  absl::StatusOr<Outcome> run(cudaStream_t stream) { return run(stream, Params<>()); }
  template <class... Ts>
  absl::StatusOr<Outcome> run(const Params<Ts...>& params) {
    return run(stream_, params);
  }
  template <class... Ts>
  absl::StatusOr<Outcome> run(cudaStream_t stream, const Params<Ts...>& params);

 private:
  friend class Cache;
  Step(std::shared_ptr<detail::Hits> hits, cudaStream_t stream, Key key, Fn fn)
      : hits_(std::move(hits)), stream_(stream), key_(std::move(key)), fn_(std::move(fn)) {}

  std::shared_ptr<detail::Hits> hits_;
  cudaStream_t stream_;  // Options::stream.
  Key key_;
  Fn fn_;
  detail::Remembered remembered_;
};

}  // namespace graphcache
