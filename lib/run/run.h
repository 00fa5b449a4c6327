// A run of a key: find its entry; launch what is ready, or capture, get an executable, launch; or call `fn` directly.
#pragma once

#include <absl/cleanup/cleanup.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/audience.h"
#include "cuda/errors.h"
#include "cuda/this_thread.h"
#include "graph/capture.h"
#include "graphcache/detail/call.h"
#include "graphcache/key.h"
#include "graphcache/stats.h"
#include "run/core.h"
#include "run/other_stack.h"

namespace graphcache {

// Cache::run(), or of a step if something is remembered.
absl::StatusOr<Outcome> run(Core& core, const Key& key, cudaStream_t stream, const detail::Call& call,
                            detail::Remembered* remembered = nullptr);

// A run that is no hit, or a call of warm(). On the stack of its thread.
class Run {
 public:
  // `found` is the entry, locked, if it is known. The run gives its lock back.
  Run(Core& core, const Key& key, cudaStream_t stream, const detail::Call& call,
      detail::Remembered* remembered = nullptr, Entry* found = nullptr);

  ~Run();

  // `launched` is the error of the entry's launch, if that was tried. Throws what `fn` throws.
  absl::StatusOr<Outcome> run(cudaError_t launched = cudaSuccess);
  absl::Status warm();

 private:
  // What surrounds the work of a run: the thread gets its device and its last error back.
  class Scope;

  absl::Status threw();
  // Calls f(). If that throws, the event has the error.
  template <class F>
  static auto watched(const detail::Call& call, CacheEvent* event, F&& f) try {
    event->status = absl::CancelledError("");
    return f();
  } catch (const abi::__forced_unwind&) {  // The thread is being cancelled.
    throw;
  } catch (...) {
    event->status = call.threw ? exception_failure("fn threw") : out_of_memory();
    throw;
  }
  template <class F>
  absl::StatusOr<Outcome> reported(F&& f);
  absl::Status failed(absl::Status why) {
    if (!finding_.empty()) why = with_more(why, "; verify mode has found: ", finding_);
    return core_.failed(key_, std::move(why), was_told_);
  }
  // The end of a run or warm() whose recording failed, and that does not run directly.
  absl::Status no_template(absl::Status why) {
    if (thrown_ == nullptr) return failed(std::move(why));
    call_.threw = true;
    std::rethrow_exception(thrown_);
  }

  // ---- The ways that a run can take (run.cc). Each of them counts its outcome. ----
  absl::StatusOr<Outcome> find_and_run();
  absl::Status claim();
  absl::StatusOr<Outcome> run_slowly();
  absl::StatusOr<Outcome> record();
  absl::Status capture_template();
  absl::StatusOr<Outcome> bring_back(Outcome by_sibling, Outcome by_own);
  // See Executable::renew().
  CallResult renew() {
    if (has_new_graph_) return {};
    return Executable::renew(&own().graph, *own().content, call_, *core_.device->memory);
  }
  // Whether the entry's executable can do the run's work, if it is patched.
  bool can_replay() const {
    return executable() != nullptr && covers_values() && executable()->has_its_memory(call_.values);
  }
  absl::StatusOr<Outcome> launch(Outcome outcome);
  absl::StatusOr<Outcome> replay_failed(const CallResult& result, EagerReason reason, bool is_unfit = false);
  absl::StatusOr<Outcome> call_again(const absl::Status& why);

  // ---- The stream (check.cc) ----
  absl::Status check();
  absl::Status check_device();
  bool is_in_foreign_capture() const;

  // ---- Without a graph of the key (direct.cc) ----
  absl::StatusOr<Outcome> run_nested();
  absl::StatusOr<Outcome> run_inlined();
  Outcome inlined() {
    core_.store.count_inlined();
    return Outcome::kInlined;
  }
  absl::StatusOr<Outcome> run_disabled();
  absl::StatusOr<Outcome> run_directly(EagerReason reason);
  absl::Status launch_once();

  // ---- Capturing (record.cc) ----
  absl::Status capture_usable(Captured* captured);
  Captured capture_fn(const detail::Call& call, const TellBreak& tell, bool keeps);
  Captured capture_again(const detail::Call& call, const OtherPlace& place);
  // What the run does not keep is released behind its lock.
  void drop(const std::shared_ptr<Objects>& kept) {
    if (kept != nullptr) dropped_.splice(dropped_.end(), *kept);
  }
  void note_strays(const std::vector<std::string>& strays);

