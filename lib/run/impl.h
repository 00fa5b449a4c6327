// The state of a cache, and the steps of a run. Their order is in lib/run/runner.cc.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/cleanup/cleanup.h>
#include <absl/container/inlined_vector.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/audience.h"
#include "cuda/errors.h"
#include "cuda/mutex.h"
#include "graph/capture.h"
#include "graph/recording.h"
#include "graphcache/cache.h"
#include "policy/policy.h"
#include "run/device.h"
#include "run/entry.h"
#include "run/hit.h"
#include "run/index.h"
#include "run/known_streams.h"
#include "run/totals.h"

namespace graphcache {

// Locks and their order. `mutex_` guards the index and the policy. It is held only for book-keeping, never across a
// CUDA call or `fn`. An entry's lock is held by its run across all of these. A thread that holds an entry's lock may
// lock `mutex_`; a thread that holds `mutex_` may only try an entry's lock. A hit holds only its entry's lock, because
// it finds the entry without `mutex_`.
class Cache::Impl {
 public:
  // `invalid` is what is wrong with the options, or ok. Makes no CUDA call.
  Impl(const Options& options, absl::Status invalid);
  ~Impl();

  absl::StatusOr<Outcome> run(const Key& key, cudaStream_t stream, const detail::Call& call);
  absl::StatusOr<Outcome> run_step(const Key& key, cudaStream_t stream, const detail::Call& call,
                                   detail::Remembered* remembered, cudaError_t error);
  absl::Status warm(const Key& key, cudaStream_t stream, const detail::Call& call);

  bool contains(const Key& key) const;
  bool pin(const Key& key, bool pinned);
  // Returns how many of the keys were known.
  std::size_t erase(absl::Span<const Key> keys);
  std::size_t erase_if(const std::function<bool(const Key&)>& predicate);
  void clear();
  Stats stats() const;
  std::vector<EntryInfo> entries() const;
  absl::StatusOr<GraphInfo> graph(const Key& key);
  absl::StatusOr<GraphInfo> graph(std::uint64_t entry);
  absl::Status status() const;
  const Options& options() const { return has_begun() ? options_ : asked_; }
  StreamArg default_stream() const { return asked_.stream; }
  const std::shared_ptr<detail::Hits>& hits() const { return hits_; }
  // Makes threads that wait for an entry look again.
  void wake();

 private:
  friend class Verifier;

  // Holds an entry's lock until the end of the scope or until it is released. May hold none.
  class Held {
   public:
    Held(Impl& impl, Entry* locked) : impl_(impl), entry_(locked) {}
    ~Held() { release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    void release() { reset(nullptr); }
    // Holds another entry's lock instead.
    void reset(Entry* locked) {
      if (entry_ != nullptr) impl_.unlock(entry_);
      entry_ = locked;
    }
    Entry* get() const { return entry_; }
    Entry* operator->() const { return entry_; }

   private:
    Impl& impl_;
    Entry* entry_;
  };

  // Counts this thread as a user of an entry until the end of the scope, so that the entry stays while the run calls
  // `fn` without its lock. May keep none.
  class User {
   public:
    User(Impl& impl, Entry* counted) : impl_(impl), entry_(counted) {}
    ~User();
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    std::optional<EagerReason> eager;  // Set if the run ends with this outcome: it is then counted.

   private:
    Impl& impl_;
    Entry* const entry_;
  };

  // What is known of a run that is reported to listeners.
  struct Reported {
    bool is_sampled = false;                 // Whether run_sampled() reports it, to listeners that want a hit.
    bool is_no_hit = false;                  // Whether reported() reports it, to the others.
    std::uint64_t uses = 0;                  // Number of earlier runs of the thread.
    std::optional<EagerReason> reason = {};  // Of a direct run.
  };

  // The arguments of one run.
  struct Request {
    const Key& key;
    cudaStream_t stream;  // Named cudaStreamLegacy if it is the legacy stream.
    cudaStream_t given;   // The name that the caller gave, for `fn`.
    const detail::Call& call;
    detail::Remembered* remembered = nullptr;  // The entry that a step remembers, or null if this is not a step.
    LastErrorGuard* last_error = nullptr;      // The run's guard, or null for a hit.
    Reported* report = nullptr;                // Null if the run is not reported to listeners.
    // Released when the run holds no lock any more. Null for a hit.
    Objects* dropped = nullptr;
  };

  // What the run does not keep is added to `dropped`, which is released behind the run's entry.
  static void add_to(Objects* dropped, const std::shared_ptr<Kept>& kept) {
    if (kept != nullptr) dropped->splice(dropped->end(), kept->objects);
  }

