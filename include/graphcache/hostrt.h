// hostrt: the CUDA runtime on the CPU, for tests and trials without a GPU.
//
// libgraphcache_hostrt.a defines the CUDA runtime functions that graphcache, its tests and its demos call, with the
// signatures of the real CUDA headers. Link it INSTEAD of cudart. Kernels are then functions compiled by the C++
// compiler, not by nvcc, and launched by cudaLaunchKernel or graphcache's recorder, since <<<>>> is nvcc's; objects
// that nvcc made do not link with it. It keeps the runtime's rules (capture modes and threads, what invalidates a
// capture, who may patch an executable graph, what an update accepts, the last-error slot of each thread) and executes
// kernels, copies and graphs on the CPU. A program can also ask it what real hardware does not tell: which objects are
// alive, how often each function was called, whether a destroyed handle was used; and it can make any call fail. It
// cannot show time.
//
//     #include <device_launch_parameters.h>  // threadIdx and the like
//
//     void scale(float* out, const float* in, int n, float f) { ... }  // __global__ for nvcc
//     GRAPHCACHE_HOST_KERNEL(scale)
//
//     TEST(Mine, SurvivesAFailedInstantiation) {
//       graphcache::hostrt::reset();
//       graphcache::hostrt::fail_call("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
//       ...
//       EXPECT_EQ(graphcache::hostrt::ledger().executables, 0u);
//       EXPECT_EQ(graphcache::hostrt::misuses(), 0u) << graphcache::hostrt::last_misuse();
//     }
//
// Execution. Work runs on the CPU, in stream order, by the time the call that enqueued it returns, or when hold() lets
// it, or, after defer(), in any order that streams, events and graphs allow. A kernel is a host function that is called
// once for every thread of the grid, one after the other, with threadIdx, blockIdx, blockDim, gridDim and warpSize of
// <device_launch_parameters.h> set, and cluster_dim(). There is no __syncthreads, no shared memory between the threads
// of a block and no atomics; a plain addition is enough, since one thread runs at a time. The nodes of an executable
// graph run in the order in which they were added, as far as the edges allow, those of a child graph or a body as one;
// those of a graph with event nodes always so. Device memory is host memory. A kernel or a host function that throws is
// a fault: from then until reset(), calls that need the device do nothing but fail with cudaErrorLaunchFailure (facts
// 32).
//
// Threads. Every function here and every runtime function may be called from any thread; one lock serialises them all,
// kernels, host functions and the destructors of user objects included. A runtime call from inside one of these is
// refused with cudaErrorNotPermitted and counted as a misuse. A user object's destructor runs inside the call that gave
// back the last reference or ran the last work that held one; reset() forgets user objects without calling it.
//
// Not covered. Programs compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM (they call functions of other names), memory
// pools but the default ones, textures, 2-D and 3-D copies, child graphs that are moved, updates of nodes by device
// code but graphcache's own: such a program does not link, or gets cudaErrorNotSupported. graphcache's updater is all
// that cudaLibraryLoadData, cudaLibraryUnload and cudaLibraryGetKernel are there for: whatever image is loaded has its
// kernels and no others, done by functions of the host. Link-time optimisation over kernels and hostrt together is not
// supported: the runtime's headers declare threadIdx and the like const.

#ifndef GRAPHCACHE_HOSTRT_H_
#define GRAPHCACHE_HOSTRT_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace graphcache::hostrt {

// ---- The world ----------------------------------------------------------------------------------------------------

// Brings everything to the state of a fresh process: destroys every object, frees every allocation, forgets failures,
// counts and misuses, sets one device and execution on, clears every thread's last error, current device and capture
// mode. Registered kernels stay. Handles from before are recognised as stale afterwards. Call it at the start of a
// test, with no other thread inside a runtime call; inside work it does nothing and is a misuse.
void reset();

// How many devices cudaGetDeviceCount reports, at least 1. All devices share the CPU's memory.
void set_device_count(int count);

// When off, every call is checked and counted as before, but kernels, copies, fills and host functions do not run:
// what is left is the cost of the caller's own code and of the bookkeeping. On by default.
void set_execution(bool on);

// ---- Drivers that are newer or older ------------------------------------------------------------------------------

// What cudaDriverGetVersion gives, which is the version of the headers by default. reset() leaves it alone, because a
// program may ask once: set it before the first runtime call. A driver of kFutureDriver or newer is one that the
// program knows too little of: its kernel nodes may have the launch attribute kFutureAttribute, a value of bytes
// without effect.
constexpr int kFutureDriver = 99000;
constexpr int kFutureAttribute = 30;
void set_driver_version(int version);

