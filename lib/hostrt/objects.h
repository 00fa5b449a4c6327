// The objects behind the runtime's handles. These are plain records; the rules are in the files of the calls.
//
// Ownership: the handle tables in state.h own streams, events, graphs, nodes, executables and user objects. The state
// owns captures. The code that destroys an object clears the pointers to it.

#ifndef GRAPHCACHE_LIB_HOSTRT_OBJECTS_H_
#define GRAPHCACHE_LIB_HOSTRT_OBJECTS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "kernels.h"
#include "place.h"

namespace graphcache::hostrt {

struct Block;
struct Capture;
struct Condition;
struct DeviceNodes;
struct Graph;
class Holding;
struct Node;
struct Program;

// ---- Parameters of a node or an enqueued operation ----

struct LaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue value;
};

struct KernelParams {
  const Kernel* kernel = nullptr;
  int device = 0;  // the device it runs on, whatever stream the executable is launched into (facts 18)
  dim3 grid;
  std::optional<dim3> blocks;  // number of blocks that run, if it differs from the grid (device_nodes.h)
  dim3 block;
  unsigned shared_bytes = 0;
  Arguments arguments;
  std::vector<LaunchAttribute> attributes;
};

enum class MemoryKind { kDevice, kManaged, kPinned, kPageable };

// One end of a copy in two or three dimensions. In one dimension both are 0.
struct Pitches {
  std::size_t row = 0;    // bytes from the begin of a row to that of the next
  std::size_t slice = 0;  // rows from the begin of a slice to that of the next

  friend bool operator==(const Pitches&, const Pitches&) = default;
};

struct CopyParams {
  void* destination = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;  // of a row
  cudaMemcpyKind kind = cudaMemcpyDefault;
  std::size_t height = 1;  // rows of a slice
  std::size_t depth = 1;   // slices
  Pitches destination_pitches = {};
  Pitches source_pitches = {};
  Place from = {};  // the call that set these parameters
  // The allocations that both ends were in then, or 0 for memory that keeps its mapping when it is given out again.
  unsigned long long destination_id = 0, source_id = 0;
  bool is_far = false;  // whether they were of two devices
  // Whether the instantiation has made it a copy of the device's. Patches and updates do not change that. Empty outside
  // of executables.
  std::optional<bool> is_of_device = {};
  // The device whose copy it is by the instantiation, twice, or the two that it is between, likewise.
  std::optional<std::pair<int, int>> devices = {};

  bool is_flat() const { return height == 1 && depth == 1; }
};

struct FillParams {
  void* destination = nullptr;
  unsigned value = 0;
  unsigned element_bytes = 1;
  std::size_t width = 0;  // in elements
  std::size_t height = 1;
  std::size_t pitch = 0;  // in bytes; unused if height is 1
  Place from = {};
};

struct HostParams {
  cudaHostFn_t function = nullptr;
  void* data = nullptr;
  unsigned sync_mode = 0;  // cudaHostTaskSyncMode; stored without effect
};

// In a graph, a node has the embedded graph; in an executable, it has that graph's program.
struct ChildParams {
  Graph* graph = nullptr;
  std::shared_ptr<Program> program;
};

// In a graph, a node has the graphs of its bodies; in an executable, it has their programs.
struct ConditionalParams {
  cudaGraphConditionalNodeType type = cudaGraphCondTypeIf;
  std::shared_ptr<Condition> condition;
  std::vector<Graph*> bodies;
  std::vector<std::shared_ptr<Program>> programs;
  std::shared_ptr<std::vector<cudaGraph_t>> handles;  // the array that cudaGraphAddNode returned
};

// The event is named by handle, because it may be destroyed before the node.
struct EventRecordParams {
  cudaEvent_t event = nullptr;
};

struct EventWaitParams {
  cudaEvent_t event = nullptr;
};

struct AllocationParams {
  std::shared_ptr<Block> block;
};

struct FreeParams {
  std::shared_ptr<Block> block;
};

struct EmptyParams {};

// The order of the alternatives does not matter: node_type() maps them to the runtime's types.
using NodeParams = std::variant<EmptyParams, KernelParams, CopyParams, FillParams, HostParams, ChildParams,
                                ConditionalParams, EventRecordParams, EventWaitParams, AllocationParams, FreeParams>;

cudaGraphNodeType node_type(const NodeParams& params);

// Records the call that set the parameters, for reports of misuse.
void set_place(CopyParams& copy, const Place& place);
void set_place(NodeParams& params, const Place& place);

// ---- Graphs ----

struct Edge {
  Node* from = nullptr;
  cudaGraphEdgeData data = {};
};

bool is_plain(const cudaGraphEdgeData& data);
bool operator==(const Edge& a, const Edge& b);

struct Node {
  cudaGraphNode_t handle = nullptr;
  Graph* graph = nullptr;
  std::size_t position = 0;            // index in graph->nodes
  cudaGraphNode_t original = nullptr;  // handle of the node that this one was cloned from, which may be destroyed first
  NodeParams params;
  std::optional<int> reported_type;  // the type that queries report instead of its own (set_node_type)
  std::vector<Edge> dependencies;    // in the order given, which decides how an update pairs nodes (facts 22)
  std::vector<Node*> dependents;
};

// The type that a query reports.
inline cudaGraphNodeType type_of(const Node& node) {
  return node.reported_type ? static_cast<cudaGraphNodeType>(*node.reported_type) : node_type(node.params);
}

