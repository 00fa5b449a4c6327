// CaptureGate: a lock between captures and the calls that would break them.
//
//   {
//     const std::lock_guard<graphcache::CaptureGate> no_capture(graphcache::capture_gate(device));
//     cublasDestroy(handle);  // Synchronizes the device, which would break the captures of other threads.
//   }
#pragma once

#include <memory>

namespace graphcache {

// While a thread holds the gate, no cache of the device begins a capture. While a capture is under way, nobody gets the
// gate. Take it around calls that break the captures of other threads (docs/semantics.md):
//   - cudaDeviceSynchronize, which can even crash the driver;
//   - each call that uses the legacy stream, if caches run on blocking streams.
// During a capture such a call fails itself as well.
//
// Threads that hold the gate do not exclude each other, and neither do captures. Both sides are served in the order in
// which they come. Runs that capture nothing do not wait.
//
// Do not run a cache while you hold the gate, because another thread's run of the same key may be waiting for it. (A
// capture by a thread that holds the gate does not wait for it.) Do not let `fn` wait for a thread that waits for the
// gate.
class CaptureGate {
 public:
  CaptureGate(const CaptureGate&) = delete;
  CaptureGate& operator=(const CaptureGate&) = delete;

  // Each lock() needs an unlock() in the same thread; pairs may nest. Inside `fn`, lock() does nothing, because it
  // would wait for the thread's own capture for ever.
  void lock();
  void unlock();

 private:
  friend CaptureGate& capture_gate(int device);
  friend class CaptureSide;  // The side of captures, in the library.
  struct Turns;
  CaptureGate();
  ~CaptureGate();
  std::unique_ptr<Turns> turns_;
};

// Returns the gate of a device, which serves all caches of the process and is never destroyed. Thread-safe. The first
// call for a device throws std::bad_alloc if there is no memory for the gate.
CaptureGate& capture_gate(int device);

}  // namespace graphcache