  // Turns the library's own exceptions, when memory runs out, into errors of the run. Exceptions of `fn` pass through.
  template <class F>
  auto without_throwing(const Request& request, F&& f) -> decltype(f());
  absl::StatusOr<Outcome> run(Request& request);
  absl::StatusOr<Outcome> run_sampled(Request& request);
  // Reports a run that is no hit to the listeners. f() makes it.
  template <class F>
  absl::StatusOr<Outcome> reported(Held& entry, Request& request, F&& f);
  absl::Status warm(Request& request);

  // Finding the entry of a run.
  Entry* claim(const Request& request);
  Entry* claim_known(const Request& request);
  Entry* claimed(Entry* entry, const Request& request);
  static void remember(Entry* entry, const Request& request) {
    if (request.remembered != nullptr) *request.remembered = {entry, entry->life, request.call.site};
  }
  Entry* claim_or_wait(const Request& request);
  Entry* find_or_insert(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void touch(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void unlock(Entry* entry) {
    // An erased entry is deleted when its last holder unlocks it.
    if (entry->lock.unlock() || entry->erased.load(std::memory_order_relaxed)) wake();
  }
  void unlock_under_mutex(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (entry->lock.unlock()) unlocked_.notify_all();
  }

  absl::Status lock_by_number(std::uint64_t number, Entry** locked, std::uint64_t* family);

  // The ways that a run can take. Each of them counts its outcome.
  absl::StatusOr<Outcome> hit(Entry* locked, Request& request);
  absl::StatusOr<Outcome> step_failed(Request& request, cudaError_t error);
  absl::StatusOr<Outcome> replay(Held& entry, Request& request);
  absl::StatusOr<Outcome> launch(Held& entry, Request& request, Outcome outcome, Outcome if_patched);
  cudaError_t launch_first(Entry& entry, cudaStream_t stream);
  absl::StatusOr<Outcome> run_slowly(Held& entry, Request& request);
  absl::StatusOr<Outcome> record(Held& entry, Request& request);
  absl::StatusOr<Outcome> call_again(Held& entry, const Request& request);
  absl::StatusOr<Outcome> run_nested(const Request& request);
  absl::StatusOr<Outcome> run_inside(const Request& request);
  absl::StatusOr<Outcome> run_inlined(const Request& request);
  absl::StatusOr<Outcome> run_disabled(const Request& request);
  absl::StatusOr<Outcome> run_directly(Held& entry, EagerReason reason, const Request& request);
  absl::Status launch_once(const Request& request);
  absl::StatusOr<Outcome> replay_failed(Held& entry, const CallResult& result, EagerReason reason, Request& request,
                                        bool is_unfit = false);

  // The steps of these ways.
  absl::Status check(const Request& request);
  absl::Status check_device(cudaStream_t stream) const;
  bool is_in_foreign_capture(const Request& request) const;
  // Why there is no template.
  struct NoTemplate {
    enum class Why {
      kFailed,           // The run fails.
      kNotUnderCapture,  // `fn` failed or broke its capture. Nothing was enqueued, and a direct call may succeed.
      kEmpty,            // `fn` enqueued nothing on the stream.
      kHandsOutMemory,   // The graph allocates memory that it does not free.
    } why = Why::kFailed;
    std::exception_ptr thrown;  // What `fn` threw.
  };
  // The report of a capture lasts until its graph is kept or given up. It is empty if there was no stream to capture.
  using Report = std::optional<Audience::Span>;
  Captured capture_fn(const Entry& entry, const Request& request, const TellBreak& tell, Report* report);
  Captured capture_on(cudaStream_t stream, const Entry& entry, const Request& request, const TellBreak& tell,
                      Report* report);
  absl::Status capture_template(Held& entry, const Request& request, NoTemplate* none);
  void keep_template(Entry* entry, std::shared_ptr<Content> content, Captured* captured)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status no_template(const Request& request, absl::Status why, const NoTemplate& none);

  // Options::diagnose (diagnose.cc).
  void find_diagnoser();
  TellBreak teller_of(const Request& request) const;
  void note_strays(Entry* entry, const Request& request, const std::vector<std::string>& strays);
  static std::string list_of(const std::vector<std::string>& strays);

  // Verify mode (stale.cc).
  std::optional<absl::StatusOr<Outcome>> verify_hit(Held& entry, Request& request);
  absl::Status record_again(Held& entry, const Request& request, std::string* found, bool* fails_under_capture);
  template <class IsSame>
  bool note(Entry* entry, std::vector<Counted> Notes::*kind, const std::string& text, const IsSame& is_same)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return Notes::count(&(entry->note().*kind), text, is_same);
  }
  bool report(Entry* entry, const std::string& finding);

  // Getting an executable.
  struct Obtained {
    bool of_sibling = false;
    // If not a success, the call that failed. There is no executable then.
    CallResult result;
    EagerReason why = EagerReason::kBudget;  // Why there is no executable.
    bool is_unfit = false;                   // Whether the graph itself cannot be instantiated.
  };
  absl::StatusOr<Outcome> bring_back(Held& entry, Request& request, Outcome by_sibling, Outcome by_own);
  absl::Status find_family(Held& entry, const Request& request);
  void read_graph(Entry& entry);
  Obtained obtain(Held& entry, const Request& request);
  Entry* lock_candidate(const Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool find_offer(Held& entry, Held& lender, Offer* offer);
  bool decide(Held& entry, Held& lender, const Offer& offer, Plan* made);
  // Entries that have lost their executables, to be reported without the cache's lock. Those in `locked` stay locked
  // until then, so that no run of theirs is reported before.
  struct Losers {
    absl::InlinedVector<std::pair<std::shared_ptr<const Content>, EventKind>, 4> what;
    absl::InlinedVector<Entry*, 4> locked;
    // Makes room, so that nothing throws later.
    void reserve(std::size_t count) {
      what.reserve(count);
      locked.reserve(count);
    }
  };
  void begin(Entry* entry, const Plan& plan, Losers* losers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void report(const Losers& losers) ABSL_LOCKS_EXCLUDED(mutex_);
  class Locked;
  std::optional<Obtained> take_over(Held& entry, Held& lender, const Plan& plan, const Request& request);
  CallResult add_set(Held& entry, Held& lender, const Request& request);
  absl::Status warm_set(Held& entry, Held& lender, const Request& request);
  CallResult instantiate_ahead(Held& entry, Plan& plan);
  Obtained buy(Held& entry, Plan& plan, bool may_evict, cudaStream_t stream);
  CallResult instantiate(Entry& entry, Plan& plan, cudaStream_t stream);
  // What an entry cannot have, as was found by trying.
  enum class Refused { kDeviceUpdates, kSets, kSiblings };
  void refuse(Entry& entry, Refused what, const std::string& why = {}) ABSL_LOCKS_EXCLUDED(mutex_);
  // The policy's queries: when a key was last used, and whether it is idle.
  auto last_use_of() const {
    return [this](KeyId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return index_.of(id)->last_use(); };
  }
  bool is_idle(KeyId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Index::is_idle(index_.of(id)); }

  // Budgets.
  bool has_room(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool begin_slowly(Entry* entry) ABSL_LOCKS_EXCLUDED(mutex_);
  void evict(Entry* entry, Loss why, Losers* losers = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cleans up if something throws while the entry's executable changes, because its contents are then unknown.
  auto evicting(Held& entry) {
    return absl::Cleanup([this, &entry] { give_up(*entry.get(), Loss::kFailed); });
  }
  // Evicts the entry's executable, if it has one or was promised one, and may drop its template.
  void give_up(Entry& entry, Loss why, bool and_template = false, absl::Status error = absl::OkStatus())
      ABSL_LOCKS_EXCLUDED(mutex_);
  void drop(Entry* entry, Loss why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void erase(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void tidy_up(cudaStream_t stream);
  // Frees device memory that destroyed executables have returned.
  void trim(bool if_much = false) {
    if (!device_->memory->has_freed(if_much)) return;
    static const Key& none = *new Key;  // Caches may be destroyed later than static objects.
    const Audience::Span span(*audience_, {.kind = EventKind::kFree, .key = none});
    device_->memory->trim();
  }

  // Calls look(entry) under the cache's lock for each entry that can be found, and then take(result) without the lock.
  // Entries are handled a few at a time, so that runs go on; fewer at a time if their keys are long, because `look`
  // copies the key.
  template <class Look, class Take>
  void for_each_entry(Look&& look, Take&& take) const;

  // Book-keeping.
  absl::Status failed(const Request& request, absl::Status why);
  Outcome count_inlined();
  Outcome count_eager(Entry* entry, EagerReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Outcome count_eager(EagerReason reason);  // Of a run without an entry.
  void lose(const absl::Status& why);
  // GRAPHCACHE_LOG and Listener::message(). Call this without mutex_.
  void log(std::string_view text) const noexcept;
  void log(const Key& key, std::string_view what) const noexcept;
  void log_evictions(std::uint64_t evictions) const noexcept;
  bool sweep(bool of_clear = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Event of an entry that has a graph or none.
  static CacheEvent event_of(EventKind kind, const Entry& entry) {
    return {.kind = kind,
            .key = entry.key,
            .entry = entry.number(),
            .graph = entry.content != nullptr ? entry.content->id : 0};
  }
  Epitaph epitaph_of(const Entry& entry, Loss why, bool drops_graph) const noexcept {
    if (audience_->empty()) return {};
    return {.audience = audience_, .content = entry.content, .loss = why, .drops_graph = drops_graph};
  }
  std::unique_ptr<const Epitaph::Erased> last_of(const Entry& entry) const noexcept;

  absl::Status begin(cudaStream_t stream) ABSL_LOCKS_EXCLUDED(begin_mutex_);
  bool has_begun() const { return has_begun_.load(std::memory_order_acquire); }

  const Options asked_;
  absl::Status invalid_;  // What is wrong with the options, or ok.
  const bool enabled_;    // Whether anything is captured.
  const bool logs_to_stderr_;
  // The following are set by begin().
  mutable Mutex begin_mutex_;
  absl::Status not_begun_ ABSL_GUARDED_BY(begin_mutex_);  // Why the last call of begin() failed.
  std::atomic<bool> has_begun_{false};
  Options options_;  // With the actual device.
  std::unique_ptr<Device> device_;
  // Whether the cache has begun, things are captured, and no option requires other work before a hit.
  bool is_usual_ = false;
  const std::shared_ptr<const Audience> audience_;
  const detail::DiagnoseInterface* diagnoser_ = nullptr;  // Null unless Options::diagnose is set and works.
  std::atomic<bool> lost_{false};
  std::atomic<bool> has_surplus_{false};  // Whether there may be more templates than allowed.

  mutable Mutex mutex_;
  std::condition_variable_any unlocked_;  // With mutex_: an awaited entry has been unlocked.
  Index index_ ABSL_GUARDED_BY(mutex_);
  Policy policy_ ABSL_GUARDED_BY(mutex_);
  Signatures signatures_ ABSL_GUARDED_BY(mutex_);
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);

  // Number of evictions at which the next line is logged.
  std::atomic<std::uint64_t> next_storm_{1024};
  Totals totals_;
  // Its epoch is written under `mutex_`.
  const std::shared_ptr<detail::Hits> hits_ = std::make_shared<detail::Hits>();
  // Streams that were checked to belong to the cache's device.
  KnownStreams known_streams_;
};

template <class F>
auto Cache::Impl::without_throwing(const Request& request, F&& f) -> decltype(f()) {
  const auto count = [this] { ++totals_.failed; };
  try {
    return f();
  } catch (const std::bad_alloc&) {
    if (!request.call.threw) return failed(request, out_of_memory());
    count();
    throw;
  } catch (...) {
    count();
    throw;
  }
}

template <class F>
absl::StatusOr<Outcome> Cache::Impl::reported(Held& entry, Request& request, F&& f) {
  if (audience_->empty()) return f();
  Reported own;
  const bool is_outermost = request.report == nullptr;
  if (is_outermost) request.report = &own;
  const absl::Cleanup ended = [&] {
    if (is_outermost) request.report = nullptr;
  };
  Reported& report = *request.report;
  if (std::exchange(report.is_no_hit, true)) return f();
  using Kind = Audience::Filter::Kind;
  Audience::Span span(*audience_, {.kind = EventKind::kRun, .key = request.key, .entry = entry->number()},
                      {report.is_sampled ? Kind::kNotSampled : Kind::kAll, report.uses});
  return span.end_with(f(), report.reason);
}

template <class Look, class Take>
void Cache::Impl::for_each_entry(Look&& look, Take&& take) const {
  constexpr std::size_t kEntries = 256, kKeyBytes = 1 << 16, kBuckets = 4096;  // Limits for each time the lock is held.
  std::vector<const Entry*> met;
  std::vector<decltype(look(std::declval<const Entry&>()))> some;
  some.reserve(kEntries + 64);  // The last bucket may contain several.
  for (std::optional<EntryTable::Walk> walk; !walk || !walk->done(); some.clear()) {
    {
      MutexLock lock(mutex_);
      if (!walk) walk.emplace(index_.walk());
      std::size_t key_bytes = 0;
      for (std::size_t i = 0; i < kBuckets && some.size() < kEntries && key_bytes < kKeyBytes && !walk->done(); ++i) {
        met.clear();
        walk->step([&](const Entry* entry) { met.push_back(entry); });
        for (const Entry* entry : met) {
          some.push_back(look(*entry));
          key_bytes += entry->key.size();
        }
      }
    }
    for (auto& looked : some) take(looked);
  }
}

}  // namespace graphcache