struct Graph {
  cudaGraph_t handle = nullptr;
  int device = 0;
  std::vector<Node*> nodes;                            // in the order of creation
  std::vector<Node*> exits;                            // without dependents, in the order in which they became that
  Capture* capture = nullptr;                          // set while stream capture still adds nodes
  Node* parent = nullptr;                              // the child graph node or conditional node that owns this graph
  std::vector<std::shared_ptr<Condition>> conditions;  // conditions created for this graph
  std::map<cudaUserObject_t, std::uint64_t> references;
  cudaGraph_t original = nullptr;  // handle of the graph that this one was cloned from, which may be destroyed first
};

// ---- Executables ----

struct ProgramNode {
  // Handle of the base's node that may patch this one. The base may be destroyed first (facts 12).
  cudaGraphNode_t base_node = nullptr;
  NodeParams params;
  bool enabled = true;
  struct Dependency {
    std::uint32_t position;
    cudaGraphEdgeData data;
  };
  std::vector<Dependency> dependencies;
  std::vector<std::uint32_t> dependents;
};

// What an executable runs. A launch keeps the program that it started with. Patches and updates write to a copy while a
// launch still holds it, because they "affect later launches only" (facts 14).
struct Program {
  std::vector<ProgramNode> nodes;    // in the order of the base graph at instantiation
  std::vector<std::uint32_t> order;  // topological, ties in order of position
  std::vector<std::uint32_t> exits;  // in the order of the base graph's
  std::shared_ptr<Holding> holding;  // user objects of the graph, without those of child graphs
  bool has_events = false;           // a launch records or waits for events, in child graphs as well
  bool has_memory = false;           // a launch allocates or frees memory
  bool has_host_functions = false;   // the program or a child graph has host nodes
  // Shared by all versions of an executable's program and by the programs of its child graphs.
  std::shared_ptr<DeviceNodes> device_nodes;
};

struct Executable {
  cudaGraphExec_t handle = nullptr;
  int device = 0;
  unsigned long long flags = 0;
  cudaGraph_t base = nullptr;  // handle of the graph it was instantiated from, which may be destroyed first
  // Handle of a graph that may have no other executable. The graph may be destroyed first.
  cudaGraph_t only_one_of = nullptr;
  std::shared_ptr<Program> program;
  // The mark after its last launch. Launches of one executable run one at a time (facts 15).
  std::uint64_t last_run = 0;
};

// ---- Streams, events, captures ----

struct GraphRun {
  std::shared_ptr<const Program> program;
  Place launched = {};
};

// A position in a stream's queue. Its number is never reused. A Wait blocks the queue until the mark has been passed.
struct Mark {
  std::uint64_t number;
};

struct Wait {
  std::uint64_t mark;
};

// A copy from pageable memory that the runtime has read by the time the call returns.
struct StagedCopy {
  CopyParams copy;
  std::vector<std::byte> bytes;  // all rows, without gaps
};

// Runs before the nodes of a launch whose executable has device-updatable nodes (device_nodes.h).
struct LaunchStart {
  std::shared_ptr<DeviceNodes> nodes;
  int priority;   // priority of the launching stream
  bool is_early;  // the upload may not be complete
};

// Runs before the nodes of a launch and gives the conditions their values of the launch's begin (conditional_nodes.h).
struct ConditionStart {
  std::vector<std::shared_ptr<Condition>> conditions;
};

using Operation = std::variant<NodeParams, GraphRun, StagedCopy, Mark, Wait, LaunchStart, ConditionStart>;

// Progress of the graph at the front of a queue if its nodes run one by one.
struct GraphProgress {
  std::size_t nodes_left = 0;            // 0 if it has not begun
  std::vector<std::size_t> waiting_for;  // number of dependencies of each node that have not run
  std::vector<std::uint32_t> ready;
};

struct Stream {
  cudaStream_t handle = nullptr;
  unsigned long long id = 0;
  int device = 0;
  unsigned flags = cudaStreamDefault;
  int priority = 0;
  bool is_legacy = false;

  // Pending operations in order. Unless execution is deferred, schedule.cc leaves the queue empty, held by
  // hostrt::hold(), or beginning with a wait for another stream.
  std::deque<Operation> queue;
  GraphProgress progress;
  bool held = false;

  Capture* capture = nullptr;
  std::vector<Edge> next;  // dependencies of the next captured node

  // The arrays that cudaStreamGetCaptureInfo last returned.
  std::vector<cudaGraphNode_t> reported_nodes;
  std::vector<cudaGraphEdgeData> reported_edges;

  bool is_blocking() const { return (flags & cudaStreamNonBlocking) == 0; }
};

struct Event {
  cudaEvent_t handle = nullptr;
  int device = 0;
  unsigned flags = cudaEventDefault;
  bool recorded = false;
  std::uint64_t mark = 0;        // the mark after the work it was last recorded behind
  std::uint64_t capture_id = 0;  // id of the capture it was last recorded in; 0 if recorded by an eager call
  std::vector<Edge> captured;    // the dependencies that a waiting stream takes over; valid while that capture is
};

struct Capture {
  std::uint64_t id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::uint64_t thread = 0;  // the thread that began it
  Stream* origin = nullptr;
  Graph* graph = nullptr;  // null once invalidated, when the real driver frees it as well (facts 3)
  bool invalidated = false;
  std::vector<Stream*> streams;  // the origin and every stream forked from it
  std::vector<Edge> abandoned;   // last nodes of destroyed forked streams, still to be joined
};

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_OBJECTS_H_
