// Options of a cache. The defaults suit a program that runs some tens of different launch configurations on one device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace graphcache {

// Whether keys of one family share executables. A family is the keys whose graphs have the same topology and the same
// of everything else that an update cannot change; kernels, launch shapes and values may differ.
enum class Sharing {
  // A key without an executable takes over the family's spare one, by an update: it rents. When the rent that it has
  // paid would pass the price of an executable of its own, it gets one: while budgets last, this is never dearer than
  // twice the better of both. Where they are exhausted, it takes the place of the least recently used if it was used
  // more often of late, and rents on if not. Keys of different streams do not rent from each other, since launches of
  // one executable follow each other whatever their streams (measured: docs/demos/decode.md); only where a budget is
  // exhausted one may take over the other's, and under Prefer::kMemory they are of one family. Keys that come on
  // several streams in turn rent from each other.
  kAuto,
  // Each key has its own. None is ever updated, and graphs are not compared.
  kNever,
  // A family has one as long as one suffices, whatever the streams: a second only if the first is pinned, or in use by
  // another thread's run.
  kAlways,
  // The same, and that one has a table from the first member on.
  kTable,
};

// What matters most where the host's time, the device's and memory can be had for each other.
enum class Prefer {
  kTotalTime,   // The host's and the device's time count alike.
  kHostTime,    // The device has time to spare.
  kDeviceTime,  // The device is the bottleneck, as where several threads keep it busy (docs/demos/decode.md): no time
                // of it is spent to save the host's.
  kMemory,      // Keys that can share a table do, and get no executable of their own while they can.
};

// How values that changed since the last run of a key reach the nodes that hold them.
enum class Patching {
  // Whichever of the others is cheaper by Options::prefer, for the number of nodes that hold slots.
  kAuto,
  // One call for each node, 0.15 to 0.5 us of the host's time; in an executable with a table (Sharing) by the device
  // all the same.
  kPerNode,
  // One call for all kernel nodes, whatever their number: a node before the others writes their arguments and grids on
  // the device. It takes about 2.3 us of the device's time in a run with changed values and 1 us in another, and 0.02
  // us more for each of these nodes. Other slot nodes are set one by one, and so are kernels whose block or shared
  // memory is a slot, whose grid is one that the device must not set (docs/semantics.md), or that run on another
  // device, and those beyond the first 32,000 bytes of values. Siblings can share such an executable only if it has a
  // table (Sharing). If the driver refuses it, a key is patched node by node (Stats::refused_device_updates). An update
  // that fails on the device is an error of the key's next run, or of a sibling's that has the executable by then, or,
  // if it was there when that left, of a later run. Nodes of such executables, and of those with a table, run at the
  // priority of the stream that they were captured on, whichever stream a later run names
  // (cudaGraphInstantiateFlagUseNodePriority); nodes of others run at the priority of the run's stream.
  kDeviceUpdated,
};

struct Options {
  // The device whose work the cache records, as counted by cudaGetDeviceCount; kCurrentDevice is the one that is
  // current in the thread that constructs the cache. A cache serves one device.
  static constexpr int kCurrentDevice = -1;
  int device = kCurrentDevice;

  // The stream of runs that name none. The default is that of the calling thread and its current device, which must be
  // the cache's: runs that are not hits look, hits do not. cudaStreamLegacy and a null stream cannot be captured and
  // are refused.
  cudaStream_t stream = cudaStreamPerThread;

  // At most this many keys have an executable at any time; the least recently used leaves before a new one is
  // instantiated, though it may still wait for its last launch, or another thread be busy destroying it. Those that the
  // device updates (Patching, tables) leave last while they are no more than half, for to destroy one waits for what
  // other threads have in flight (docs/semantics.md); once any have had to leave, kAuto makes more of them only while
  // they are fewer. 0: nothing is captured, every run calls `fn` directly. Negative: an error of every run.
  int max_executables = 64;

  // At most so much device memory is taken by executables, by estimate (Stats::estimated_device_bytes). What needs more
  // by itself is run by calling `fn` directly.
  std::size_t max_device_bytes = SIZE_MAX;

  // At most this many keys keep their captured graph, the template, by which they come back without a capture when they
  // have lost their executable. It costs host memory alone, about 2 KiB a node, and the bytes of the key. The least
  // recently used is forgotten; those of keys that have an executable count, too, and stay. Negative: an error of every
  // run. Of a key that has neither, the cache remembers its counts, while these keys are at most 4096 and take at most
  // 16 MiB; the least recently used is dropped.
  int max_templates = 512;

  Sharing sharing = Sharing::kAuto;

  Patching patching = Patching::kAuto;

  Prefer prefer = Prefer::kTotalTime;

  // What other threads, and `fn`, may do during a capture; the meaning is cudaStreamBeginCapture's. With the default,
  // cudaMalloc, a synchronization of a stream and the like break a capture only if `fn`'s own thread makes them. Two
  // kinds of calls of any thread break it in every mode: cudaDeviceSynchronize, and, while a blocking stream is
  // captured, whatever uses the legacy stream (cudaMemcpy, a launch without a stream); that call fails, too. So run on
  // streams made with cudaStreamNonBlocking where other threads use the legacy stream. cudaStreamPerThread is a
  // blocking stream.
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeThreadLocal;

  // Passed to cudaGraphInstantiate: cudaGraphInstantiateFlagAutoFreeOnLaunch, cudaGraphInstantiateFlagUseNodePriority,
  // or both. The others need arguments or launches that a cache does not make, and are refused.
  unsigned long long instantiate_flags = 0;

  // A new key runs `fn` directly this many times before its first capture: for libraries that initialise themselves
  // at their first call, and for programs with many keys that come once. Cache::warm does not wait for it.
  int capture_after = 0;
};

}  // namespace graphcache
