#include "diagnose.h"

#include <new>

#include "state.h"

namespace graphcache::hostrt {
namespace {

// The calling thread holds the lock, here and in every recorded call.
diagnose::CaptureState state_of_capture(cudaStream_t handle, bool in_other_thread) {
  using enum diagnose::CaptureState;
  // the handle means another stream in this thread
  if (in_other_thread && handle == cudaStreamPerThread) return kUnknown;
  State& world = state();
  Stream* stream = find_stream(world, this_thread(), handle);
  if (stream == nullptr || stream->capture == nullptr) return kOver;
  return stream->capture->invalidated ? kBroken : kActive;
}

const char* open_watch() { return nullptr; }

void* begin_watch(cudaStream_t stream, void* to, void (*noticed)(void* to, const detail::WatchedCall*)) try {
  return diagnose::begin(stream, to, noticed);
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace

// If memory runs out, the result is not recorded.
void note_result(const State& state, Function function, cudaError_t error, const void* address) try {
  // returns the error of an earlier call
  if (function == Function::kGetLastError || function == Function::kPeekAtLastError) return;
  if (error == cudaSuccess ? function != Function::kStreamEndCapture : error == state.lost) return;
  diagnose::failed({name_of(function), error, address}, &state_of_capture);
} catch (const std::bad_alloc&) {
}

void note_stray(const State& state, Function function, const Stream& stream, const Kernel* kernel) try {
  diagnose::strayed({name_of(function), cudaSuccess, state.endings.here.address},
                    stream.is_legacy ? cudaStreamLegacy : stream.handle, kernel != nullptr ? kernel->name.c_str() : "");
} catch (const std::bad_alloc&) {
}

void note_launch(const Kernel& kernel) try { diagnose::launched(kernel.name.c_str()); } catch (const std::bad_alloc&) {
}

}  // namespace graphcache::hostrt

// A program linked with hostrt contains this function. The library then does not look for the component.
extern "C" const graphcache::detail::DiagnoseInterface* graphcache_diagnose_v2() {
  static constexpr graphcache::detail::DiagnoseInterface interface = {
      &graphcache::hostrt::open_watch, &graphcache::hostrt::begin_watch, &graphcache::diagnose::end};
  return &interface;
}