// From now on the node, which does what it did before, passes for one of this type: cudaGraphNodeGetType tells it, and
// the calls on nodes of its former type refuse the node, those that patch executables excepted. So do its clones.
void set_node_type(cudaGraphNode_t node, int type);

// ---- Work in flight -----------------------------------------------------------------------------------------------

// Keeps a stream busy, as an endless kernel would: what it is given from now on is checked and counted at once, but
// waits. So does what must come after it elsewhere: behind cudaStreamWaitEvent, in the legacy stream beside a blocking
// one, in a further launch of the same executable. cudaStreamQuery, and cudaEventQuery of an event recorded behind
// such work, return cudaErrorNotReady. Implicit streams are those of the calling thread.
void hold(cudaStream_t stream);

// Runs what waits, in the calling thread; returns the error of that work, if any. A held stream is released just so by
// every call that would wait for it for ever (cudaStreamSynchronize, cudaEventSynchronize, cudaDeviceSynchronize,
// cudaMemcpy, cudaFree, cudaFreeHost), by its destruction and by the end of its thread; reset() drops its work.
cudaError_t release(cudaStream_t stream);

// From now on until reset(), work does not run when it is enqueued but piece by piece at later calls, and what a call
// waits for by that call. Which piece is next is drawn by lot among all that may run: the next operation of any stream,
// or any node of a graph whose dependencies have run. So a missing event, edge or synchronization, or memory that is
// freed too early, shows as a wrong result under some seed. A seed and a sequence of calls give one order of the work;
// where several threads call, their sequence is part of it.
//
//     for (std::uint64_t seed = 0; seed < 100; ++seed) {
//       graphcache::hostrt::reset();
//       graphcache::hostrt::defer(seed);
//       ...  // the program, up to the synchronization behind which its results are read
//     }
//
// With the environment variable GRAPHCACHE_HOSTRT_SEED a program starts deferred, and reset() goes back to that, so
// that a test program needs no change. Copies from pageable memory read it before the call returns, copies to pageable
// memory wait, as the real runtime's do, and so does the launch of a graph that has either. A destroyed stream's work
// goes on. A disabled memset node does not order its neighbours (docs/semantics.md). An upload may take effect too late
// for what device code writes into nodes in the first launch, unless the host waited for the upload. A kernel runs
// whole: its threads do not mix with those of another.
void defer(std::uint64_t seed);

// ---- What is alive ------------------------------------------------------------------------------------------------

// The live objects that a program created and has to destroy. Default and per-thread streams are not counted, nor are
// graphs embedded in child graph nodes or conditional nodes. A graph under capture counts among the graphs from the
// beginning of the capture on.
struct Ledger {
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t graphs = 0;
  std::size_t nodes = 0;  // of all graphs, embedded ones included; the nodes of executables are not counted
  std::size_t executables = 0;
  std::size_t executable_nodes = 0;  // of all executables: what their device memory is proportional to
  std::size_t captures = 0;          // begun and not yet ended, invalidated ones included
  std::size_t allocations = 0;       // cudaMalloc, cudaMallocManaged, cudaMallocAsync
  std::size_t allocated_bytes = 0;
  std::size_t graph_allocations = 0;  // by launches of graphs, and not freed since
  std::size_t graph_allocated_bytes = 0;
  std::size_t host_allocations = 0;  // cudaMallocHost, cudaHostAlloc
  std::size_t host_allocated_bytes = 0;
  std::size_t user_objects = 0;
};

inline bool operator==(const Ledger& a, const Ledger& b) {
  return a.streams == b.streams && a.events == b.events && a.graphs == b.graphs && a.nodes == b.nodes &&
         a.executables == b.executables && a.executable_nodes == b.executable_nodes && a.captures == b.captures &&
         a.allocations == b.allocations && a.allocated_bytes == b.allocated_bytes &&
         a.graph_allocations == b.graph_allocations && a.graph_allocated_bytes == b.graph_allocated_bytes &&
         a.host_allocations == b.host_allocations && a.host_allocated_bytes == b.host_allocated_bytes &&
         a.user_objects == b.user_objects;
}
inline bool operator!=(const Ledger& a, const Ledger& b) { return !(a == b); }

Ledger ledger();

// ---- What was called ----------------------------------------------------------------------------------------------

