// Executables and graphs that wait for their destruction.
//
// Destroying one inside a capture may break the capture (fact 6), so it happens only while this thread is not
// capturing.
//
// An executable whose last launch is in flight may be destroyed: the driver frees it on completion (the header of
// cudaGraphExecDestroy; fact 17). But some drivers are reported to crash then. And a graph may keep alive what a launch
// needs, by user objects. So both wait while that can be had for nothing: until an event that was recorded on the
// stream of their last launch is done. The stream may be gone, and only a caller's run says that it is not; so the
// event is recorded when some run comes along on that stream. What waits for that too long is destroyed, and so is the
// oldest of very many whose event is not done.
//
// Each cache has its own, and of what another left behind it touches its own device's alone: to destroy one in flight
// may wait until it is over (seen), which on another device may never be, if that waits for what this thread would
// launch next (docs/demos/data_parallel.md).
#pragma once

#include <absl/base/thread_annotations.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "cuda/mutex.h"
#include "exec/executable.h"

namespace graphcache {

// Thread-safe.
class Graveyard {
 public:
  explicit Graveyard(int device) : device_(device) {}

  // What an entry had, either of which may be missing, and the stream that it was launched on last, if it was.
  void add(std::unique_ptr<Executable> executable, Template graph, LaunchStream stream = {}) noexcept
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Destroys some of what waits, a bounded amount of work, unless this thread is capturing. `stream` is one that the
  // caller knows to exist and not to be capturing, of the current device. Called without locks that runs wait for.
  void collect(cudaStream_t stream);
  // The same for all of it, in flight or not.
  void collect_all();
  // Of a cache that ends inside a capture: what waits goes with the runs of other caches of the device, and the memory
  // behind it when one of them is erased from, cleared or ends. Allocates nothing.
  using Memories = std::list<std::pair<int, std::shared_ptr<DeviceMemory>>>;  // With their devices.
  void leave_behind(Memories memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // After a fatal error: drops the handles of what waits anywhere.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What may wait: executables for their stream, and for their event. They hold device memory beyond the cache's
  // budget, graphs that of the host.
  static constexpr std::size_t kMaxExecutables = 8, kMaxInFlight = 32;
  static constexpr std::size_t kMaxGraphs = 256;
  // Of those that may wait, one call of collect() destroys at most so many.
  static constexpr int kMaxDestroyed = 4;

  struct Item {
    Item(std::unique_ptr<Executable> the_executable, Template the_graph, LaunchStream the_stream, int the_device)
        : graph(std::move(the_graph)),
          executable(std::move(the_executable)),
          stream(the_stream),
          device(the_device),
          generation(last_generation) {}
    Item(Item&&) = delete;
    Item& operator=(Item&&) = delete;
    ~Item();

    Template graph;
    std::unique_ptr<Executable> executable;  // Destroyed before the graph.
    LaunchStream stream;
    Event done;
    const int device;
    const std::uint64_t generation;
  };
  // What caches left behind.
  static Graveyard& orphans();
  // Whether the last launch is over, as far as can be found out.
  static bool is_done(Item& item, LaunchStream stream);
  void collect(LaunchStream stream, int device) ABSL_LOCKS_EXCLUDED(mutex_);
  void collect_all(int device) ABSL_LOCKS_EXCLUDED(mutex_);

  inline static std::atomic<std::uint64_t> last_generation{0};  // How often a context was lost.

  const int device_;
  Mutex mutex_;
  std::list<Item> waiting_ ABSL_GUARDED_BY(mutex_);
  Memories memories_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace graphcache
