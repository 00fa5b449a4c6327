// The operations of random calls. They leave out what CUDA leaves undefined and what crashes its driver: objects that
// are gone, a graph as a child of itself, a second free of a graph's memory, the end of an event that a graph may use,
// patches of copies to pageable memory.
#include "cuda/compat.h"
#include "world.h"

namespace graphcache::test::calls {
namespace {

class Calls : World {
 public:
  explicit Calls(std::uint64_t seed) : World(seed) {}

  bool run() {
    for (int left = 30 + draw(90); left > 0 && !lost_; --left) {
      const bool is_second = second_ != nullptr && one_in(4);
      std::printf(is_second ? "[2] " : "");
      is_second ? second_->call([this] { step(); }) : step();
    }
    std::printf("end");
    if (!lost_) destroy();
    std::printf(lost_ ? ", the context is lost\n" : "\n");
    return !lost_;
  }

 private:
  struct Operation {
    const char* name;
    int weight;
    void (Calls::*perform)();
  };
  static const Operation kOperations[];
  static const int kWeights;

  // An operation that lacks an object is followed by another one.
  void step() {
    while (!perform()) std::printf(" nothing, ");
    const bool clears = one_in(4);
    std::printf(clears ? ", last %s\n" : ", peek %s\n", name(clears ? cudaGetLastError() : cudaPeekAtLastError()));
  }
  bool perform() {
    const Operation* operation = kOperations;
    for (int at = draw(kWeights); at >= operation->weight; ++operation) at -= operation->weight;
    std::printf("%s", operation->name);
    try {
      return (this->*operation->perform)(), true;
    } catch (const Nothing&) {
      return false;
    }
  }

  // ---- Captures ----

  void begin() {
    Stream& s = stream();
    if (report(cudaStreamBeginCapture(s, mode()))) s.captured_by = std::this_thread::get_id();
  }
  // The graph is the capture's from then on.
  void begin_to() {
    Stream& s = stream();
    Graph& g = graph();
    const Nodes after = some_of(g.nodes);
    if (!report(cudaStreamBeginCaptureToGraph(s, g, after.data(), nullptr, after.size(), mode()))) return;
    s.captured_by = std::this_thread::get_id();
    forget(g);
  }
  void end() {
    cudaGraph_t g = nullptr;
    if (report(cudaStreamEndCapture(stream(), &g))) take(g);
  }
  void is_captured() { query<cudaStreamCaptureStatus>("status", cudaStreamIsCapturing, stream()); }
  void set_dependencies() {
    const Stream& s = stream();
    CaptureInfo info;
    report(capture_info(s, &info));
    shown("status", info.status), shown("before", info.dependency_count);
    if (info.graph == nullptr && !one_in(4)) return;
    Nodes after = some_of(info.graph != nullptr ? nodes_of(info.graph) : Nodes{});
    report(cudaStreamUpdateCaptureDependencies(s, after.data(), nullptr, after.size(), number("flags", 3)));
  }
  void exchange_mode() {
    cudaStreamCaptureMode m = mode();
    report(cudaThreadExchangeStreamCaptureMode(&m)), shown("before", m);
  }

  // ---- Work ----

