// Captures the work of a run, with a watcher of CUDA calls if there is one (Options::diagnose).
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graphcache/status.h"
#include "run/run.h"

namespace graphcache {

// Captures a graph that could be kept, or returns why there is none, and sets what follows.
absl::Status Run::capture_usable(Captured* out) {
  Captured& captured = *out;
  const bool is_first = entry_->error.ok(), is_first_break = !entry_->broke;
  {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Cleanup timed = [&] {
      core_.store.count(&Stats::capture_time, std::chrono::steady_clock::now() - begin);
    };
    // Reports the call that breaks the capture at once, also to stderr, because `fn` may end the program at the next
    // failing call.
    const auto tell = [this](std::string_view text) { core_.log(key_, text, "", /*to_stderr=*/true); };
    captured = capture_fn(call_, is_first_break ? tell : TellBreak(), /*keeps=*/true);
  }

  if (absl::Status fatal = take_fatal_error(captured); !fatal.ok()) return fatal;
  note_strays(captured.strays);
  if (captured.has_usable_graph()) return absl::OkStatus();
  const bool runs_directly = core_.options.on_capture_failure == OnCaptureFailure::kRunDirectly || captured.empty_slot;
  absl::Status why = captured.failure();
  if (!why.ok()) {
    if (!captured.is_refused && !captured.is_misuse && runs_directly) reason_ = EagerReason::kCaptureFailed;
  } else if (captured.content.node_count == 0) {
    reason_ = EagerReason::kNothingCaptured;
    why = absl::FailedPreconditionError(absl::StrCat(
        "fn enqueued nothing on its stream, so there is no graph: enqueue on the stream that fn is given, or on "
        "rec.stream()",
        captured.strays.empty() ? "" : ". Elsewhere ", absl::StrJoin(captured.strays, "; ")));
  } else {
    if (runs_directly) reason_ = EagerReason::kHandsOutMemory;
    why = absl::FailedPreconditionError(
        "fn hands out memory that the graph would allocate: cudaMallocAsync in fn has no cudaFreeAsync there. "
        "Free the memory in fn, or allocate it before the run");
  }

  // Its own copy, because other threads free it while this one reads `why`.
  core_.store.capture_failed(entry_.get(), copy_of(why), !captured.capture.ok());
  thrown_ = std::move(captured.thrown);
  if (reason_ == EagerReason::kCaptureFailed) {
    captured.empty_slot ? entry_->retry.soon() : entry_->retry.later();
  } else if (reason_) {
    entry_->retry.never(*reason_);
  }
  const bool was_told = captured.was_told && !captured.capture.ok();
  const bool tells = !was_told && (captured.capture.ok() ? is_first : is_first_break);
  tells_ = tells && reason_ == EagerReason::kCaptureFailed;
  if (tells && !tells_) core_.log(key_, message_of(why));
  was_told_ = (was_told || tells) && !reason_;
  return why;
}

// The legacy stream cannot be captured, so `fn` gets another, non-blocking stream in its place. Calls of other threads
// on the legacy stream go on, and what `fn` itself enqueues there is not part of the graph. In verify mode the stream
// is a blocking one: then such a launch by `fn` breaks the capture and is reported.
Captured Run::capture_fn(const detail::Call& call, const TellBreak& tell, bool keeps) {
  Captured captured;
  OwnedStream own;
  cudaStream_t stream = call.makes_graph() ? nullptr : stream_;
  if (stream == cudaStreamLegacy) {
    const LastErrorGuard last_error;
    const RelaxedCaptureMode relaxed;  // Other threads may capture.
    const CallResult made =
        make_stream(core_.options.verify_every == 0 ? cudaStreamNonBlocking : cudaStreamDefault, &own);
    if (made.error != cudaSuccess) {
      captured.capture = cuda_failure(made.call, made.error);
      return captured;
    }
    stream = own.get();
  }
  const bool is_lost = entry_->graphs == nullptr;
  CacheEvent event = Core::event_of(EventKind::kCapture, *entry_, is_lost ? entry_->info.template_lost : Loss::kNone);
  event.graph = 0;  // In verify mode the entry has one.
  event.stream = stream;
  Audience::Span report(*core_.audience, event);
  captured.fn = report.event.status;
  captured.is_refused = !captured.fn.ok();
  if (!captured.is_refused) {
    captured = watched(call, &report.event, [&] {
      return call.makes_graph() ? make_graph(call, core_.options.device)
                                : capture(stream, call, core_.device->setter, core_.diagnoser, tell);
    });
    report.event.status = captured.failure();
    dropped_.splice(dropped_.end(), captured.until_over);
    if (keeps && captured.has_usable_graph()) {
      report.event.graph = captured.content.id;
      report.event.captured = captured.graph.graph.get();
    }
  }
  if (is_fatal(cuda_error(captured.failure()))) own.release();
  return captured;
}

// Records `fn` elsewhere without keeping the graph.
Captured Run::capture_again(const detail::Call& call, const OtherPlace& place) {
  const absl::Cleanup threw = [&] { call_.threw |= call.threw; };
  Captured again;
  on_other_stack(place, [&] { again = capture_fn(call, nullptr, /*keeps=*/false); });
  drop(again.kept);
  return again;
}

// Keeps and logs the work of `fn` that is not in the graph, each text once.
void Run::note_strays(const std::vector<std::string>& strays) {
  for (const std::string& stray : strays) {
    CacheEvent event = Core::event_of(EventKind::kStray, *entry_);
    event.text = stray;
    core_.audience->mark(event);
    if (!core_.store.note(entry_.get(), &EntryInfo::stray_work, stray,
                          [&](const std::string& text) { return text == stray; }))
      continue;
    core_.log(key_,
              absl::StrCat(stray,
                           ": it runs now, and no replay repeats it: enqueue it on rec.stream() or on a stream forked "
                           "from it, by an asynchronous call"));
  }
}

}  // namespace graphcache
