// Captures the work of a run, with a watcher of CUDA calls if there is one (Options::diagnose).
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "graph/own_graph.h"
#include "graphcache/cache.h"
#include "run/impl.h"

namespace graphcache {

// The component may be unusable, for example because of a profiler. Then the cache works without it.
void Cache::Impl::find_diagnoser() {
  std::string why;
  diagnoser_ = graphcache::find_diagnoser(&why);
  if (diagnoser_ == nullptr) log(absl::StrCat("graphcache: captures are not diagnosed: ", why));
}

// Reports the call that breaks a capture at once, also to stderr, because `fn` may end the program at the next failing
// call. The result must not outlive `request`.
TellBreak Cache::Impl::teller_of(const Request& request) const {
  if (diagnoser_ == nullptr) return nullptr;
  return [this, &key = request.key](std::string_view text) {
    try {
      const absl::Status line = with_key(absl::UnknownError(std::string(text)), key);
      if (!logs_to_stderr_) std::fprintf(stderr, "%s\n", std::string(message_of(line)).c_str());
      log(message_of(line));
    } catch (const std::bad_alloc&) {
    }
  };
}

// The legacy stream cannot be captured, so `fn` gets another, non-blocking stream in its place. Calls of other threads
// on the legacy stream go on, and what `fn` itself enqueues there is not part of the graph. In verify mode the stream
// is a blocking one: then such a launch by `fn` breaks the capture and is reported.
Captured Cache::Impl::capture_fn(const Entry& entry, const Request& request, const TellBreak& tell, Report* report) {
  if (request.stream != cudaStreamLegacy || request.call.makes_graph())
    return capture_on(request.stream, entry, request, tell, report);
  const OwnStreams::Loan stream(device_->capture_streams);
  if (stream.result().error == cudaSuccess) return capture_on(stream.get(), entry, request, tell, report);
  Captured none;
  none.capture = cuda_failure(stream.result().call, stream.result().error);
  return none;
}

Captured Cache::Impl::capture_on(cudaStream_t stream, const Entry& entry, const Request& request, const TellBreak& tell,
                                 Report* report) {
  CacheEvent event = event_of(EventKind::kCapture, entry);
  event.graph = 0;  // In verify mode the entry has one.
  event.stream = request.call.makes_graph() ? nullptr : stream;
  event.loss = entry.template_lost;
  report->emplace(*audience_, event);
  Captured captured;
  captured.fn = (*report)->refused();
  if (captured.fn.ok()) {
    (*report)->event.status = absl::CancelledError("");  // Until it is done.
    captured = request.call.makes_graph()
                   ? make_graph(request.call, options_.device)
                   : capture(stream, options_.capture_mode, request.call, device_->setter, diagnoser_, tell);
    (*report)->event.status = captured.capture.ok() ? captured.fn : captured.capture;
  }
  return captured;
}

// Keeps and logs the work of `fn` that is not in the graph, each text once.
void Cache::Impl::note_strays(Entry* entry, const Request& request, const std::vector<std::string>& strays) {
  for (const std::string& stray : strays) {
    CacheEvent event = event_of(EventKind::kStray, *entry);
    event.text = stray;
    audience_->mark(event);
    if (!note(entry, &Notes::stray_work, stray, [&](const std::string& text) { return text == stray; })) continue;
    log(request.key, absl::StrCat(stray, ": it runs now, and no replay repeats it: enqueue it on rec.stream()"));
  }
}

// Describes the missed work for the case that there is no graph.
std::string Cache::Impl::list_of(const std::vector<std::string>& strays) {
  std::string text;
  for (const std::string& stray : strays) absl::StrAppend(&text, text.empty() ? ". Elsewhere " : "; ", stray);
  return text;
}

}  // namespace graphcache
