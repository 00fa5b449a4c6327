// Executables and graphs that wait for their destruction.
//
// Destroying one inside a capture may break the capture (fact 6), so it happens only while this thread is not
// capturing.
//
// An executable is destroyed once its launches are known to be complete. The runtime's header allows it earlier, but
// then the driver crashes if the graph has host functions (docs/semantics.md). Graphs wait as well, because a graph's
// user objects may keep alive what a launch needs.
//
// An event behind the launches shows when they are complete. The next run on their stream records it: without a run,
// the stream may no longer exist. If there is no such run, a stream of the grave's own shows it, on which the
// executable is uploaded, because an upload runs after the launches as well. That upload costs a third of an
// instantiation, so it is made only if too many executables wait, or all must be destroyed. An event behind it would
// not do: parts of an upload run beside their stream, and the host's wait for that stream alone includes them
// (docs/semantics.md).
//
// Each cache has its own graveyard, and runs destroy nothing of other devices: work in flight there may depend on what
// this thread launches next (docs/demos/data_parallel.md).
#pragma once

#include <absl/base/thread_annotations.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "cuda/audience.h"
#include "cuda/mutex.h"
#include "exec/executable.h"

namespace graphcache {

// What the destruction of a grave is reported as. Nothing without a content.
struct Epitaph {
  std::shared_ptr<const Content> content;  // Null if there was neither an executable nor a graph.
  Loss loss = Loss::kNone;
  bool drops_graph = false;  // Whether the entry has lost its graph as well.
};

struct Grave {
  ~Grave();

  Epitaph epitaph;
  std::shared_ptr<const Audience> audience;
  std::shared_ptr<Objects> kept;  // What the graph keeps, or what launches for a former content may still use.
  Template graph;
  std::unique_ptr<Executable> executable;  // Must be destroyed before the graph.
  LaunchStream stream;                     // The stream of the last launch, if there was one.
  Event done;                              // Recorded behind the last launch, or empty.
  OwnedStream fence;                       // Has the upload behind the last launch, or none.
  // Whether its context is lost. If it is by the time of destruction, the handles are dropped.
  std::shared_ptr<const std::atomic<bool>> lost;

  bool is_dropped() const { return lost != nullptr && *lost; }
  // Whether `done` or `fence` will show that the last launch is complete.
  bool has_mark() const { return done.get() != nullptr || fence.get() != nullptr; }
};

// Thread-safe.
class Graveyard {
 public:
  Graveyard(int device, std::shared_ptr<const Audience> audience) : device_(device), audience_(std::move(audience)) {}

  // Adds what an entry had, of which either may be missing. `place` is a list of one grave, allocated in advance, so
  // that nothing that has an executable is without one; or empty. `stream` is that of the last launch, if there was
  // one. What is set aside waits for a collect_all() that waits, so that no other thread's run destroys what
  // clear() has added, however much that is.
  void add(std::list<Grave> place, std::unique_ptr<Executable> executable, Template graph,
           std::shared_ptr<Objects> kept, LaunchStream stream, Epitaph epitaph, bool set_aside = false) noexcept
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Releases them once the work that is enqueued on the stream now is complete, and empties the list. Leaves it as it
  // is if memory runs out.
  void keep_until_done(Objects& formers, const LaunchStream& stream) noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until at most kMaxExecutables wait for launches on this stream, whose id was looked up. Not inside a capture.
  void limit(const LaunchStream& stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Destroys a bounded number of waiting objects whose launches are complete, unless this thread is capturing. `stream`
  // is a stream of the current device that exists and is not capturing, or null for none. Call this without locks that
  // runs wait for.
  void collect(LaunchStream stream);
  // Destroys all waiting objects whose launches are complete, or, if it is patient, are so a little later. If it
  // `waits`, it first waits for the device, so that nothing is left, and then it fails only by fatal errors.
  CallResult collect_all(bool waits = false, bool is_patient = false) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for all work of the device, as cudaFree does. That does not break captures, while cudaDeviceSynchronize may
  // (docs/semantics.md).
  CallResult wait() const;
  // What is added from now on is of the context with this id.
  void begin(std::uint64_t context) ABSL_LOCKS_EXCLUDED(mutex_);
  // That id, or 0 before begin().
  std::uint64_t context() const { return context_; }
  // The context is lost: drops the handles of everything that waits, and of everything that is added until begin(). All
  // that waits for collect_all().
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // How many may wait for a run on their stream: executables, which hold device memory beyond the cache's budget, and
  // graphs, which hold host memory.
  static constexpr std::size_t kMaxExecutables = 8;
  static constexpr std::size_t kMaxGraphs = 256;
  // One call of collect() destroys at most this many beyond those.
  static constexpr int kMaxDestroyed = 4;
  // Pauses between the passes of a patient collect_all(). Where the device is idle, the uploads of fences are over in
  // less than all of these.
  static constexpr std::chrono::microseconds kPatience{200};
  static constexpr int kPasses = 6;

  bool is_abandoned() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lost_ != nullptr && *lost_; }
  // Whether the last launch is known to be complete. If it `waits`, that is false only if nothing shows it.
  static bool is_done(Grave& grave, const LaunchStream& stream, bool waits = false);
  // Makes the grave's fence, unless its state is known. Returns false if that is impossible.
  bool fence(Grave& grave) ABSL_LOCKS_EXCLUDED(mutex_);
  void put_back(std::list<Grave> waiting) ABSL_LOCKS_EXCLUDED(mutex_);

  const int device_;
  const std::shared_ptr<const Audience> audience_;
  Mutex mutex_;
  std::atomic<std::uint64_t> context_{0};
  // Whether it is lost, for all graveyards of the context. Null before begin().
  std::shared_ptr<std::atomic<bool>> lost_ ABSL_GUARDED_BY(mutex_);
  std::list<Grave> waiting_ ABSL_GUARDED_BY(mutex_);
  std::list<Grave> aside_ ABSL_GUARDED_BY(mutex_);  // Added with set_aside.
};

}  // namespace graphcache