  // ---- Values that are not found yet (values.cc) ----
  std::uint64_t memory_of_values() const;
  bool covers_values() const;
  absl::Status learn(Recorded* made);
  bool update_to(Recorded& made);

  // ---- Verify mode (verify_mode.cc) ----
  std::optional<absl::StatusOr<Outcome>> verify_hit();
  std::optional<absl::StatusOr<Outcome>> record_again(std::string* found);

  // ---- Getting an executable (obtain.cc) ----
  absl::Status find_family();
  void read_graph(Entry& entry);
  bool make_set(const Held& lender, ParameterTable::Set* set);
  std::optional<Plan> decide(Held& lender, const ParameterTable::Set& set, bool may_evict);
  std::optional<CallResult> take_over(Held& lender, const Plan& plan, const ParameterTable::Set& set);
  void not_updated(const BroughtOver& brought);
  void evict(Entry* victim, bool unlocks = true);
  CallResult buy(Plan& plan, bool may_evict);
  CallResult instantiate(Plan& plan);

  Recorded& own() const { return recorded(*entry_); }
  Executable* executable() const { return executable_of(*entry_); }
  // EntryInfo::id of the entry, or 0.
  std::uint64_t number() const { return entry_ != nullptr ? entry_->number() : 0; }

  const detail::NotCancelled not_cancelled_;
  Core& core_;
  const Key& key_;
  const cudaStream_t given_;                     // The name that the caller gave, for `fn`.
  const cudaStream_t stream_ = name_of(given_);  // Named cudaStreamLegacy if it is the legacy stream.
  LaunchStream where_ = LaunchStream(stream_);   // The stream of the run's launch, with its id if that was looked up.
  const detail::Call& call_;
  detail::Site site_ = call_.site;        // With what is known of the memory that values point to.
  detail::Remembered* const remembered_;  // The entry that a step remembers, or null if this is not a step.

  std::string finding_;  // Of verify mode, about a graph that the run replays all the same.
  Objects dropped_;      // Released when the run holds no lock any more.
  Held entry_;
  LastErrorGuard* last_error_ = nullptr;  // That of the scope, if there is one.

  bool has_new_graph_ = false;         // Whether this run has captured the graph that the entry has.
  std::optional<EagerReason> reason_;  // Why the run is direct.
  std::exception_ptr thrown_;          // What `fn` threw when it was last recorded.
  bool tells_ = false;                 // Whether the log gets why there is none, unless the direct call fails as well.

  // For listeners and the log.
  bool is_reported_ = false;  // Whether reported() has been called.
  bool was_told_ = false;     // Whether the log has the error that the run returns.
};

class Run::Scope {
 public:
  explicit Scope(Run& run) : run_(run) { run.last_error_ = &last_error_; }
  ~Scope() {
    if (device_ && device_->result().error == cudaSuccess) {
      run_.entry_.reset();
      run_.core_.tidy_up(run_.where_);
    }
    run_.last_error_ = nullptr;
  }

  // Makes the cache's device current. The cache is tidied up at the end of the scope.
  absl::Status enter_device() { return device_.emplace(run_.core_.options.device).status(); }

 private:
  Run& run_;
  LastErrorGuard last_error_;
  std::optional<DeviceGuard> device_;
};

template <class F>
absl::StatusOr<Outcome> Run::reported(F&& f) {
  if (core_.audience->empty() || std::exchange(is_reported_, true)) return f();
  Audience::Span span(*core_.audience, {.kind = EventKind::kRun, .key = key_, .entry = number()});
  const absl::Cleanup over = [this] {  // Listeners may ask for the entry's graph then.
    entry_.reset();
    dropped_.clear();
  };
  absl::StatusOr<Outcome> outcome = watched(call_, &span.event, f);
  span.event.status = outcome.status();
  if (outcome.ok()) span.event.outcome = *outcome;
  if (outcome.ok() && *outcome == Outcome::kEager) span.event.reason = reason_;
  return outcome;
}

}  // namespace graphcache
