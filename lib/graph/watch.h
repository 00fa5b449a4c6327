// Who watches a capture (Options::diagnose). lib/diagnose implements it, and no file of the core includes that.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace graphcache {

namespace detail {
struct DiagnoseInterface;  // A watcher of CUDA calls.
}
class RecorderCalls;
struct Captured;

// Gets the text that names the call which broke a capture, in the thread of that call and before it returns. Must not
// throw.
using TellBreak = std::function<void(std::string_view text)>;

// Watches a capture that this thread is about to begin.
class Watch {
 public:
  virtual ~Watch() = default;
  // The capture has begun. Before that, nothing is reported.
  virtual void began() = 0;
  // Call this before the capture's end.
  virtual void end() = 0;
  // Adds what was seen to the errors of an ended capture, and the work that its graph misses.
  virtual void report(const RecorderCalls& calls, Captured* captured) = 0;
};

// The watcher that is linked into the program (hostrt), else libgraphcache_diagnose.so. That library is loaded from the
// path in GRAPHCACHE_DIAGNOSE if it contains a slash, else from the loader's search path. If the result is null, `*why`
// says why.
const detail::DiagnoseInterface* find_diagnoser(std::string* why);

// The result is null if there is no memory. `tell` may be empty.
std::unique_ptr<Watch> watch_capture(const detail::DiagnoseInterface* diagnoser, cudaStream_t stream,
                                     const TellBreak& tell);

}  // namespace graphcache
