// hostrt: the CUDA runtime on the CPU, for tests and trials without a GPU.
//
// libgraphcache_hostrt.a defines the CUDA runtime functions that graphcache, its tests and its demos call. Link it
// INSTEAD of cudart. It runs kernels, copies and graphs on the CPU, and keeps the rules of the runtime: what a capture
// forbids, who may patch an executable graph, which updates are accepted, the last-error slot of each thread. A test
// can also list the live objects, count calls, make any call fail, and find handles that are used after their
// destruction. Times mean nothing.
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
// Kernels, execution, threads and what is not covered: see "Rules" at the end. Facts with numbers are those of
// docs/semantics.md.

#ifndef GRAPHCACHE_HOSTRT_H_
#define GRAPHCACHE_HOSTRT_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef __CUDACC__  // Each thread of a block would have a variable of its own.
#undef __shared__
#define __shared__ _Pragma("GCC error \"hostrt has no memory that the threads of a block share (docs/hostrt.md)\"")
#endif

namespace graphcache::hostrt {

// ---- The world ----------------------------------------------------------------------------------------------------

// Restores the state of a fresh process; call it at the start of a test. It destroys every object, frees every
// allocation, and forgets failures, counts and misuses. It sets one device, switches execution on, and clears each
// thread's last error, current device and capture mode. Registered kernels stay. A handle from before the call is
// recognised as stale afterwards. No other thread may be inside a runtime call. Called from a kernel or a host
// function, reset() does nothing and counts as a misuse.
void reset();

// Sets the number of devices that cudaGetDeviceCount reports, at least 1. All devices share the CPU's memory.
void set_device_count(int count);

// Switches execution on or off; it is on by default. When it is off, calls are checked and counted as usual, but
// kernels, copies, fills and host functions do not run. A benchmark then measures the caller's own code and hostrt's
// bookkeeping only.
void set_execution(bool on);

// Makes a new stream get the handle of the stream that was destroyed last, as an allocator would; off by default. Then
// the use of a stream that is gone is not noticed. reset() switches it off.
void set_stream_reuse(bool on);

// ---- Drivers that are newer or older ------------------------------------------------------------------------------

// The first driver version that stands for drivers newer than the program. With this or a newer version, kernel nodes
// may have a launch attribute of the number kFutureAttribute, whose bytes are kept and have no effect.
constexpr int kFutureDriver = 99000;
constexpr int kFutureAttribute = 30;

// Sets the result of cudaDriverGetVersion, which by default is the version of the headers. Call it before the first
// runtime call, because a program may query the version only once. reset() does not change it.
void set_driver_version(int version);

// Gives a node another type, for nodes of future drivers. The node and its clones do the same work as before. But
// cudaGraphNodeGetType reports this type, and calls for nodes of the former type refuse the node, except calls that
// patch executables.
void set_node_type(cudaGraphNode_t node, int type);

// ---- Work in flight -----------------------------------------------------------------------------------------------

// Keeps a stream busy, as an endless kernel would. From now on, work that is enqueued there is checked and counted at
// once, but does not run until release(). Work that must come after it does not run either: behind cudaStreamWaitEvent,
// in the legacy stream if the held stream is a blocking one, or in a further launch of the same executable.
// cudaStreamQuery returns cudaErrorNotReady, and so does cudaEventQuery for an event recorded behind held work.
// cudaStreamPerThread is the stream of the calling thread.
void hold(cudaStream_t stream);

// Ends hold(): runs the waiting work in the calling thread, and returns the error of that work, if any. A call that
// would otherwise wait for the held stream for ever releases it in the same way: cudaStreamSynchronize,
// cudaEventSynchronize, cudaDeviceSynchronize, cudaMemcpy, cudaFree and cudaFreeHost. So do the destruction of the
// stream and the end of its thread. reset() drops the work.
cudaError_t release(cudaStream_t stream);

// Runs work in a random order from now on, until reset(). Work does not run when it is enqueued but one piece at a time
// at later calls; a call that waits for work runs that work. Each time, the next piece is drawn from all pieces that
// may run: the next operation of any stream, or any node of a graph whose dependencies have run. So a missing event,
// edge or synchronization, or memory that is freed too early, shows as a wrong result under some seed.
//
//     for (std::uint64_t seed = 0; seed < 100; ++seed) {
//       graphcache::hostrt::reset();
//       graphcache::hostrt::defer(seed);
//       ...  // the program, up to the synchronization behind which its results are read
//     }
//
// The same seed and the same sequence of calls give the same order. If several threads make calls, the sequence
// includes how their calls interleave. With the environment variable GRAPHCACHE_HOSTRT_SEED, a program starts with
// defer(), and reset() returns to it, so a test program needs no change.
//
// These rules of the runtime stay:
//   - Pageable memory is read or written before the call returns. This holds for copies, and for the launch of a graph
//     with such a copy.
//   - The work of a destroyed stream still runs.
//   - A disabled memset node does not order its neighbours (docs/semantics.md).
//   - An upload that the host has not waited for may be too late for the first launch: it may overwrite what device
//     code writes into the nodes there.
//   - A kernel runs as one piece: its threads do not mix with those of another kernel.
void defer(std::uint64_t seed);

// ---- What is alive ------------------------------------------------------------------------------------------------

// Numbers of live objects that the program created and must destroy. Default and per-thread streams do not count, and
// neither do graphs embedded in child graph nodes or conditional nodes. A graph counts from the beginning of its
// capture.
struct Ledger {
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t graphs = 0;
  std::size_t nodes = 0;  // Nodes of all graphs, embedded graphs included. Nodes of executables do not count.
  std::size_t executables = 0;
  std::size_t executable_nodes = 0;  // Nodes of all executables. Their device memory is proportional to this.
  std::size_t captures = 0;          // Captures that have begun and not yet ended, invalidated ones included.
  std::size_t allocations = 0;       // Allocations of cudaMalloc, cudaMallocManaged and cudaMallocAsync.
  std::size_t allocated_bytes = 0;
  std::size_t graph_allocations = 0;  // Allocations that launches of graphs made and that are not freed.
  std::size_t graph_allocated_bytes = 0;
  std::size_t host_allocations = 0;  // Allocations of cudaMallocHost and cudaHostAlloc.
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

// The number of calls of runtime functions since the start, reset() or reset_calls(), from all threads: of all
// functions, or of one. Each call by the program counts once, failed ones included. cudaGetErrorName and
// cudaGetErrorString do not count.
//
// `function` is the name in CUDA 13, such as "cudaGraphLaunch". The _v2 and _v3 variants of CUDA 12 count under the
// plain name. A function of the driver, which a program gets from cudaGetDriverEntryPoint, counts under the name of its
// counterpart in the runtime. One without a counterpart counts under a name of that form: "cudaFuncGetParamInfo",
// "cudaKernelGetFunction". A call for nodes of any type, such as cudaGraphNodeGetParams, counts under the name of the
// call for the type of its node, such as cudaGraphMemcpyNodeGetParams; conditional nodes have no other call. A name
// that hostrt does not define has the count 0.
std::uint64_t calls();
std::uint64_t calls(const char* function);
std::map<std::string, std::uint64_t> call_counts();  // All functions that were called at least once.
void reset_calls();

// The number of kernels that were executed: one for each direct launch, and one for each enabled kernel node in each
// graph launch. Host functions do not count. Nothing counts while execution is off. reset_calls() clears the number.
std::uint64_t kernels_run();

// ---- Work that a capture misses -----------------------------------------------------------------------------------

// The number of strays since reset(): work that a thread enqueued on a stream that was not capturing, while a capture
// begun by the same thread was under way. Such work runs at once and is not in the graph, so a replay lacks it.
// Launches of kernels, graphs and host functions count, as do copies, fills, and stream-ordered allocations and frees.
// Failed work does not count, and nothing counts once the capture is invalidated.
std::uint64_t strays();

// Describes the last stray and where it was enqueued. Empty if there was none.
//
//     kernel add was launched on stream 0 while this thread captures another stream: it runs now and never again
//       here: cudaLaunchKernel, call 57, thread 2, at program+0x1234 (run()+0x10)
std::string last_stray();

// ---- Failures -----------------------------------------------------------------------------------------------------

// Makes calls fail: the nth call of `function` from now on (1 is the next one), and the `times` - 1 calls after it,
// return `error` and do nothing. times = -1 means for ever. The error also goes into the last-error slot. Several
// failures may be armed; each counts calls by itself. A name that hostrt does not define is ignored and counts as a
// misuse. An error that ends the context, such as cudaErrorIllegalAddress, is a fault (below).
//
// "*" stands for any function with four exceptions, which fail by name only: cudaGetLastError, cudaPeekAtLastError, and
// the two by which device code updates nodes, cudaGraphKernelNodeSetParam and cudaGraphKernelNodeSetGridDim.
//
// A failed call does not write its results. Two functions are different. A failed cudaStreamEndCapture ends the capture
// and returns a null graph, because the real one ends the capture with every error (fact 3). A failed
// cudaGraphExecUpdate writes its result info: cudaGraphExecUpdateErrorNotSupported for cudaErrorGraphExecUpdateFailure,
// which means a refusal, and cudaGraphExecUpdateError for any other error. The executable stays usable.
void fail_call(const char* function, int nth, cudaError_t error, int times = 1);

// Forgets what fail_call() has asked for, and ends the fault that it has caused.
void clear_failures();

// The number of calls that fail_call() has made to fail since reset().
std::uint64_t failures_injected();

// Whether the calling thread is inside a runtime call. A replaced operator new that fails on purpose can use this to
// spare the allocations of hostrt. It allocates nothing itself.
bool in_call();

// ---- Misuse -------------------------------------------------------------------------------------------------------

// The number of misuses since reset(), of which the first is printed to stderr. A misuse is a call whose effect real
// CUDA leaves undefined. hostrt refuses it with cudaErrorInvalidResourceHandle or cudaErrorInvalidValue. Misuses are:
//   - a handle that was destroyed, or never was one; a second destruction; a second free of the same memory;
//   - a null argument array for a kernel with parameters;
//   - a runtime call from a kernel or a host function;
//   - the release of a reference to a user object that somebody else owns.
// hostrt never gives out a handle twice, so it always recognises a stale one. A node handle is stale once its graph is
// gone, even if executables of that graph live on.
//
// One kind of misuse is counted but not refused: two threads at the same time inside calls that name one graph object,
// to change it or to read it (fact 15). An executable is one such object, and so is a graph together with its nodes. A
// program must serialise launches of one executable, and instantiations of one graph. Calls on different objects, on
// streams and on events need no serialisation. Adding nodes by capture is not watched.
//
// Freed memory keeps the pattern 0xdd until another 256 blocks or 16 MiB have been freed. A copy or a fill that touches
// such memory, or exceeds its allocation, does nothing and fails as work on a GPU would, with cudaErrorIllegalAddress.
// Memory that hostrt did not allocate, or that came from cudaMallocAsync or a graph, is not checked. Accesses by
// kernels are checked only in a program built with AddressSanitizer, for which hostrt poisons the memory. hostrt itself
// need not be built with it.
std::uint64_t misuses();

// Describes the last misuse: what it was, where, and, if known, where the object had been destroyed. Empty if there was
// none.
//
//     cudaGraphLaunch: executable graph was destroyed
//       here: cudaGraphLaunch, call 57, thread 2, at program+0x1234 (run()+0x10)
//       destroyed: cudaGraphExecDestroy, call 40, thread 1, at program+0x2345
//
// Calls and threads are numbered in order. Calls are numbered from reset() on; reset_calls() does not restart the
// numbers, so places within one message stay distinct. `addr2line -Cfie program 0x1234` prints the line. The name of
// the function is there if the program exports it (linked with -rdynamic).
std::string last_misuse();

std::vector<std::string> misuse_log();  // The messages of the first 64 misuses since reset().

// Whether a misuse prints its message and aborts the program, so that a debugger stops there. Off by default; the
// environment variable GRAPHCACHE_HOSTRT_ABORT=1 switches it on. reset() does not change it.
void abort_on_misuse(bool on);

// The number of threads inside a runtime call now, including those that wait for another one's call to end. A kernel or
// host function can use it to wait until another thread's call overlaps with its own.
int threads_inside();

// ---- The end ------------------------------------------------------------------------------------------------------

// Behaves as at the end of a process, until reset(): every runtime call does nothing and returns
// cudaErrorCudartUnloading. Static objects that were built before the first runtime call meet this in their destructors
// (fact 34). hostrt itself does the same at exit. Such calls are not counted.
//
// A child that was forked after the first runtime call gets cudaErrorInitializationError from every call for ever (fact
// 33). Only the functions that return errors, the number of devices and driver functions work there.
void unload();

// ---- Kernels ------------------------------------------------------------------------------------------------------

// Called by a kernel: the cluster size of its launch or node, {1, 1, 1} if it has none. The cluster size has no other
// effect. It makes a silent rule of updates visible: an updated node keeps the cluster size that it was instantiated
// with (fact 19).
dim3 cluster_dim();

// Called by a kernel: the device that it runs on. This is the device of the stream that it was launched or captured in,
// even if its executable is launched into a stream of another device (fact 18).
int current_device();

// Called by a kernel: sets the value that a conditional node reads, as cudaGraphSetConditional does in device code.
// Returns false if no live graph or executable has the handle, and outside of kernels.
bool set_conditional(cudaGraphConditionalHandle handle, unsigned value);

// ---- Rules --------------------------------------------------------------------------------------------------------

// Programs. The functions have the signatures of the real CUDA headers. Kernels are functions that the C++ compiler
// compiles, so a program launches them by cudaLaunchKernel or by graphcache's recorder: <<<>>> needs nvcc. Objects that
// nvcc compiled do not link with hostrt. Link-time optimisation across kernels and hostrt is not supported, because the
// runtime's headers declare threadIdx and the like const.
//
// Execution. Work runs on the CPU, in stream order, before the call that enqueued it returns. hold() delays it, and
// defer() permits any order that streams, events and graphs allow. A kernel is called once for every thread of the
// grid, one thread after the other. threadIdx, blockIdx, blockDim, gridDim and warpSize of <device_launch_parameters.h>
// are set, and so is cluster_dim(). A thread's parameters are copies of the arguments' bytes, which call no constructor
// and no destructor, as on a GPU. There is no __syncthreads and no shared memory between the threads of a block.
// There are no atomics: as one thread runs at a time, a plain addition does the same. Device memory is host memory,
// so a kernel may access memory that CUDA does not know; on most devices that loses the context.
//
// The nodes of an executable run in the order in which they were added, as far as the edges allow; a child graph or a
// body runs as one node. A graph with event nodes always runs in this order, after defer() as well.
//
// A kernel or a host function that throws an exception is a fault. Until reset(), each call that needs the device then
// fails with cudaErrorLaunchFailure and does nothing else, and queued work is dropped (fact 32).
//
// Threads. Every function of this header, and every runtime function, may be called from any thread. One lock
// serialises them all, and also kernels, host functions and destructors of user objects. A runtime call from inside one
// of these returns cudaErrorNotPermitted and counts as a misuse. The destructor of a user object runs inside the call
// that released the last reference, or that ran the last work that held one. reset() forgets user objects without
// calling their destructors.
//
// Not covered. A program that uses one of the following does not link, or gets cudaErrorNotSupported:
//   - memory pools other than the default ones, textures, and arrays (cudaArray_t);
//   - child graphs that are moved into their parent;
//   - device code that updates nodes, except graphcache's own.
// cudaLibraryLoadData, cudaLibraryUnload and cudaLibraryGetKernel serve graphcache's updater only. Whatever image they
// load contains the updater's kernels and no others, and host functions do their work.

namespace internal {

struct Parameter {
  std::size_t size;
  std::size_t alignment;
};

// Calls `function` with the values that the pointers in `arguments` point to.
using Invoker = void (*)(const void* function, void* const* arguments);

bool add_kernel(const char* name, const void* function, Invoker invoker, const Parameter* parameters,
                std::size_t parameter_count);

// Whether calls pass a class by the address of an object that the caller has made, as the C++ ABI of Linux says.
template <typename P>
inline constexpr bool kPassedByAddress =
    !std::is_trivially_destructible<P>::value ||
    (!std::is_copy_constructible<P>::value && !std::is_move_constructible<P>::value) ||
    std::is_copy_constructible<P>::value != std::is_trivially_copy_constructible<P>::value ||
    std::is_move_constructible<P>::value != std::is_trivially_move_constructible<P>::value;

// The value of a parameter in one thread. As on a GPU it is a copy of the argument's bytes, which calls no constructor.
template <typename P, bool kByAddress = kPassedByAddress<P>>
struct Value {
  using Passed = P;
  explicit Value(void* argument) : value(static_cast<P*>(argument)) {}
  P pass() const { return static_cast<P&&>(*value); }
  P* value;
};
template <typename P>
struct Value<P, true> {
  using Passed = P&;
  explicit Value(const void* argument) { std::memcpy(bytes, argument, sizeof(P)); }
  P& pass() { return *reinterpret_cast<P*>(bytes); }
  alignas(P) unsigned char bytes[sizeof(P)];
};

template <typename... P, std::size_t... kIndex>
#if defined(__clang__)
__attribute__((no_sanitize("function")))
#endif
void invoke(const void* function, [[maybe_unused]] void* const* arguments, std::index_sequence<kIndex...>) {
  using Function = void (*)(typename Value<P>::Passed...);
  reinterpret_cast<Function>(const_cast<void*>(function))(Value<P>(arguments[kIndex]).pass()...);
}

template <typename... P>
bool register_kernel(const char* name, void (*kernel)(P...)) {
  static_assert(!(std::is_reference<P>::value || ...), "a kernel's parameter must be a value, not a reference");
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

// GRAPHCACHE_HOST_KERNEL(scale), or GRAPHCACHE_HOST_KERNEL(transform<float, 4>), makes a host function that returns
// void a kernel that hostrt can launch. Write it at namespace scope, without a semicolon. A second registration does no
// harm. The launch of any other function returns cudaErrorInvalidResourceHandle, as on a GPU, and counts as a misuse
// that names the function. The object file must be linked into the program: the linker leaves out a member of a static
// library that nothing refers to. Under nvcc the macro is empty.
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