  void launch() {
    const auto k = some_kernel();
    report(cudaLaunchKernel(k.func, k.gridDim, k.blockDim, k.kernelParams, k.sharedMemBytes, stream()));
  }
  void launch_with_attributes() {
    const auto k = some_kernel();
    cudaLaunchAttribute attributes[3] = {};
    cudaLaunchConfig_t config = {k.gridDim, k.blockDim, k.sharedMemBytes, stream(), attributes, 0};
    const auto with = [&](cudaLaunchAttributeID id, int value) {
      attributes[config.numAttrs].id = shown("attribute", id);
      attributes[config.numAttrs++].val.priority = shown("value", value);
    };
    if (one_in(2)) with(cudaLaunchAttributePriority, -draw(3));
    if (one_in(3)) with(cudaLaunchAttributeProgrammaticStreamSerialization, draw(2));
    if (one_in(4)) with(cudaLaunchAttributeCooperative, 1);
    report(cudaLaunchKernelExC(&config, k.func, k.kernelParams));
  }
  void call_host() { report(Call{cudaLaunchHostFunc, stream(), some_host().fn, nullptr}); }
  void copy() { report(Call{cudaMemcpyAsync, memory(), memory(), size("bytes", 256), kind(), stream()}); }
  void copy_2d() {
    report(Call{cudaMemcpy2DAsync, memory(), pitch(256), memory(), pitch(128), size("width", 8, 8), size("height", 4),
                kind(), stream()});
  }
  void copy_3d() { report(Call{cudaMemcpy3DAsync, address(some_box()), stream()}); }
  void copy_and_wait() { report(Call{cudaMemcpy, memory(), memory(), 64, cudaMemcpyDefault}); }
  void copy_2d_and_wait() { report(Call{cudaMemcpy2D, memory(), 64, memory(), 64, 16, 2, cudaMemcpyDefault}); }
  void set() { report(Call{cudaMemsetAsync, memory(), 1, size("bytes", 256), stream()}); }
  void set_2d() {
    report(Call{cudaMemset2DAsync, memory(), pitch(64), 1, size("width", 32), size("height", 3), stream()});
  }
  void set_and_wait() { report(cudaMemset(memory(), 0, 64)); }

  // ---- Events, streams, memory, kernels ----

