// A lock between captures and the calls that break them.
//
//   {
//     const std::lock_guard<graphcache::CaptureGate> no_capture(graphcache::capture_gate(device));
//     cublasDestroy(handle);  // Synchronizes the device, which would break the captures of other threads.
//   }
//
// Some calls of any thread break a capture, and fail themselves: cudaDeviceSynchronize, which can even crash the driver
// then, and, while a blocking stream is
// captured, whatever uses the legacy stream (docs/semantics.md). A program that makes such calls while other threads
// run caches takes the gate around them. Each capture of a cache of that device takes the other side: while a thread
// holds the gate, no capture begins, and while one is under way, nobody gets the gate. Threads that hold the gate do
// not exclude each other, nor do captures. Whoever comes first is served first. Runs that capture nothing do not wait.
//
// Inside `fn`, lock() does nothing, because the thread's own capture would never end. Do not run a cache while you hold
// the gate, because another thread's run of the same key may be waiting for it, and do not let `fn` wait for a thread
// that waits for the gate. (A thread that holds the gate captures without it.)
#pragma once

#include <memory>

namespace graphcache {

class CaptureGate {
 public:
  CaptureGate(const CaptureGate&) = delete;
  CaptureGate& operator=(const CaptureGate&) = delete;

  // As of a mutex. Each lock() needs an unlock() in the same thread; they may nest.
  void lock();
  void unlock();

 private:
  friend CaptureGate& capture_gate(int device);
  friend class CaptureSide;  // Of the library itself.
  struct Turns;
  CaptureGate();
  ~CaptureGate();
  std::unique_ptr<Turns> turns_;
};

// The gate of a device, for all caches of the process. Never destroyed. Thread-safe. Throws std::bad_alloc at the first
// call for a device if there is no memory for it.
CaptureGate& capture_gate(int device);

}  // namespace graphcache
