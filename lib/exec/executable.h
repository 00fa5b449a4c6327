// An executable and what it holds: changing its values, bringing it over to a sibling's graph, and launching it.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/inlined_vector.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/mutex.h"
#include "exec/updater_node.h"
#include "graph/signature.h"
#include "graph/template.h"
#include "graphcache/detail/call.h"
#include "graphcache/stats.h"

namespace graphcache {

// Scratch memory for copies and sets of 0 bytes, which write one byte there instead. There is one block for each
// device, and one of pinned host memory (docs/semantics.md). Disabling such nodes instead would be wrong: a disabled
// set does not order what follows it after what precedes it (docs/semantics.md). Thread-safe.
class Scratch {
 public:
  explicit Scratch(int device) : device_(device) {}

  // Two bytes of a device or of the host (kHostMemory), allocated at the first call and freed by the destructor.
  CallResult bytes(int device, unsigned char** out) ABSL_LOCKS_EXCLUDED(mutex_);
  int device() const { return device_; }
  // Drops the handles after a fatal error.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const int device_;
  Mutex mutex_;
  Owned<void*, cudaFreeHost> of_host_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<int, Owned<void*, cudaFree>> of_devices_ ABSL_GUARDED_BY(mutex_);
};

struct Grave;  // exec/graveyard.h

// The result of bringing an executable over to a sibling's graph.
struct BroughtOver {
  CallResult result;
  bool whole = false;                       // After a failure: whether the executable is unchanged.
  std::optional<UpdateRefusal> refusal;     // After a failure: why the runtime refused the update, if it did.
  std::optional<std::size_t> refused_node;  // The index in the sibling's graph of the node that was refused.
  int updates = 0;                          // Number of cudaGraphExecUpdate calls that succeeded.
  std::size_t patched_nodes = 0;            // Number of nodes whose parameters were set.
};

// An executable and what it holds: a content and values of slots.
//
// Not thread-safe: the caller holds the lock of the entry that has the executable, from the patch to the launch (law
// 6).
class Executable {
 public:
  ~Executable();

  // Instantiates `base`, a graph of the device of `scratch`. The executable keeps the base, because only the base's
  // node handles can patch it (fact 12). On failure `base` is unchanged.
  static cudaError_t instantiate(Template& base, std::shared_ptr<const Content> content, unsigned long long flags,
                                 Scratch& scratch, std::unique_ptr<Executable>* out);

  // Instantiates a clone of `from`, which is unchanged, with an updater node that writes the slots of kernel nodes.
  // With a table it also writes what siblings have different (updater_node.h). Copies are enqueued on the stream.
  static CallResult instantiate_updated(Template& from, std::shared_ptr<const Content> content, bool with_table,
                                        unsigned long long flags, Scratch& scratch, Updater& updater,
                                        cudaStream_t stream, std::unique_ptr<Executable>* out);

  // Whether the device updates this executable.
  bool has_updater_node() const { return updater_node_ != nullptr; }
  // Whether it can be brought over to siblings: a plain one by updates or patches, another by a set of its table.
  bool can_switch() const { return updater_node_ == nullptr || table() != nullptr; }
  ParameterTable* table() { return updater_node_ == nullptr ? nullptr : updater_node_->table(); }
  const ParameterTable* table() const {
    return updater_node_ == nullptr ? nullptr : std::as_const(*updater_node_).table();
  }

  const Content& content() const { return *content_; }
  // What contents keep that it has held before the present one, since formers() was last emptied. Launches of theirs
  // may be in flight; these are over when a launch of the present content is.
  using Formers = absl::InlinedVector<std::shared_ptr<Kept>, 1>;
  Formers& formers() { return formers_; }
  // Whether launches may write to its nodes. The first launch must not, unless put_in_place() was called. The driver
  // puts the nodes of a new executable into device memory later than its stream suggests, but before that launch runs
  // them (docs/semantics.md). Until then the host sets all nodes.
  bool is_in_place() const { return in_place_; }
  bool device_may_write() const { return updater_node_ != nullptr && in_place_; }

  // The error of a device-side update in a launch that has run.
  cudaError_t take_device_error() { return updater_node_ == nullptr ? cudaSuccess : updater_node_->take_error(); }
  bool holds(const detail::Call& call) const {
    return call.values_size == 0 || std::memcmp(values_.data(), call.values, call.values_size) == 0;
  }

  // Sets the slot nodes to the call's values and adds the number of patched nodes to `patched_nodes`. Values are
  // compared as bytes. Only later launches are affected (fact 14). After an error some nodes hold new values and some
  // old ones, and the executable must not be launched again.
  CallResult patch(const detail::Call& call, std::size_t* patched_nodes);