  void record() {
    const bool in_graph = shown("external", one_in(5));
    event_is_used_ = event_is_used_ || in_graph;
    report(Call{cudaEventRecordWithFlags, event(), stream(), in_graph ? cudaEventRecordExternal : 0u});
  }
  void wait() {
    const bool in_graph = shown("external", one_in(6));
    event_is_used_ = event_is_used_ || in_graph;
    report(Call{cudaStreamWaitEvent, stream(), event(), in_graph ? cudaEventWaitExternal : 0u});
  }
  void query_event() { report_timed(cudaEventQuery(event())); }
  void wait_for_event() { report(cudaEventSynchronize(event())); }
  void elapsed() { report_timed(Call{cudaEventElapsedTime, address(0.f), event(), event()}); }
  void new_event() {
    if (event_is_used_) throw Nothing{};
    cudaEvent_t& e = event();
    report(cudaEventDestroy(e));
    report(cudaEventCreateWithFlags(&e, number("untimed", 2) * cudaEventDisableTiming));
  }
  void query_stream() { report_timed(cudaStreamQuery(stream())); }
  void wait_for_stream() { report(cudaStreamSynchronize(stream())); }
  void wait_for_device() { report(cudaDeviceSynchronize()); }
  void get_priority() { query<int>("priority", cudaStreamGetPriority, stream()); }
  void get_stream_flags() { query<unsigned>("flags", cudaStreamGetFlags, stream()); }
  void allocate() {
    void* p = nullptr;
    if (report(cudaMalloc(&p, 256))) report(cudaFree(p));
  }
  void allocate_pinned() {
    void* p = nullptr;
    if (report(cudaMallocHost(&p, 256))) report(cudaFreeHost(p));
  }
  void allocate_async() {
    const Stream& s = stream();
    void* p = nullptr;
    if (report(cudaMallocAsync(&p, 256, s))) report(cudaFreeAsync(p, s));
  }
  // Not in a capture, where only a launch of its graph allocates.
  void keep_or_free() {
    const Stream& s = stream();
    void* p = nullptr;
    if (is_capturing(s)) throw Nothing{};
    if (allocations_.size() < 3) return report(cudaMallocAsync(&p, 512, s)) ? allocations_.push_back(p) : void();
    p = allocations_.back();
    allocations_.pop_back();
    report(shown("at_once", one_in(4)) ? cudaFree(p) : cudaFreeAsync(p, s));
  }
  void pointer() {
    cudaPointerAttributes attributes = {};
    report(cudaPointerGetAttributes(&attributes, memory())), shown("type", attributes.type);
  }
  void get_function() {
    cudaFuncAttributes attributes = {};
    report(cudaFuncGetName(address<const char*>(nullptr), kernels_[1]));
    report(cudaFuncGetAttributes(&attributes, kernels_[1])), shown("most", attributes.maxDynamicSharedSizeBytes);
  }
  void set_function() {
    const int bytes = shown("bytes", one_in(3) ? 1 << 20 : 65536);
    report(cudaFuncSetAttribute(kernels_[1], cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }

  // ---- Graphs ----

  void create() {
    cudaGraph_t g = nullptr;
    if (graphs_.size() >= kGraphs) throw Nothing{};
    if (report(cudaGraphCreate(&g, shown("flags", one_in(20))))) take(g);
  }
  void clone() {
    cudaGraph_t g = nullptr;
    if (graphs_.size() >= kGraphs) throw Nothing{};
    if (report(cudaGraphClone(&g, graph()))) take(g);
  }
  void destroy_graph() {
    if (graphs_.size() < 4) throw Nothing{};
    Graph& g = graph();
    report(cudaGraphDestroy(g)), forget(g);
  }
  template <class Function, class... Arguments>
  bool add_by(Graph& g, Function function, Arguments... arguments) {
    const Nodes after = some_of(g.nodes);
    cudaGraphNode_t n = nullptr;
    if (!report(function(&n, g, after.data(), after.size(), arguments...))) return false;
    g.nodes.push_back(n);
    return true;
  }
  bool add_any_by(Graph& g, cudaGraphNodeParams* params) {
    return add_by(g, [=](auto* n, cudaGraph_t to, const cudaGraphNode_t* after, std::size_t count) {
      return cudaGraphAddNode(n, to, after, nullptr, count, params);
    });
  }
  void add_of(Graph& g, int type) {
    shown("type", type);
    event_is_used_ = event_is_used_ || type == cudaGraphNodeTypeWaitEvent || type == cudaGraphNodeTypeEventRecord;
    if (type == cudaGraphNodeTypeKernel) add_by(g, cudaGraphAddKernelNode, address(some_kernel()));
    if (type == cudaGraphNodeTypeMemcpy) add_by(g, cudaGraphAddMemcpyNode, address(some_box()));
    if (type == cudaGraphNodeTypeMemset) add_by(g, cudaGraphAddMemsetNode, address(some_set()));
    if (type == cudaGraphNodeTypeHost) add_by(g, cudaGraphAddHostNode, address(some_host()));
    if (type == cudaGraphNodeTypeGraph) add_by(g, cudaGraphAddChildGraphNode, another(g));
    if (type == cudaGraphNodeTypeEmpty) add_by(g, cudaGraphAddEmptyNode);
    if (type == cudaGraphNodeTypeWaitEvent) add_by(g, cudaGraphAddEventWaitNode, event());
    if (type == cudaGraphNodeTypeEventRecord) add_by(g, cudaGraphAddEventRecordNode, event());
  }
  cudaGraph_t another(const Graph& than) {
    const Graph& g = graph();
    return &g != &than ? g : throw Nothing{};
  }
  void add_node() {
    Graph& g = graph();
    add_of(g, draw(8));
  }
  void add_copy() {
    Graph& g = graph();
    const Copy c = some_copy();
    add_by(g, cudaGraphAddMemcpyNode1D, c.to, c.from, c.bytes, c.kind);
  }
  void add_any() {
    Graph& g = graph();
    add_any_by(g, address(some_params()));
  }
  void add_condition() {
    Graph& g = graph();
    cudaGraphNodeParams p = {};
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.type = shown("kind", one_in(3)) ? cudaGraphCondTypeSwitch : cudaGraphCondTypeIf;
    p.conditional.size = static_cast<unsigned>(size("size", 3));
    // Nothing sets the condition, so it needs a default.
    constexpr unsigned kDefault = cudaGraphCondAssignDefault;
    if (!report(cudaGraphConditionalHandleCreate(&p.conditional.handle, g, number("value", 2), kDefault))) return;
    if (one_in(6) || !add_any_by(g, &p)) return;
    static constexpr int kTypes[] = {cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemset, cudaGraphNodeTypeHost,
                                     cudaGraphNodeTypeEmpty, cudaGraphNodeTypeCount};
    for (unsigned i = 0; i < p.conditional.size; ++i) {
      Graph body{{p.conditional.phGraph_out[i]}, -1, {}};
      add_of(body, kTypes[draw(5)]);
    }
  }
  void add_memory() {
    Graph& g = graph();
    cudaMemAllocNodeParams p = {};
    p.poolProps.allocType = cudaMemAllocationTypePinned;
    p.poolProps.location.type = cudaMemLocationTypeDevice;
    p.bytesize = size("bytes", 1, 256);
    if (add_by(g, cudaGraphAddMemAllocNode, &p) && one_in(2)) add_by(g, cudaGraphAddMemFreeNode, p.dptr);
  }
  // Only if no executable of the graph may be patched, which names the node.
  void destroy_node() {
    Graph& g = graph();
    for (const Executable& x : executables_) {
      if (x.graph == g.number) throw Nothing{};
    }
    cudaGraphNode_t& n = node(g);
    if (report(cudaGraphDestroyNode(n))) g.nodes.erase(g.nodes.begin() + (&n - g.nodes.data()));
  }
  void depend() {
    Graph& g = graph();
    const cudaGraphNode_t from = node(g), to = node(g);
    const auto change = shown("remove", one_in(2)) ? cudaGraphRemoveDependencies : cudaGraphAddDependencies;
    report(change(g, &from, &to, nullptr, 1));
  }
  void degrees() {
    Graph& g = graph();
    const cudaGraphNode_t n = node(g);
    query<std::size_t>("before", cudaGraphNodeGetDependencies, n, nullptr, nullptr);
    query<std::size_t>("behind", cudaGraphNodeGetDependentNodes, n, nullptr, nullptr);
    query<std::size_t>("roots", cudaGraphGetRootNodes, g, nullptr);
    query<std::size_t>("edges", cudaGraphGetEdges, g, nullptr, nullptr, nullptr);
  }
  void find_in_clone() {
    const cudaGraphNode_t n = node(graph());
    const Graph& clone = graph();
    cudaGraphNode_t found = nullptr;
    report(cudaGraphNodeFindInClone(&found, n, clone)), show_position(clone.nodes, found);
  }
  void keep_object() {
    Graph& g = graph();
    cudaUserObject_t o = nullptr;
    const auto gone = [](void*) {};
    const unsigned references = 1 + number("references", 3),
                   flags = number("flags", 8) == 0 ? 0 : cudaUserObjectNoDestructorSync;
    if (!report(cudaUserObjectCreate(&o, &g, gone, references, flags))) return;
    const unsigned kept = number("kept", static_cast<int>(references) + 1);
    if (!report(cudaGraphRetainUserObject(g, o, kept, number("move", 2)))) return;
    if (kept > 0 && one_in(2)) report(cudaGraphReleaseUserObject(g, o, 1));
  }

  // ---- Nodes ----

  void get_params() {
    const cudaGraphNode_t n = node(graph());
    cudaKernelNodeParams k = {};
    cudaMemcpy3DParms c = {};
    cudaMemsetParams s = {};
    report(cudaGraphKernelNodeGetParams(n, &k)), shown("grid", k.gridDim.x), shown("shared", k.sharedMemBytes);
    report(cudaGraphMemcpyNodeGetParams(n, &c)), shown("width", c.extent.width), shown("kind", c.kind);
    report(cudaGraphMemsetNodeGetParams(n, &s)), shown("width", s.width), shown("height", s.height);
  }
  void set_params() {
    const cudaGraphNode_t n = node(graph());
    const int type = type_of(n);
    const Copy c = type == cudaGraphNodeTypeMemcpy ? some_copy() : Copy{};
    if (type == cudaGraphNodeTypeKernel) report(cudaGraphKernelNodeSetParams(n, address(some_kernel())));
    if (type == cudaGraphNodeTypeMemset) report(cudaGraphMemsetNodeSetParams(n, address(some_set())));
    if (type == cudaGraphNodeTypeMemcpy) report(cudaGraphMemcpyNodeSetParams1D(n, c.to, c.from, c.bytes, c.kind));
  }
  cudaGraphNodeParams some_params() {
    cudaGraphNodeParams p = {};
    const int type = draw(3);
    p.type = type == 0 ? cudaGraphNodeTypeKernel : type == 1 ? cudaGraphNodeTypeMemset : cudaGraphNodeTypeHost;
    const auto k = type == 0 ? some_kernel() : cudaKernelNodeParams{};
    const auto s = type == 1 ? some_set() : cudaMemsetParams{};
    if (type == 0) p.kernel = {k.func, k.gridDim, k.blockDim, k.sharedMemBytes, k.kernelParams, nullptr};
    if (type == 1) p.memset = {s.dst, s.pitch, s.value, s.elementSize, s.width, s.height};
    if (type == 2) p.host.fn = some_host().fn;
    return p;
  }
  void set_any() { report(Call{cudaGraphNodeSetParams, node(graph()), address(some_params())}); }
  void get_attribute() {
    cudaLaunchAttributeValue value = {};
    report(Call{cudaGraphKernelNodeGetAttribute, node(graph()), kAttributes[number("attribute", 3)], &value});
    shown("value", value.priority);
  }
  void set_attribute() {
    const unsigned which = number("attribute", 3);
    cudaLaunchAttributeValue value = {};
    if (which == 0) value.priority = 1 - number<int>("priority", 7);
    if (which == 1) value.cooperative = number<int>("cooperative", 2);
    if (which == 2) value.clusterDim = {1 + number("cluster", 3), 1, 1};
    report(cudaGraphKernelNodeSetAttribute(node(graph()), kAttributes[which], &value));
  }
  void copy_attributes() {
    Graph& g = graph();
    report(Call{cudaGraphKernelNodeCopyAttributes, node(g), node(g)});
  }

  // ---- Executables ----

  void instantiate() {
    static constexpr unsigned kFlags[] = {0, 0, 0, 1, 8, 9, 2, 16};
    const Graph& g = graph();
    cudaGraphExec_t x = nullptr;
    if (executables_.size() >= 5) throw Nothing{};
    if (!report(cudaGraphInstantiate(&x, g, shown("flags", kFlags[draw(8)])))) return;
    executables_.push_back({{x}, g.number});
    query<unsigned long long>("flags", cudaGraphExecGetFlags, x);
  }
  void launch_graph() { report(Call{cudaGraphLaunch, executable(), stream()}); }
  void upload() { report(Call{cudaGraphUpload, executable(), stream()}); }
  void destroy_executable() {
    Executable& x = executable();
    if (executables_.size() < 3) throw Nothing{};
    if (std::none_of(streams_.begin(), streams_.end(), is_capturing)) cudaDeviceSynchronize();
    report(cudaGraphExecDestroy(x));
    executables_.erase(executables_.begin() + (&x - executables_.data()));
  }
  void update() {
    const Executable& x = executable();
    const Graph& g = graph();
    cudaGraphExecUpdateResultInfo info = {};
    report(cudaGraphExecUpdate(x, g, &info)), shown("result", info.result);
    show_position(g.nodes, info.errorNode), show_position(g.nodes, info.errorFromNode);
  }
  // Now and then by the parameters of another type.
  void patch() {
    const Executable& x = executable();
    const cudaGraphNode_t n = node(x);
    const int type = type_of(n), as = shown("as", one_in(12) ? draw(8) : type);
    const Copy c = as == cudaGraphNodeTypeMemcpy ? some_copy(kNotPageable) : Copy{};
    if (as == cudaGraphNodeTypeKernel) report(cudaGraphExecKernelNodeSetParams(x, n, address(some_kernel())));
    if (as == cudaGraphNodeTypeMemcpy) report(cudaGraphExecMemcpyNodeSetParams1D(x, n, c.to, c.from, c.bytes, c.kind));
    if (as == cudaGraphNodeTypeMemset) report(cudaGraphExecMemsetNodeSetParams(x, n, address(some_set())));
    if (as == cudaGraphNodeTypeHost) report(cudaGraphExecHostNodeSetParams(x, n, address(some_host())));
    if (as == cudaGraphNodeTypeGraph) report(cudaGraphExecChildGraphNodeSetParams(x, n, graph()));
    if (as == cudaGraphNodeTypeWaitEvent) report(cudaGraphExecEventWaitNodeSetEvent(x, n, event()));
    if (as == cudaGraphNodeTypeEventRecord) report(cudaGraphExecEventRecordNodeSetEvent(x, n, event()));
  }
  void patch_box() {
    const Executable& x = executable();
    report(Call{cudaGraphExecMemcpyNodeSetParams, x, node(x), address(some_box(kNotPageable))});
  }
  void patch_any() {
    const Executable& x = executable();
    report(Call{cudaGraphExecNodeSetParams, x, node(x), address(some_params())});
  }
  void enable() {
    const Executable& x = executable();
    const cudaGraphNode_t n = node(x);
    if (one_in(2)) report(cudaGraphNodeSetEnabled(x, n, number("enabled", 2)));
    query<unsigned>("enabled", cudaGraphNodeGetEnabled, x, n);
  }

  static constexpr std::size_t kGraphs = 6;
  static constexpr cudaLaunchAttributeID kAttributes[] = {cudaLaunchAttributePriority, cudaLaunchAttributeCooperative,
                                                          cudaLaunchAttributeClusterDimension};
};

// The operations, and how often each is drawn among all.
// clang-format off
#define GRAPHCACHE_TEST_CALLS(X) \
  X(begin, 4) X(begin_to, 2) X(end, 6) X(is_captured, 2) X(set_dependencies, 3) X(exchange_mode, 1) X(launch, 6) \
  X(launch_with_attributes, 4) X(call_host, 2) X(copy, 4) X(copy_2d, 2) X(copy_3d, 2) X(copy_and_wait, 1) \
  X(copy_2d_and_wait, 1) X(set, 2) X(set_2d, 2) X(set_and_wait, 1) X(record, 4) X(wait, 6) X(query_event, 1) \
  X(wait_for_event, 1) X(elapsed, 2) X(new_event, 2) X(query_stream, 1) X(wait_for_stream, 1) X(wait_for_device, 1) \
  X(get_priority, 1) X(get_stream_flags, 1) X(allocate, 1) X(allocate_pinned, 1) X(allocate_async, 1) \
  X(keep_or_free, 2) X(pointer, 2) X(get_function, 1) X(set_function, 1) X(create, 4) X(clone, 2) \
  X(destroy_graph, 2) X(add_node, 8) X(add_copy, 2) X(add_any, 1) X(add_condition, 4) X(add_memory, 2) \
  X(destroy_node, 2) X(depend, 2) X(degrees, 2) X(find_in_clone, 2) X(keep_object, 2) X(get_params, 1) \
  X(set_params, 2) X(set_any, 1) X(get_attribute, 1) X(set_attribute, 1) X(copy_attributes, 2) X(instantiate, 8) \
  X(launch_graph, 4) X(upload, 1) X(destroy_executable, 1) X(update, 4) X(patch, 6) X(patch_box, 1) X(patch_any, 1) \
  X(enable, 2)
// clang-format on

#define GRAPHCACHE_TEST_CALL(name, weight) {#name, weight, &Calls::name},
const Calls::Operation Calls::kOperations[] = {GRAPHCACHE_TEST_CALLS(GRAPHCACHE_TEST_CALL)};
#undef GRAPHCACHE_TEST_CALL
#define GRAPHCACHE_TEST_CALL(name, weight) +weight
const int Calls::kWeights = 0 GRAPHCACHE_TEST_CALLS(GRAPHCACHE_TEST_CALL);
#undef GRAPHCACHE_TEST_CALL

}  // namespace

bool run_world(std::uint64_t seed) { return Calls(seed).run(); }

}  // namespace graphcache::test::calls
