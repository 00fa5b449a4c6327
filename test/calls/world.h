// The objects of a world, and draws of objects, addresses and numbers. A draw writes what it has drawn to the log,
// which is stdout, so that a line of the log says all about its call.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "kernels.h"
#include "stress/stress_model.h"

namespace graphcache::test::calls {

// Makes the calls of a world. Returns false if the context is lost: the process must then end.
bool run_world(std::uint64_t seed);

// A second thread, which works while the first one waits.
class Second {
 public:
  ~Second() { call(nullptr), thread_.join(); }
  void call(std::function<void()> work) {
    work_ = std::move(work);
    begin_.release();
    end_.acquire();
  }

 private:
  void work() {
    for (bool is_over = false; !is_over; end_.release()) {
      begin_.acquire();
      is_over = work_ == nullptr;
      if (!is_over) work_();
    }
  }

  std::function<void()> work_;
  std::binary_semaphore begin_{0}, end_{0};
  std::thread thread_{[this] { work(); }};
};

// The error of a call whose arguments have several draws. C++ leaves the order of arguments open, but not that of a
// list in braces.
struct Call {
  template <class Function, class... Arguments>
  Call(Function function, Arguments... arguments) : error(function(arguments...)) {}
  operator cudaError_t() const { return error; }
  cudaError_t error;
};

// The temporary lives until the call that gets the address has returned.
template <class T>
T* address(T&& temporary) {
  return &temporary;
}

class World {
 protected:
  using Nodes = std::vector<cudaGraphNode_t>;
  template <class Handle>
  struct Object {
    operator Handle() const { return handle; }
    Handle handle;
  };
  struct Stream : Object<cudaStream_t> {
    std::thread::id captured_by{};
  };
  struct Graph : Object<cudaGraph_t> {
    int number;
    Nodes nodes;
  };
  struct Executable : Object<cudaGraphExec_t> {
    int graph;  // The number of the graph that it was made of, or -1 if that graph must not be used any more.
  };
  struct Copy {
    void *to, *from;
    std::size_t bytes;
    cudaMemcpyKind kind;
  };
  struct Nothing {};  // Thrown by an operation that lacks an object.

  static constexpr std::size_t kBytes = 16384;
  static constexpr int kPlaces = 6, kOfDevice = 4, kNotPageable = 5;

  // The world before may have left a capture mode, an attribute of a kernel, and a last error.
  explicit World(std::uint64_t seed) : random_(seed) {
    cudaFree(nullptr);
    set_mode(cudaStreamCaptureModeGlobal);
    cudaFuncSetAttribute(kernels_[1], cudaFuncAttributeMaxDynamicSharedMemorySize, 49152);
    cudaGetLastError();
    for (int place = 0; place < 3; ++place) cudaMalloc(&places_[place], kBytes);
    cudaMallocManaged(&places_[3], kBytes, cudaMemAttachGlobal);
    cudaMallocHost(&places_[4], kBytes);
    places_[5] = pageable_.data();
    for (int place = 0; place < kNotPageable; ++place) cudaMemset(places_[place], 0, kBytes);
    std::printf("world %llu", static_cast<unsigned long long>(seed));
    for (int left = 2 + draw(3); left > 0; --left) {
      const unsigned flags = number("blocking", 3) == 0 ? cudaStreamDefault : cudaStreamNonBlocking;
      cudaStreamCreateWithPriority(&own_streams_.emplace_back(), flags, number<int>("priority", 2) - 1);
      streams_.push_back({{own_streams_.back()}});
    }
    for (const cudaStream_t stream : {cudaStream_t{}, cudaStreamPerThread, cudaStreamLegacy}) {
      if (shown("default", one_in(3))) streams_.push_back({{stream}});
    }
    for (cudaEvent_t& event : events_) cudaEventCreateWithFlags(&event, number("untimed", 2) * cudaEventDisableTiming);
    if (shown("threads", one_in(3))) second_ = std::make_unique<Second>();
    cudaDeviceSynchronize();
    report(cudaGetLastError());
    std::printf("\n");
  }

  // Destroys all. A driver may crash if a stream is destroyed that is capturing, or an executable in flight. A capture
  // may have the second thread's per-thread stream, so that thread ends after all captures.
  void destroy() {
    if (second_ != nullptr) second_->call([this] { end_captures(); });
    end_captures();
    report(cudaDeviceSynchronize());
    second_.reset();
    for (void* const allocation : allocations_) cudaFreeAsync(allocation, own_streams_[0]);
    cudaDeviceSynchronize();
    for (const Executable& executable : executables_) cudaGraphExecDestroy(executable);
    for (const Graph& graph : graphs_) cudaGraphDestroy(graph);
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    for (const cudaStream_t stream : own_streams_) cudaStreamDestroy(stream);
    for (int place = 0; place < kOfDevice; ++place) cudaFree(places_[place]);
    cudaFreeHost(places_[4]);
  }

