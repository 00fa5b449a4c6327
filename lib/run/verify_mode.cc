// Verify mode: at every n-th hit of a key, `fn` is recorded again without being run, and compared with the template.
#include <absl/strings/str_cat.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "cuda/errors.h"
#include "cuda/handles.h"
#include "graph/compare.h"
#include "graph/outside.h"
#include "graphcache/status.h"
#include "run/run.h"

namespace graphcache {
namespace {

// Whether a call of `fn` broke the capture. The call at fault returns an error of its own; later calls, in any thread,
// report only that the capture was already invalidated (fact 4).
bool is_of_fn(cudaError_t error) { return is_capture_error(error) && error != cudaErrorStreamCaptureInvalidated; }

// Waits a moment for the stream's work, so that none of it writes to memory. The legacy stream is not asked, because
// that may break captures.
cudaError_t wait_a_moment(cudaStream_t stream) {
  constexpr std::chrono::milliseconds kPatience(10);
  if (stream == cudaStreamLegacy) return cudaErrorNotReady;
  const LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  cudaError_t error = cudaErrorNotReady;
  while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  return error;
}

}  // namespace

// Without an outcome, the run goes on. After a finding with OnStale::kForget the entry is empty, so the run is a miss.
std::optional<absl::StatusOr<Outcome>> Run::verify_hit() {
  const bool is_hit =
      (executable() != nullptr || (entry_->graphs != nullptr && entry_->retry.left == 0)) && covers_values();
  if (!is_hit || ++own().unverified < core_.options.verify_every) return std::nullopt;
  own().unverified = 0;
  Scope scope(*this);
  if (absl::Status unfit = check(); !unfit.ok()) return failed(std::move(unfit));
  const DeviceGuard device(core_.options.device);
  if (!device.status().ok()) return failed(device.status());

  std::string found;
  if (auto outcome = record_again(&found); outcome || found.empty()) return outcome;
  core_.store.count(&Stats::stale);
  // "node 3 (kernel add), argument 2 was 1 when the key was recorded, ...": what stands before " was ".
  const auto place_of = [](std::string_view text) { return text.substr(0, text.find(" was ")); };
  const auto is_known = [&](const std::string& text) { return place_of(text) == place_of(found); };
  if (core_.store.note(entry_.get(), &EntryInfo::stale, found, is_known)) core_.log(key_, found);
  if (core_.options.on_stale == OnStale::kReturnError) {
    return failed(absl::FailedPreconditionError(absl::StrCat("the key's graph is stale: ", found)));
  }
  if (core_.options.on_stale == OnStale::kForget) {
    core_.give_up(*entry_, Loss::kStale, /*and_template=*/true);
  } else {
    finding_ = std::move(found);
  }
  return std::nullopt;
}

// Sets `found` to the difference, or to an empty text. The recording was never launched, so it is destroyed at once.
// Without an outcome, the run goes on.
std::optional<absl::StatusOr<Outcome>> Run::record_again(std::string* found) {
  const Template& kept = own().readable();
  const Content& content = *own().content;
  detail::Call call = call_;
  std::optional<HostSources> sources;
  const cudaError_t idle = wait_a_moment(stream_);
  if (is_fatal(idle)) return failed(cuda_failure("cudaStreamQuery", idle));
  if (idle == cudaSuccess) sources.emplace(kept, content);
  constexpr OtherPlace kHere = {0x10, 0x5a, /*and_heap=*/false};
  Captured now = capture_again(call, kHere);
  if (now.empty_slot && now.fn.ok()) {  // A node is missing, which it has with the values of the template.
    call.values = content.values.data();
    now = capture_again(call, kHere);
  }
  if (absl::Status fatal = take_fatal_error(now); !fatal.ok()) return failed(std::move(fatal));
  note_strays(now.strays);
  const cudaError_t of_fn = cuda_error(now.fn), of_capture = cuda_error(now.capture);
  // A run inside this one that an outer graph cannot contain.
  const bool refused = of_capture == cudaSuccess && now.capture.code() == absl::StatusCode::kFailedPrecondition;
  if (is_of_fn(of_fn) || is_of_fn(of_capture) || (refused && now.fn.ok())) {
    *found = absl::StrCat("fn could not be recorded again",
                          refused ? ": " : ", probably because it now makes a call that a capture forbids: ",
                          std::string(now.failure().message()));
    return std::nullopt;
  }
  if (of_capture == cudaSuccess && !now.fn.ok() && !now.is_refused && !now.is_misuse &&
      core_.options.on_capture_failure == OnCaptureFailure::kRunDirectly) {
    return reported([&] { return run_directly(EagerReason::kCaptureFailed); });
  }
  thrown_ = std::move(now.thrown);
  if (thrown_ != nullptr || (of_capture == cudaSuccess && !now.fn.ok())) return no_template(now.fn);
  // Another call failed, such as one whose slot has a value that CUDA refuses. That is not a finding.
  if (!now.capture.ok()) return std::nullopt;

  const auto recorded = [](const Captured& of) { return RecordedGraph{of.graph, of.content}; };
  std::optional<std::string> difference = first_difference({kept, content, call_.values}, recorded(now));
  if (difference && !difference->empty()) {
    std::array<Captured, 3> again;  // The last one elsewhere.
    for (Captured& one : again) {
      const bool is_elsewhere = &one == &again.back();
      one =
          capture_again(call, is_elsewhere ? OtherPlace{OtherPlace::kFar, 0xc3} : OtherPlace{OtherPlace::kNear, 0xa5});
      if (absl::Status fatal = take_fatal_error(one); !fatal.ok()) return failed(std::move(fatal));
      if (one.is_refused) return failed(std::move(one.fn));
      if (!one.capture.ok() || !one.fn.ok()) return std::nullopt;
    }
    difference = first_difference({kept, content, call_.values}, recorded(now),
                                  {recorded(again[0]), recorded(again[1]), recorded(again[2])});
  }
  if (!difference) return std::nullopt;
  *found = *std::move(difference);
  if (found->empty() && sources) *found = sources->change();
  if (found->empty() && !now.strays.empty()) {
    *found = absl::StrCat("fn enqueues work that no replay repeats: ", now.strays.front());
  }
  core_.store.count(&Stats::verified);
  return std::nullopt;
}

}  // namespace graphcache