// Calls of runtime functions since the start, reset() or reset_calls(), from all threads: in all, or of one function by
// its CUDA 13 name ("cudaGraphLaunch"; the _v2 and _v3 variants of CUDA 12 count under the plain name; a name that
// hostrt does not define gives 0). Functions of the driver, which a program gets by cudaGetDriverEntryPoint, count
// under the names of their runtime counterparts, and those that have none under such a name ("cudaFuncGetParamInfo",
// "cudaKernelGetFunction"). A call on nodes of any type (cudaGraphNodeGetParams) counts under the name of the call on
// nodes of this type (cudaGraphMemcpyNodeGetParams), except for conditional nodes, which have no other. Each call from
// outside counts once, failed ones included. cudaGetErrorName and cudaGetErrorString are not counted.
std::uint64_t calls();
std::uint64_t calls(const char* function);
std::map<std::string, std::uint64_t> call_counts();  // functions called at least once
void reset_calls();

// Kernels executed: one for each eager launch and for each enabled kernel node of each graph launch. Host functions are
// not kernels. Zero while execution is off. Cleared by reset_calls().
std::uint64_t kernels_run();

// ---- Work that a capture misses -----------------------------------------------------------------------------------

// Pieces of work since reset() that a thread gave to a stream that was not capturing, while a capture that the same
// thread began was under way. Such work runs at once and is no part of the graph, so a replay of the graph lacks it.
// Counted are launches of kernels, graphs and host functions, copies, fills, and allocations and frees in the order of
// a stream. Work that fails is not counted, and no work is once the capture is invalidated.
std::uint64_t strays();

// The last one, and where it came from. Empty when there was none.
//
//     kernel add was launched on stream 0 while this thread captures another stream: it runs now and never again
//       here: cudaLaunchKernel, call 57, thread 2, at program+0x1234 (run()+0x10)
std::string last_stray();

// ---- Failures -----------------------------------------------------------------------------------------------------

// From now on, the nth call (1 = the next) of `function` and the `times` - 1 calls after it return `error` without
// doing anything; times = -1 means for ever. The error latches in the last-error slot as a real one would. "*" stands
// for any function, except cudaGetLastError and cudaPeekAtLastError, which can be failed by name only, as can
// cudaGraphKernelNodeSetParam and cudaGraphKernelNodeSetGridDim, by which device code updates nodes. Several failures
// may be armed; each counts calls by itself. A name that hostrt does not define is ignored and counted as a misuse.
//
// Results are left as they were, too, but for two functions. A failed cudaStreamEndCapture does end the capture and
// returns a null graph, because every error of the real one leaves the stream out of capture (facts 3). A failed
// cudaGraphExecUpdate fills in the result info: cudaErrorGraphExecUpdateFailure is a refusal, and gives
// cudaGraphExecUpdateErrorNotSupported; any other error gives cudaGraphExecUpdateError. The executable stays whole.
void fail_call(const char* function, int nth, cudaError_t error, int times = 1);

void clear_failures();

// How many calls were made to fail by fail_call() since reset().
std::uint64_t failures_injected();

// Whether the calling thread is inside a runtime call. For a replaced operator new that fails, to spare what hostrt
// allocates: it allocates nothing itself.
bool in_call();

// ---- Misuse -------------------------------------------------------------------------------------------------------

// What real CUDA leaves undefined, hostrt refuses with cudaErrorInvalidResourceHandle or cudaErrorInvalidValue and
// counts here: a handle used after it was destroyed, or that never was one, something destroyed twice, memory freed
// twice, a null argument array for a kernel with parameters, a runtime call from a kernel or a host function, giving
// back references to a user object that somebody else owns. Handles are never given out twice, so a stale one is always
// recognised: a node, too, once its graph is gone, although the executables of that graph go on.
//
// Counted, but not refused: two threads inside calls that name one graph object at the same time, to change it or to
// read it (facts 15). An executable is such an object, and so is a graph together with its nodes. Launches of one
// executable, or instantiations of one graph, from two threads must be serialised by the program; calls on different
// ones, on streams and on events need not be. Adding to a graph by capturing is not watched.
//
// Freed memory keeps a pattern, 0xdd, until 256 blocks or 16 MiB were freed behind it. A copy or a fill that comes to
// such memory, or goes beyond the end of its allocation, does nothing and fails as work on a GPU would, with
// cudaErrorIllegalAddress. Kernels are not watched, but in a program built with AddressSanitizer both are poisoned.
// Ranges in memory that hostrt did not allocate, or that cudaMallocAsync or a graph did, are not checked.
std::uint64_t misuses();

// What it was, where, and where what was used had ended, as far as that is known:
//
//     cudaGraphLaunch: executable graph was destroyed
//       here: cudaGraphLaunch, call 57, thread 2, at program+0x1234 (run()+0x10)
//       destroyed: cudaGraphExecDestroy, call 40, thread 1, at program+0x2345
//
// Calls and threads are numbered in their order, calls since reset(): reset_calls() does not begin anew, so that the
// places of one message can be told apart. `addr2line -Cfie program 0x1234` gives the line; the name of the function
// stands there if the program exports it (linked with -rdynamic). Empty when there was none.
std::string last_misuse();