  // Switches the executable to the set of `to`, which its table has, and to the call's values. REQUIRES:
  // device_may_write(). After a failure it must not be launched again.
  BroughtOver switch_set(std::shared_ptr<const Content> to, const detail::Call& call);

  // Brings a plain executable over to a sibling's content and the call's values, in the way that `difference` found to
  // be cheaper. `difference` is from the executable's content to `to`; the graphs are those of the two contents. After
  // a failure the executable is restored. If that fails as well, it must not be launched again.
  BroughtOver bring_over(const Template& from_graph, const Template& to_graph, std::shared_ptr<const Content> to,
                         const Difference& difference, const detail::Call& call);

  cudaError_t launch(cudaStream_t stream) {
    const cudaError_t error = cudaGraphLaunch(exec_.get(), stream);
    if (error != cudaSuccess) return error;
    in_place_ = true;
    stream_ = LaunchStream::of(stream);
    if (ready_.get() != nullptr) ready_ = {};
    return error;
  }
  // Uploads an executable that was never launched, and waits for that and for earlier copies on the stream.
  CallResult put_in_place(cudaStream_t stream);
  // The upload runs after the executable's launches, whatever their streams (docs/semantics.md).
  CallResult upload(cudaStream_t stream) { return {"cudaGraphUpload", cudaGraphUpload(exec_.get(), stream)}; }
  // The data that an updater node reads is copied on the stream of the run that creates it. If that run does not
  // launch, the next launch may be on another stream. mark_ready() marks the end of the copies. get_ready(), called
  // before each launch, orders the launch behind the mark. Later launches follow that one and need nothing more
  // (fact 15).
  CallResult mark_ready(cudaStream_t stream);
  CallResult get_ready(cudaStream_t stream) { return ready_.get() == nullptr ? CallResult{} : wait(stream); }
  // The stream of the last launch. Launches of one executable follow each other whatever their streams (fact 15).
  LaunchStream stream() const { return stream_; }

  // The handle and the values that it holds, for hits.
  cudaGraphExec_t exec() const { return exec_.get(); }
  const unsigned char* values() const { return values_.data(); }

  Template& base() { return base_; }
  // Gives away the base. The executable must not be patched or updated any more.
  Template take_base() { return std::exchange(base_, {}); }

  // The list node in which the executable waits for its destruction. Allocated in advance; can be taken once.
  std::list<Grave> take_grave();

  // Drops the handles without destroying the CUDA objects.
  void abandon();

 private:
  friend class StructureChecker;

  explicit Executable(Scratch& scratch);

  void hold(std::shared_ptr<const Content> content);
  void replace_content(std::shared_ptr<const Content> content);
  CallResult wait(cudaStream_t stream);
  CallResult patch_node(const SlotNode& node, const detail::Call& call, std::optional<bool>& driver_usable,
                        std::size_t* patched_nodes);
  bool update_fields(const SlotNode& node, const unsigned char* values);

  CallResult update_to(const Template& graph, std::shared_ptr<const Content> to, const detail::Call& call,
                       BroughtOver* brought);
  // Needs the driver. After an error the shadow is wrong until an update succeeds.
  CallResult patch_to(const std::shared_ptr<const Content>& to, const Difference& difference, const detail::Call& call,
                      std::size_t* patched_nodes);
  // Whether nodes are set by the driver. The first call for a node fills in `driver_usable`.
  bool by_driver(std::optional<bool>& driver_usable);
  CallResult set_kernel(const Content& content, std::uint32_t index);
  CallResult set_node(const SlotNode& node, std::optional<bool>& driver_usable);
  CallResult set_kernel(const SlotNode& node, std::optional<bool>& driver_usable);
  CallResult set_memcpy(const SlotNode& node);
  CallResult set_memset(const SlotNode& node);

  Scratch& scratch_;
  Template base_;
  std::unique_ptr<UpdaterNode> updater_node_;  // Null unless the device updates the executable.
  GraphExec exec_;                             // Destroyed before its base (law 8).
  LaunchStream stream_;
  // Whether all nodes are in device memory, or will be before the next launch's work.
  bool in_place_ = false;
  Event ready_;
  std::list<Grave> grave_;

  // A copy of what the executable holds. CUDA has no getters for it, and setting a node's parameters sets all of them
  // (fact 13).
  std::shared_ptr<const Content> content_;
  std::shared_ptr<Kept> kept_;  // What the content keeps.
  Formers formers_;
  // The content's slots with fields made from `values_`, except those that an updater node writes.
  Slots slots_;
  std::vector<unsigned char> values_;
};

}  // namespace graphcache