  // ---- The log ----

  static const char* name(cudaError_t error) { return cudaGetErrorName(error) + sizeof "cuda" - 1; }
  bool report(cudaError_t error) {
    for (const cudaError_t end : {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorUnknown,
                                  cudaErrorMisalignedAddress, cudaErrorContextIsDestroyed}) {
      lost_ = lost_ || error == end;
    }
    std::printf(" -> %s", name(error));
    return error == cudaSuccess;
  }
  // Of a call that may find work over or not.
  void report_timed(cudaError_t error) { cudaGetLastError(), report(error == cudaErrorNotReady ? cudaSuccess : error); }
  template <class T>
  static T shown(const char* name, T value) {
    std::printf(" %s %lld", name, static_cast<long long>(value));
    return value;
  }
  // The result of a call and what it wrote to its last argument.
  template <class T, class Function, class... Arguments>
  void query(const char* name, Function function, Arguments... arguments) {
    T value{};
    report(function(arguments..., &value));
    shown(name, value);
  }

  // ---- Draws ----

  int draw(int bound) { return random_.below(bound); }
  bool one_in(int n) { return random_.one_in(n); }
  template <class T = unsigned>
  T number(const char* name, int bound) {
    return static_cast<T>(shown(name, draw(bound)));
  }
  // A multiple of `unit`, or, now and then, 0.
  std::size_t size(const char* name, int most, std::size_t unit = 1) {
    return shown(name, one_in(10) ? 0 : unit * static_cast<std::size_t>(1 + draw(most)));
  }
  // Now and then one that is too small.
  std::size_t pitch(std::size_t usual) { return shown("pitch", one_in(10) ? 1 : usual); }
  void* memory(int places = kPlaces) {
    static constexpr const char* kNames[kPlaces] = {"device0", "device1", "device2", "managed", "pinned", "pageable"};
    const int place = draw(places);
    std::printf(" %s", kNames[place]);
    return places_[place];
  }
  cudaMemcpyKind kind() { return static_cast<cudaMemcpyKind>(shown("kind", one_in(2) ? 4 : draw(5))); }
  cudaStreamCaptureMode mode() { return number<cudaStreamCaptureMode>("mode", 3); }
  Copy some_copy(int places = kPlaces) { return {memory(places), memory(places), size("bytes", 256), kind()}; }
  cudaMemsetParams some_set() {
    const unsigned element = shown("element", one_in(16) ? 3u : 1u << draw(3)), value = one_in(16) ? 70000 : 1;
    return {memory(), pitch(1024),       shown("value", value),
            element,  size("width", 64), one_in(2) ? 1 : size("height", 4)};
  }
  cudaMemcpy3DParms some_box(int places = kPlaces) {
    cudaMemcpy3DParms box = {};
    box.dstPtr = {memory(places), pitch(128), 128, pitch(4)};
    box.srcPtr = {memory(places), pitch(64), 64, pitch(4)};
    box.extent = {size("width", 4, 8), size("height", 3), size("depth", 2)};
    box.kind = kind();
    return box;
  }
  // Valid until the next one is drawn. It gets no memory of the host alone, which only hostrt could use.
  cudaKernelNodeParams some_kernel() {
    const int which = number<int>("kernel", 3), shared = draw(16);
    to_ = static_cast<float*>(memory(kOfDevice)), from_ = static_cast<float*>(places_[1]), count_ = draw(16);
    const dim3 grid{shown("grid", one_in(12) ? 0u : 1u + draw(3)), shown("y", one_in(16) ? 70000u : 1u)};
    const dim3 block{shown("block", one_in(12) ? 2048u : 32u << draw(2)), 1, shown("z", one_in(16) ? 65u : 1u)};
    const unsigned bytes = shown("shared", shared == 0 ? 1u << 20 : shared == 1 ? 60000 : shared < 6 ? 1024 : 0);
    return {kernels_[which], grid, block, bytes, arguments_[which], nullptr};
  }
  cudaHostNodeParams some_host() {
    return {shown("function", !one_in(8)) ? [](void*) {} : cudaHostFn_t{}, nullptr};
  }

