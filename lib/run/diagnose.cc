// The capture of a run, and what a watcher of CUDA calls has to say of it (Options::diagnose).
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "graphcache/cache.h"
#include "run/impl.h"

namespace graphcache {

// A profiler, say, may keep the component from working: the cache does without.
void Cache::Impl::find_diagnoser() {
  std::string why;
  diagnoser_ = graphcache::find_diagnoser(&why);
  if (diagnoser_ == nullptr) log(absl::StrCat("graphcache: captures are not diagnosed: ", why));
}

// The legacy stream cannot be captured: `fn` gets another in its place, which does not block. So calls of other threads
// on the legacy stream go on, and what `fn` enqueues there itself is not part of the graph. In verify mode it does
// block: then such a launch of `fn` breaks the capture, and is reported.
Captured Cache::Impl::capture_fn(const Request& request) {
  if (request.stream != cudaStreamLegacy) return capture_on(request.stream, request);
  const OwnStreams::Loan stream(capture_streams_);
  if (stream.result().error == cudaSuccess) return capture_on(stream.get(), request);
  Captured none;
  none.capture = cuda_failure(stream.result().call, stream.result().error);
  return none;
}

// Keeps and logs what of the work of `fn` is not in the graph: each text once.
void Cache::Impl::note_strays(Entry* entry, const Request& request, const std::vector<std::string>& strays) {
  constexpr std::size_t kMaxTexts = 32;  // Names of streams are no end of texts.
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

// What there is to say of them where there is no graph.
std::string Cache::Impl::list_of(const std::vector<std::string>& strays) {
  std::string text;
  for (const std::string& stray : strays) absl::StrAppend(&text, text.empty() ? ". Elsewhere " : "; ", stray);
  return text;
}

}  // namespace graphcache
