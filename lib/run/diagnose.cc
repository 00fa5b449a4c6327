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
#include "graphcache/cache.h"
#include "run/impl.h"

namespace graphcache {

// The component may be unusable, for example because of a profiler. Then the cache works without it.
void Cache::Impl::find_diagnoser() {
  std::string why;
  diagnoser_ = graphcache::find_diagnoser(&why);
  if (diagnoser_ == nullptr) log(absl::StrCat("graphcache: captures are not diagnosed: ", why));
}

// Logs the call that breaks a capture at once, because `fn` may end the program at the next failing call. Without a log
// the line goes to stderr. The result must not outlive `request`.
TellBreak Cache::Impl::teller_of(const Request& request) const {
  if (diagnoser_ == nullptr) return nullptr;
  return [this, &key = request.key](std::string_view text) {
    try {
      const absl::Status line = with_key(absl::UnknownError(std::string(text)), key);
      if (logs_to_stderr_ || options_.log) {
        log(message_of(line));
      } else {
        std::fprintf(stderr, "%s\n", std::string(message_of(line)).c_str());
      }
    } catch (const std::bad_alloc&) {
    }
  };
}

// The legacy stream cannot be captured, so `fn` gets another, non-blocking stream in its place. Calls of other threads
// on the legacy stream go on, and what `fn` itself enqueues there is not part of the graph. In verify mode the stream
// is a blocking one: then such a launch by `fn` breaks the capture and is reported.
Captured Cache::Impl::capture_fn(const Request& request, const TellBreak& tell) {
  if (request.stream != cudaStreamLegacy) return capture_on(request.stream, request, tell);
  const OwnStreams::Loan stream(capture_streams_);
  if (stream.result().error == cudaSuccess) return capture_on(stream.get(), request, tell);
  Captured none;
  none.capture = cuda_failure(stream.result().call, stream.result().error);
  return none;
}

// Keeps and logs the work of `fn` that is not in the graph, each text once.
void Cache::Impl::note_strays(Entry* entry, const Request& request, const std::vector<std::string>& strays) {
  constexpr std::size_t kMaxTexts = 32;  // The texts contain stream handles, so their number has no other limit.
  for (const std::string& stray : strays) {
    {
      MutexLock lock(mutex_);
      auto& known = entry->note().stray_work;
      if (known.size() == kMaxTexts || std::find(known.begin(), known.end(), stray) != known.end()) continue;
      known.push_back(stray);
    }
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