  Stream& stream() { return one_of("stream", streams_); }
  cudaEvent_t& event() { return one_of("event", events_); }
  Graph& graph() { return one_of("graph", graphs_); }
  Executable& executable() { return one_of("executable", executables_); }
  cudaGraphNode_t& node(Graph& graph) { return one_of("node", graph.nodes); }
  // A node of the graph of which the executable was made.
  cudaGraphNode_t node(const Executable& executable) {
    for (Graph& graph : graphs_) {
      if (graph.number == executable.graph) return node(graph);
    }
    throw Nothing{};
  }
  Nodes some_of(const Nodes& nodes) {
    Nodes some;
    for (const cudaGraphNode_t node : nodes) {
      if (one_in(3)) some.push_back(node);
    }
    if (!some.empty() && one_in(20)) some.push_back(some[0]);
    if (one_in(40)) some.push_back(nullptr);
    shown("after", some.size());
    return some;
  }

  // ---- Objects ----

  static void set_mode(cudaStreamCaptureMode mode) { cudaThreadExchangeStreamCaptureMode(&mode); }
  static bool is_capturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(stream, &status);
    if (error != cudaSuccess) cudaGetLastError();
    return error != cudaSuccess || status != cudaStreamCaptureStatusNone;
  }
  static cudaGraphNodeType type_of(cudaGraphNode_t node) {
    cudaGraphNodeType type = cudaGraphNodeTypeCount;
    return cudaGraphNodeGetType(node, &type) == cudaSuccess ? shown("type", type) : throw Nothing{};
  }
  static Nodes nodes_of(cudaGraph_t graph) {
    std::size_t count = 0;
    cudaGraphGetNodes(graph, nullptr, &count);
    Nodes nodes(count);
    if (count > 0) cudaGraphGetNodes(graph, nodes.data(), &count);
    return nodes;
  }
  static void show_position(const Nodes& nodes, cudaGraphNode_t node) {
    const auto found = std::find(nodes.begin(), nodes.end(), node);
    shown("at", found == nodes.end() ? -1 : found - nodes.begin());
  }
  void take(cudaGraph_t graph) {
    graphs_.push_back({{graph}, next_graph_++, nodes_of(graph)});
    query<std::size_t>("edges", cudaGraphGetEdges, graph, nullptr, nullptr, nullptr);
    for (const cudaGraphNode_t node : graphs_.back().nodes) type_of(node);
  }
  void forget(const Graph& graph) {
    for (Executable& executable : executables_) {
      if (executable.graph == graph.number) executable.graph = -1;
    }
    graphs_.erase(graphs_.begin() + (&graph - graphs_.data()));
  }

  bool lost_ = false;           // The context is.
  bool event_is_used_ = false;  // By a graph, perhaps.
  std::vector<Stream> streams_;
  std::vector<cudaEvent_t> events_ = std::vector<cudaEvent_t>(3);
  std::vector<Graph> graphs_;
  std::vector<Executable> executables_;
  std::vector<void*> allocations_;  // Of cudaMallocAsync.
  std::unique_ptr<Second> second_;
  void* const kernels_[3] = {reinterpret_cast<void*>(add), reinterpret_cast<void*>(scale),
                             reinterpret_cast<void*>(do_nothing)};

 private:
  template <class T>
  T& one_of(const char* name, std::vector<T>& all) {
    if (all.empty()) throw Nothing{};
    return all[number(name, static_cast<int>(all.size()))];
  }
  // Only the thread that began a capture may end it, and each thread has a per-thread stream of its own.
  void end_captures() {
    set_mode(cudaStreamCaptureModeRelaxed);
    for (const Stream& stream : streams_) {
      cudaGraph_t graph = nullptr;
      const bool is_own = stream.captured_by == std::this_thread::get_id() || stream == cudaStreamPerThread;
      if (is_own && cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    }
    cudaGetLastError();
  }

  stress::Random random_;
  std::vector<cudaStream_t> own_streams_;
  void* places_[kPlaces] = {};
  std::vector<char> pageable_ = std::vector<char>(kBytes);
  int next_graph_ = 0;
  float *to_ = nullptr, *from_ = nullptr, value_ = 2;
  int count_ = 0;
  void* of_add_[3] = {&to_, &count_, &value_};
  void* of_scale_[4] = {&to_, &from_, &count_, &value_};
  void** const arguments_[3] = {of_add_, of_scale_, nullptr};
};

}  // namespace graphcache::test::calls
