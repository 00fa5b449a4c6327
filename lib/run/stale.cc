// Verify mode: at every n-th hit of a key, `fn` is recorded again without being run, and compared with the template.
#include <absl/strings/str_cat.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cuda/errors.h"
#include "graph/compare.h"
#include "graphcache/status.h"
#include "run/impl.h"

namespace graphcache {
namespace {

// Whether a call of `fn` broke the capture. The call at fault returns an error of its own; later calls, in any thread,
// report only that the capture was already invalidated (fact 4).
bool is_of_fn(cudaError_t error) { return is_capture_error(error) && error != cudaErrorStreamCaptureInvalidated; }

// Fills the stack below its caller's frame.
[[gnu::noinline]] void fill_stack(unsigned char byte) {
  std::array<unsigned char, 1 << 15> area;
  std::memset(area.data(), byte, area.size());
  asm volatile("" : : "r"(area.data()) : "memory");
}

// Calls f this many bytes deeper in the stack, over stack contents of this byte. Undefined bytes that `fn` passes to
// kernels, and addresses of its local variables, then differ from those of another call.
template <class F>
[[gnu::noinline]] void on_other_stack(std::size_t depth, unsigned char byte, F&& f) {
  void* const shift = __builtin_alloca(depth);
  fill_stack(byte);
  f();
  asm volatile("" : : "r"(shift) : "memory");
}

}  // namespace

// Without an outcome, the run goes on. After a finding with OnStale::kForget the entry is empty, so the run is a miss.
std::optional<absl::StatusOr<Outcome>> Cache::Impl::verify_hit(Held& entry, Request& request) {
  const bool is_hit = entry->executable != nullptr || (entry->content != nullptr && entry->retry.left == 0);
  if (!is_hit || ++entry->unverified < options_.verify_every) return std::nullopt;
  entry->unverified = 0;
  LastErrorGuard last_error;
  if (absl::Status unfit = check(request); !unfit.ok()) return failed(request, std::move(unfit));
  DeviceGuard device(options_.device);
  if (!device.status().ok()) return failed(request, device.status());

  std::string found;
  bool fails_under_capture = false;
  if (absl::Status status = record_again(entry, request, &found, &fails_under_capture); !status.ok()) {
    return failed(request, std::move(status));
  }
  if (fails_under_capture) {
    return reported(entry, request, [&] { return run_directly(entry, EagerReason::kCaptureFailed, request); });
  }
  if (found.empty()) return std::nullopt;
  if (report(entry.get(), found)) log(request.key, found);
  if (options_.on_stale == OnStale::kReturnError) {
    return failed(request, absl::FailedPreconditionError(absl::StrCat("the key's graph is stale: ", found)));
  }
  if (options_.on_stale == OnStale::kForget) give_up(*entry.get(), Loss::kStale, /*and_template=*/true);
  return std::nullopt;
}

// Sets `found` to the difference, or to an empty text. The recording was never launched, so it is destroyed at once.
absl::Status Cache::Impl::record_again(Held& entry, const Request& request, std::string* found,
                                       bool* fails_under_capture) {
  Captured now;
  bool was_called = false;
  const auto capture_into = [&](Captured* out) {
    Report report;
    // What breaks it is part of the finding.
    *out = capture_fn(*entry.get(), request, nullptr, &report);
    add_to(request.dropped, out->kept);
    was_called = !report || report->refused().ok();
  };
  on_other_stack(0x10, 0x5a, [&] { capture_into(&now); });
  if (absl::Status fatal = take_fatal_error(now); !fatal.ok()) return fatal;
  note_strays(entry.get(), request, now.strays);
  if (now.empty_slot) return absl::OkStatus();  // There is no node to compare with.
  const cudaError_t of_fn = cuda_error(now.fn), of_capture = cuda_error(now.capture);
  // A run inside this one that an outer graph cannot contain.
  const bool refused = of_capture == cudaSuccess && now.capture.code() == absl::StatusCode::kFailedPrecondition;
  if (is_of_fn(of_fn) || is_of_fn(of_capture) || (refused && now.fn.ok())) {
    *found = absl::StrCat("fn could not be recorded again",
                          refused ? ": " : ", probably because it now makes a call that a capture forbids: ",
                          std::string((now.capture.ok() ? now.fn : now.capture).message()));
    return absl::OkStatus();
  }
  if (of_capture == cudaSuccess && !now.fn.ok() && was_called && !now.is_misuse &&
      options_.on_capture_failure == OnCaptureFailure::kRunDirectly) {
    *fails_under_capture = true;
    return absl::OkStatus();
  }
  if (now.thrown != nullptr) {
    request.call.threw = true;
    std::rethrow_exception(now.thrown);
  }
  if (of_capture == cudaSuccess && !now.fn.ok()) return now.fn;
  // Another call failed, such as one whose slot has a value that CUDA refuses. That is not a finding.
  if (!now.capture.ok()) return absl::OkStatus();

  const Template& kept = entry->graph.empty() ? entry->executable->base() : entry->graph;
  std::optional<std::string> difference = first_difference(kept, *entry->content, now.graph, now.content);
  if (difference && !difference->empty()) {
    Captured again;
    on_other_stack(0x1150, 0xa5, [&] { capture_into(&again); });
    if (absl::Status fatal = take_fatal_error(again); !fatal.ok()) return fatal;
    if (!again.capture.ok() || !again.fn.ok()) return absl::OkStatus();
    difference = first_difference(kept, *entry->content, now.graph, now.content, again.graph, again.content);
  }
  if (!difference) return absl::OkStatus();
  *found = *std::move(difference);
  if (!found->empty()) absl::StrAppend(found, "; make what changes a slot, or put it in the key");
  ++totals_.verified;
  return absl::OkStatus();
}

// Returns whether the entry had no finding about this argument of the node.
bool Cache::Impl::report(Entry* entry, const std::string& finding) {
  // "node 3 (kernel add), argument 2 was 1 when the key was recorded, ...".
  const auto place_of = [](std::string_view text) { return text.substr(0, text.find(" was ")); };
  const std::string_view place = place_of(finding);
  ++totals_.stale;
  return note(entry, &Notes::stale, finding, [&](const std::string& text) { return place_of(text) == place; });
}

}  // namespace graphcache
