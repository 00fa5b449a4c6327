// Hooks: functions of the program that a cache calls around captures and launches (Options::hooks). Use them to open
// and close an allocator's pool, to keep the pool with the key, or to set the offset of a random generator.
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
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <functional>

#include "graphcache/key.h"

namespace graphcache {

// Rules for all hooks:
//   - A hook is called in a thread that is inside a call of the cache. Several threads may be in one hook at once.
//   - A hook must not run, warm, adopt, erase or clear keys of the same cache, or wait for another thread that does.
//   - The options hold copies of the hooks, so objects to which they refer must outlive the cache.
//   - Runs inside another run's capture, and direct calls of `fn`, call no hooks.
//
// There is one release for each capture. Each before_capture that returns ok is followed by one after_capture. If that
// receives a graph, the key owns the graph, and one on_forget follows when the graph is gone. So release in on_forget,
// or in an after_capture without a graph, what before_capture has acquired.
//
// A key may have several graphs at once: one for each place in the program that runs it, and a new one while a run that
// is under way still has the old one. So count the acquisitions for a key, and free what they share with the last
// release.
//
// Unset hooks cost nothing. If before_launch, on_evict or on_forget is set, hits take a longer way through the cache
// (docs/performance.md, "What watching costs").
struct Hooks {
  // Called before `fn` of the key is captured on this stream. It is the stream of the run, or one of the cache's own if
  // that is the legacy stream. The cache's device is current. If the hook returns an error, nothing is captured, `fn`
  // is not called, and the run returns the error. Exceptions pass through like those of `fn`, except that
  // std::bad_alloc becomes ResourceExhausted.
  std::function<absl::Status(const Key& key, cudaStream_t stream)> before_capture = nullptr;
  // Called once after each before_capture that returned ok; without a before_capture, after each capture. The hook may
  // read the graph, but not change it. The graph is null if there is nothing to keep: `fn` failed, threw or enqueued
  // nothing, the capture broke, or verify mode made it only to compare. In these cases `fn` may be called again after
  // the hook, directly.
  std::function<void(const Key& key, cudaGraph_t graph)> after_capture = nullptr;
  // Called before each launch of the key's graph on this stream, hits included. If the hook returns an error, nothing
  // is launched, and the run returns the error. Exceptions are treated as for before_capture. If a launch fails and is
  // tried again, the hook is called again.
  std::function<absl::Status(const Key& key, cudaStream_t stream)> before_launch = nullptr;
  // Called when the executable of the key was destroyed because another key needed the room. The key may get a new one
  // from its template. It is not called when a sibling takes the executable over.
  //
  // on_evict and on_forget are called without a lock, in the order of the events, at the end of the call of the cache
  // that caused them, or of another thread's call at that time. They are not called inside a capture. If host memory
  // runs out, a call of either may be missing. Exceptions of after_capture, on_evict and on_forget are dropped, and
  // Options::log gets a line for each.
  std::function<void(const Key& key)> on_evict = nullptr;
  // Called when a graph of the key is gone: erased, dropped, or destroyed with the cache. This includes adopted graphs.
  // Launches of the graph may still be in flight. So free memory that they use in the order of their streams, or after
  // waiting for them.
  std::function<void(const Key& key)> on_forget = nullptr;
};

}  // namespace graphcache
