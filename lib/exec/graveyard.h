// Executables and graphs that wait for their destruction.
//
// Destroying one inside a capture may break the capture (fact 6), so it happens only while this thread is not
// capturing.
//
// An executable is destroyed once its launches are known to be over. The runtime's header allows it earlier, but the
// driver crashes then if the graph has host functions (docs/semantics.md). A graph may keep alive what a launch needs,
// by user objects, so graphs wait, too. An event behind the launches shows when they are over. It is recorded on their
// stream by the next run there: without a run nobody knows whether that stream still exists. If no run comes, the event
// is recorded behind an upload of the executable on a stream of the graveyard's own, because an upload comes behind the
// launches as well. It costs a third of an instantiation, so it is made only where too many executables wait, or all
// are to go.
//
// Each cache has its own graveyard. It also destroys what other caches of its device have left behind, but nothing of
// other devices: work in flight there may wait for what this thread launches next (docs/demos/data_parallel.md).
#pragma once

#include <absl/base/thread_annotations.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "cuda/memory_meter.h"
#include "cuda/mutex.h"
#include "exec/executable.h"

namespace graphcache {

struct Grave {
  ~Grave();

  Template graph;
  std::unique_ptr<Executable> executable;  // Destroyed before the graph.
  LaunchStream stream;                     // Of the last launch; none if there was none.
  Event done;                              // Behind that.
  int device = 0;
  std::uint64_t generation = kDropped;  // The context's. If it is another by the end, the handles are dropped.

  static constexpr std::uint64_t kDropped = UINT64_MAX;
};

// Thread-safe.
class Graveyard {
 public:
  // The meter, if there is one, outlives it.
  explicit Graveyard(int device, MemoryMeter* meter = nullptr) : device_(device), meter_(meter) {}

  // What an entry had, either of which may be missing, and the stream that it was launched on last, if it was.
  // What is set aside waits for collect_all() with the cache's memory: no other thread's run destroys what a call of
  // clear() has made, however much that is.
  void add(std::unique_ptr<Executable> executable, Template graph, LaunchStream stream = {},
           bool set_aside = false) noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Destroys some of what waits and is known to be over, a bounded amount of work, unless this thread is capturing.
  // `stream` is one that the caller knows to exist and not to be capturing, of the current device; null: none. Called
  // without locks that runs wait for.
  void collect(cudaStream_t stream);
  // The same for all of it. With the cache's memory it waits for the device, so that nothing is left, and fails by
  // fatal errors alone.
  CallResult collect_all(const DeviceMemory* to_wait = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether nothing waits.
  bool empty() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a cache that ends inside a capture: what waits goes with the runs of other caches of the device, and the memory
  // behind it when one of them is erased from, cleared or ends. Allocates nothing.
  using Memories = std::list<std::pair<int, std::shared_ptr<DeviceMemory>>>;  // With their devices.
  void leave_behind(Memories memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // After a fatal error: drops the handles of what waits anywhere, and of what will be added.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend struct Grave;

  // What may wait for some run on its stream: executables, which hold device memory beyond the cache's budget, and
  // graphs, which hold memory of the host.
  static constexpr std::size_t kMaxExecutables = 8;
  static constexpr std::size_t kMaxGraphs = 256;
  // Of those that may wait, one call of collect() destroys at most so many.
  static constexpr int kMaxDestroyed = 4;

  // What caches left behind.
  static Graveyard& orphans();
  // Whether the last launch is over, as far as can be found out.
  static bool is_done(Grave& grave, LaunchStream stream);
  // Gives the grave its event without that stream. False: that cannot be.
  bool fence(Grave& grave) ABSL_LOCKS_EXCLUDED(mutex_);
  // What waits, and what others left behind of the device.
  std::list<Grave> take(bool and_aside = false) ABSL_LOCKS_EXCLUDED(mutex_);
  void put_back(std::list<Grave> waiting) ABSL_LOCKS_EXCLUDED(mutex_);

  inline static std::atomic<std::uint64_t> last_generation{0};  // How often a context was lost.

  const int device_;
  MemoryMeter* const meter_;
  Mutex mutex_;
  std::list<Grave> waiting_ ABSL_GUARDED_BY(mutex_);
  std::list<Grave> aside_ ABSL_GUARDED_BY(mutex_);  // What was added as set aside.
  Memories memories_ ABSL_GUARDED_BY(mutex_);
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  OwnStream stream_;
};

}  // namespace graphcache
