// Step: a key and its `fn`, prepared for a hot loop. Running a step is the cheapest way to run the same key many times.
//
//   auto step = cache.prepare(graphcache::key("decode", batch), [&](graphcache::Recorder& rec, graphcache::Slot<int> n)
//   {
//     ...
//   });
//   while (...) {
//     absl::StatusOr<graphcache::Outcome> outcome = step.run(stream, graphcache::params(n));
//   }
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "graphcache/detail/call.h"
#include "graphcache/key.h"
#include "graphcache/params.h"
#include "graphcache/stats.h"
#include "graphcache/stream.h"
#include "graphcache/values.h"

namespace graphcache {

// Made by Cache::prepare(). One thread at a time may use a step. A copy has its own copy of `fn`, and may serve another
// thread.
//
// A step remembers its entry. So a hit with the values of the previous run needs no look-up, unless the stream is
// cudaStreamPerThread. A step does not keep its key in the cache: the key may be evicted, erased or cleared like any
// other, and the next run captures it again. When the cache has been destroyed, runs return FailedPrecondition.
template <class Fn>
class Step {
 public:
  const Key& key() const { return key_; }

  // Does, returns and counts the same as Cache::run() with this key, `fn` and `params`. The default stream is
  // Options::stream.
  absl::StatusOr<Outcome> run() { return run(Params<>()); }
  absl::StatusOr<Outcome> run(StreamArg stream) { return run(stream, Params<>()); }
  template <class... Ts>
  absl::StatusOr<Outcome> run(const Params<Ts...>& params) {
    return run(stream_, params);
  }
  template <class... Ts>
  absl::StatusOr<Outcome> run(StreamArg stream, const Params<Ts...>& params);
  template <class... Ts>
  absl::StatusOr<Outcome> run(const Values<Ts...>& values) {
    return run(stream_, values);
  }
  template <class... Ts>
  absl::StatusOr<Outcome> run(StreamArg stream, const Values<Ts...>& values);

 private:
  friend class Cache;
  Step(std::shared_ptr<detail::Hits> hits, StreamArg stream, Key key, Fn fn)
      : hits_(std::move(hits)), stream_(stream), key_(std::move(key)), fn_(std::move(fn)) {}

  std::shared_ptr<detail::Hits> hits_;
  StreamArg stream_;  // The default stream, Options::stream.
  Key key_;
  Fn fn_;
  detail::Remembered remembered_;
};

}  // namespace graphcache