std::vector<std::string> misuse_log();  // the messages of the first 64 since reset()

// Prints the message and aborts at a misuse, for a debugger to stop there. Off by default, on if the environment
// variable GRAPHCACHE_HOSTRT_ABORT is 1; reset() leaves it alone.
void abort_on_misuse(bool on);

// How many threads are inside a runtime call now: in one that runs, or waiting for that one to end. For a kernel or a
// host function that waits until another thread's call overlaps with its own.
int threads_inside();

// ---- The end ------------------------------------------------------------------------------------------------------

// From now on until reset(), every runtime call does nothing but to return cudaErrorCudartUnloading, as at the end of a
// process, for static objects that are destroyed after the runtime: those built before its first call (facts 34). At
// exit hostrt comes to that by itself. Such calls are not counted. In a child that is forked once the runtime was used
// they return cudaErrorInitializationError for ever (facts 33), but for those that ask for errors, for the number of
// devices and for functions of the driver.
void unload();

// ---- Kernels ------------------------------------------------------------------------------------------------------

// For a kernel to ask: the cluster size that its launch or node holds, {1, 1, 1} without one. It has no other effect,
// but it shows what an update leaves behind: an updated node keeps the cluster size that it was instantiated with, and
// the update says nothing (facts 19).
dim3 cluster_dim();

// For a kernel to ask: the device that it runs on. That is the device of the stream that it was launched or captured
// in, also when its executable is launched into a stream of another device (facts 18).
int current_device();

// For a kernel to set what a conditional node reads, as device code does by cudaGraphSetConditional. False for a handle
// that no live graph or executable has, and outside of kernels.
bool set_conditional(cudaGraphConditionalHandle handle, unsigned value);

namespace internal {

struct Parameter {
  std::size_t size;
  std::size_t alignment;
};

// Calls `function` with the values that the pointers in `arguments` point to.
using Invoker = void (*)(const void* function, void* const* arguments);

bool add_kernel(const char* name, const void* function, Invoker invoker, const Parameter* parameters,
                std::size_t parameter_count);

template <typename... P, std::size_t... kIndex>
void invoke(const void* function, [[maybe_unused]] void* const* arguments, std::index_sequence<kIndex...>) {
  reinterpret_cast<void (*)(P...)>(const_cast<void*>(function))(*static_cast<const P*>(arguments[kIndex])...);
}

template <typename... P>
bool register_kernel(const char* name, void (*kernel)(P...)) {
  static_assert((std::is_trivially_copyable<P>::value && ...),
                "kernel parameters travel as bytes: they must be trivially copyable values, not references");
  static const Parameter parameters[sizeof...(P) + 1] = {{sizeof(P), alignof(P)}..., {0, 1}};
  return add_kernel(
      name, reinterpret_cast<const void*>(kernel),
      [](const void* function, void* const* arguments) {
        invoke<P...>(function, arguments, std::index_sequence_for<P...>{});
      },
      parameters, sizeof...(P));
}

}  // namespace internal
}  // namespace graphcache::hostrt

// GRAPHCACHE_HOST_KERNEL(scale) or GRAPHCACHE_HOST_KERNEL(transform<float, 4>), at namespace scope and without a
// semicolon, makes a host function returning void a kernel that hostrt can launch. Launching any other function returns
// cudaErrorInvalidResourceHandle, as it does on a GPU, and counts as a misuse. Registering twice is harmless. The
// object file must be part of the program: a member of a static library that nothing else refers to is not linked.
// Under nvcc the macro is empty.
#if defined(__CUDACC__)
#define GRAPHCACHE_HOST_KERNEL(...)
#else
#define GRAPHCACHE_HOST_KERNEL(...) GRAPHCACHE_HOST_KERNEL_NUMBERED_(__COUNTER__, __VA_ARGS__)
#define GRAPHCACHE_HOST_KERNEL_NUMBERED_(number, ...) GRAPHCACHE_HOST_KERNEL_NAMED_(number, __VA_ARGS__)
#define GRAPHCACHE_HOST_KERNEL_NAMED_(number, ...)                        \
  [[maybe_unused]] static const bool graphcache_host_kernel_##number##_ = \
      ::graphcache::hostrt::internal::register_kernel(#__VA_ARGS__, __VA_ARGS__);
#endif

#endif  // GRAPHCACHE_HOSTRT_H_
