// Makes a key ready before its first run.
#include <absl/cleanup/cleanup.h>

#include <chrono>
#include <utility>

#include "cuda/errors.h"
#include "run/impl.h"

namespace graphcache {

absl::Status Cache::Impl::warm(const Key& key, cudaStream_t stream, const detail::Call& call) {
  Request request{.key = key, .stream = name_of(stream), .given = stream, .call = call};
  return without_throwing(request, [&] { return warm(request); });
}

// Does what the first run of a key does, up to the launch. Evicts no executable. A key that will borrow one gets its
// set in the table.
absl::Status Cache::Impl::warm(Request& request) {
  const cudaStream_t stream = request.stream;
  if (active_recording != nullptr) {
    return failed(request, absl::FailedPreconditionError("warm was called inside another run's fn"));
  }
  if (absl::Status why = begin(request.stream); !why.ok()) return failed(request, std::move(why));
  if (!enabled_) return status();
  Objects dropped;
  request.dropped = &dropped;
  Held entry(*this, claim(request));
  (void)begin_slowly(entry.get());
  LastErrorGuard last_error;
  if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  entry->stream = LaunchStream::of(stream);
  if (entry->executable != nullptr) return absl::OkStatus();
  DeviceGuard device(options_.device);
  if (!device.status().ok()) return failed(request, device.status());
  const absl::Cleanup tidy = [&] {
    entry.release();
    tidy_up(stream);
  };
  trim(/*if_much=*/true);
  if (entry->content == nullptr) {
    NoTemplate none;
    if (absl::Status status = capture_template(entry, request, &none); !status.ok()) {
      return no_template(request, std::move(status), none);
    }
  }
  entry->retry.at_once();
  if (absl::Status lost = find_family(entry, request); !lost.ok()) return failed(request, std::move(lost));
  Held lender(*this, nullptr);
  Plan plan;
  {
    MutexLock lock(mutex_);
    lender.reset(lock_candidate(entry.get()));
    if (lender.get() == nullptr) {
      sweep();
      plan = policy_.plan(entry->id, {}, {[](KeyId) { return false; }});
      if (plan.action == Plan::Action::kDirect) return absl::OkStatus();
      Losers none;
      begin(entry.get(), plan, &none);
    }
  }
  if (lender.get() != nullptr) return warm_set(entry, lender, request);
  const CallResult result = instantiate_ahead(entry, plan);
  if (result.error == cudaSuccess) return absl::OkStatus();
  if (!is_fatal(result.error)) give_up(*entry.get(), Loss::kFailed);
  return failed(request, cuda_failure(result.call, result.error));
}

// Instantiates and uploads the executable that was promised to the entry. Evicts no executable.
CallResult Cache::Impl::instantiate_ahead(Held& entry, Plan& plan) {
  cudaStream_t stream = nullptr;
  CallResult done;
  {
    RelaxedCaptureMode relaxed;
    done = device_->upload_stream.get(&stream);
  }
  if (done.error == cudaSuccess) done = buy(entry, plan, /*may_evict=*/false, stream).result;
  if (done.error != cudaSuccess) return done;
  Audience::Span span(*audience_, event_of(EventKind::kUpload, *entry.get()));
  const auto begin = std::chrono::steady_clock::now();
  const CallResult result = entry->executable->put_in_place(stream);
  if (result.error != cudaSuccess) span.event.status = cuda_failure(result.call, result.error);
  Totals::add(totals_.first_launch_time, begin);
  return result;
}

// Adds the entry's set to the lender's table, if it has one and there is room.
absl::Status Cache::Impl::warm_set(Held& entry, Held& lender, const Request& request) {
  Offer offer;
  if (!find_offer(entry, lender, &offer) || offer.has_set || lender->executable->table() == nullptr) {
    return absl::OkStatus();
  }
  {
    MutexLock lock(mutex_);
    const bool fits = policy_.bytes() + offer.set_bytes <= options_.max_device_bytes;
    if (!fits || policy_.is_table_full(lender->id, offer.set_bytes)) return absl::OkStatus();
    policy_.added_set(lender->id, offer.set_bytes);
  }
  const CallResult done = add_set(entry, lender, request);
  if (done.error == cudaSuccess) return absl::OkStatus();
  if (!is_fatal(done.error)) {
    MutexLock lock(mutex_);
    // Without the event a launch would not wait for the set.
    lender->executable->table()->has(*entry->content) ? evict(lender.get(), Loss::kFailed)
                                                      : policy_.added_set(lender->id, 0 - offer.set_bytes);
  }
  return failed(request, cuda_failure(done.call, done.error));
}

}  // namespace graphcache
