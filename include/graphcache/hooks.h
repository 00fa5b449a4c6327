// What a program wants to do around captures and launches: open and close an allocator's pool, keep it with the key,
// set the offset of a random generator.
//
//   graphcache::Options options;
//   options.hooks.before_capture = [&](const graphcache::Key& key, cudaStream_t stream) {
//     return pools.open(key, stream);   // absl::Status
//   };
//   options.hooks.after_capture = [&](const graphcache::Key& key, cudaGraph_t) { pools.close(key); };
//   options.hooks.on_forget = [&](const graphcache::Key& key) { pools.release(key); };
//
// A hook is called in the thread whose call of the cache leads to it. Several threads may be in one hook at once, for
// different keys. It must not run, warm, adopt, erase or clear keys of the same cache. Options keep copies of the
// hooks, so what they refer to outlives the cache.
//
// Where no hook is set, a hit does nothing more than without them. Where before_launch, on_evict or on_forget is set, a
// hit takes the cache's longer way (docs/performance.md, "What watching costs").
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <functional>

#include "graphcache/key.h"

namespace graphcache {

struct Hooks {
  // Before a capture of the key's `fn` begins on this stream, which is the run's, or one of the cache's if that is the
  // legacy stream. An error is the run's: nothing is captured, and `fn` is not called. Exceptions pass. Verify mode
  // captures, too.
  std::function<absl::Status(const Key& key, cudaStream_t stream)> before_capture = nullptr;
  // After each capture whose before_capture was ok. The graph is for looking at; it is null if `fn` failed or threw, or
  // if the capture broke. Then `fn` may be called again, directly, behind this hook.
  std::function<void(const Key& key, cudaGraph_t graph)> after_capture = nullptr;
  // Before each launch of the key's graph on this stream, hits included. Direct calls of `fn` are no launches. An error
  // is the run's, and nothing is launched. Exceptions pass.
  std::function<absl::Status(const Key& key, cudaStream_t stream)> before_launch = nullptr;
  // The key's executable has left for another one's. Its template may bring it back.
  std::function<void(const Key& key)> on_evict = nullptr;
  // The key's template is gone: it was erased or dropped, and a later run captures again. Launches of its graph may
  // still be in flight.
  std::function<void(const Key& key)> on_forget = nullptr;
  // Both of these are called at the end of the call of the cache that led to it, without a lock, in the order of what
  // happened. Exceptions of after_capture, on_evict and on_forget are dropped, and Options::log has a line for each.
  // If the host's memory runs out, a call of on_evict or on_forget may be missing.
};

}  // namespace graphcache
