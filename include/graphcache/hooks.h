// What a program wants to do around captures and launches: open and close an allocator's pool, keep it with the key,
// set the offset of a random generator.
//
//   graphcache::Options options;
//   options.hooks.before_capture = [&](const graphcache::Key& key, cudaStream_t stream) {
//     return pools.open(key, stream);   // absl::Status
//   };
//   options.hooks.after_capture = [&](const graphcache::Key& key, cudaGraph_t graph) {
//     pools.close(key);
//     if (graph == nullptr) pools.release(key);
//   };
//   options.hooks.on_forget = [&](const graphcache::Key& key) { pools.release(key); };
//
// **One release for each capture.** A before_capture that returned ok is followed by one after_capture. If that has a
// graph, the graph is the key's, and one on_forget follows when it is gone. So what before_capture takes is released by
// after_capture without a graph, or by on_forget. A key may have several graphs at once: one for each place of the
// program that runs it, and a new one while a run that is under way still has the old one. So count what is taken for a
// key, and give up what they share when the last one is released.
//
// Runs inside another run's capture, and direct calls of `fn`, have no hooks.
//
// A hook is called in a thread that is inside a call of the cache. Several threads may be in one hook at once. A hook
// must not run, warm, adopt, erase or clear keys of the same cache, and it must not wait for another thread that does.
// Options keep copies of the hooks, so what they refer to outlives the cache.
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
  // legacy stream. The cache's device is current. An error is the run's: nothing is captured, and `fn` is not called.
  // Exceptions pass, as those of `fn` do; a std::bad_alloc becomes ResourceExhausted.
  std::function<absl::Status(const Key& key, cudaStream_t stream)> before_capture = nullptr;
  // Once after each before_capture that was ok, and after each capture if there is none. The graph is for looking at.
  // It is null if there is nothing to keep: `fn` failed, threw or enqueued nothing, the capture broke, or it was made
  // by verify mode to compare. Then `fn` may be called again, directly, behind this hook.
  std::function<void(const Key& key, cudaGraph_t graph)> after_capture = nullptr;
  // Before each launch of the key's graph on this stream, hits included. An error is the run's, and nothing is
  // launched. Exceptions are as those of before_capture. A launch that fails may be tried again, behind another call.
  std::function<absl::Status(const Key& key, cudaStream_t stream)> before_launch = nullptr;
  // The key's executable was destroyed because another key needed the room. The template may bring it back. A sibling
  // that takes an executable over is no eviction.
  std::function<void(const Key& key)> on_evict = nullptr;
  // A graph of the key is gone: it was erased or dropped, or the cache ends. Adopted graphs are told, too. Launches of
  // the graph may still be in flight: what they use is to be given back in the order of their streams, or after
  // waiting.
  std::function<void(const Key& key)> on_forget = nullptr;
  // on_evict and on_forget are called at the end of a call of the cache, without a lock, in the order of what happened:
  // of the call that led to it, or of one that another thread makes at that time. Inside a capture they are not called.
  // Exceptions of after_capture, on_evict and on_forget are dropped, and Options::log has a line for each. If the
  // host's memory runs out, a call of on_evict or on_forget may be missing.
};

}  // namespace graphcache
