// What the runtime's handles stand for. Plain records: the rules are in the files of the calls.
//
// Ownership: the handle tables of state.h own streams, events, graphs, nodes, executables and user objects; captures
// are owned by the state. Pointers between them are cleared by whoever destroys the target.

#ifndef GRAPHCACHE_LIB_HOSTRT_OBJECTS_H_
#define GRAPHCACHE_LIB_HOSTRT_OBJECTS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
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

// ---- What a node or an enqueued operation does ----

struct LaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue value;
};

struct KernelParams {
  const Kernel* kernel = nullptr;
  int device = 0;  // whichever stream the executable is launched into (facts 18)
  dim3 grid;
  std::optional<dim3> blocks;  // that run, where they are not as many as the grid says (device_nodes.h)
  dim3 block;
  unsigned shared_bytes = 0;
  Arguments arguments;
  std::vector<LaunchAttribute> attributes;
};

enum class MemoryKind { kDevice, kManaged, kPinned, kPageable };

struct CopyParams {
  void* destination = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  cudaMemcpyKind kind = cudaMemcpyDefault;
  Place from = {};  // the call that gave these parameters
  // An executable's node remembers which memory it was instantiated or last updated with. Patches leave that as it is.
  MemoryKind first_destination = MemoryKind::kPageable;
  MemoryKind first_source = MemoryKind::kPageable;
  bool is_illegal = false;  // a patch gave it memory that such a node does not reach (exec_patch.cc)
};

struct FillParams {
  void* destination = nullptr;
  unsigned value = 0;
  unsigned element_bytes = 1;
  std::size_t width = 0;  // in elements
  std::size_t height = 1;
  std::size_t pitch = 0;  // in bytes; without meaning when height is 1
  Place from = {};
};

struct HostParams {
  cudaHostFn_t function = nullptr;
  void* data = nullptr;
  unsigned sync_mode = 0;  // cudaHostTaskSyncMode: kept, and without effect
};

// A node of a graph has the embedded graph, a node of an executable what that graph became.
struct ChildParams {
  Graph* graph = nullptr;
  std::shared_ptr<Program> program;
};

// A node of a graph has the graphs of its bodies, a node of an executable what these became.
struct ConditionalParams {
  cudaGraphConditionalNodeType type = cudaGraphCondTypeIf;
  std::shared_ptr<Condition> condition;
  std::vector<Graph*> bodies;
  std::vector<std::shared_ptr<Program>> programs;
  std::shared_ptr<std::vector<cudaGraph_t>> handles;  // the array that cudaGraphAddNode handed out
};

// By handle: the event may be destroyed before the node.
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

// The order of the alternatives is of no importance: node_type() says what each is to the runtime.
using NodeParams = std::variant<EmptyParams, KernelParams, CopyParams, FillParams, HostParams, ChildParams,
                                ConditionalParams, EventRecordParams, EventWaitParams, AllocationParams, FreeParams>;

cudaGraphNodeType node_type(const NodeParams& params);

// Keeps the call that parameters came from, where a misuse will ask for it.
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
  std::size_t position = 0;            // in graph->nodes
  cudaGraphNode_t original = nullptr;  // the node that this one was cloned from; by handle, since it may go first
  NodeParams params;
  std::optional<int> told_type;    // what it passes for (set_node_type)
  std::vector<Edge> dependencies;  // in the order given: an update pairs nodes by it (facts 22)
  std::vector<Node*> dependents;
};

// What a query tells.
inline cudaGraphNodeType type_of(const Node& node) {
  return node.told_type ? static_cast<cudaGraphNodeType>(*node.told_type) : node_type(node.params);
}

struct Graph {
  cudaGraph_t handle = nullptr;
  int device = 0;
  std::vector<Node*> nodes;                            // in the order of creation
  Capture* capture = nullptr;                          // while stream capture still adds nodes
  Node* parent = nullptr;                              // the child graph node or conditional node that owns this graph
  std::vector<std::shared_ptr<Condition>> conditions;  // made for it
  std::map<cudaUserObject_t, std::uint64_t> references;
  cudaGraph_t original = nullptr;  // that it was cloned from; by handle, since it may go first
};

// ---- Executables ----

struct ProgramNode {
  // The node of the base that may patch this one. By handle, since the base may be destroyed first (facts 12).
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

// What an executable runs. A launch holds on to the program it was given; patches and updates write to a copy when some
// launch still does, since they "affect later launches only" (facts 14).
struct Program {
  std::vector<ProgramNode> nodes;    // positions as in the base graph at instantiation
  std::vector<std::uint32_t> order;  // topological, else by position
  std::shared_ptr<Holding> holding;  // user objects of the graph, without those of child graphs
  bool has_events = false;           // that a launch has to record or to wait for, in child graphs, too
  bool has_memory = false;           // that a launch allocates or frees
  bool has_host_functions = false;   // the same
  // All versions of an executable's program share these, and so do the programs of its child graphs.
  std::shared_ptr<DeviceNodes> device_nodes;
};

struct Executable {
  cudaGraphExec_t handle = nullptr;
  int device = 0;
  unsigned long long flags = 0;
  cudaGraph_t base = nullptr;         // that it was instantiated from; by handle, since it may be destroyed first
  cudaGraph_t only_one_of = nullptr;  // a graph that may have no other; by handle, since it may be destroyed first
  std::shared_ptr<Program> program;
  std::uint64_t last_run = 0;  // the mark behind its last launch: it runs once at a time (facts 15)
};

// ---- Streams, events, captures ----

struct GraphRun {
  std::shared_ptr<const Program> program;
  Place launched = {};
};

// A place in a stream's work, by a number that is never used twice, and the waiting until a stream has passed one.
struct Mark {
  std::uint64_t number;
};

struct Wait {
  std::uint64_t mark;
};

// A copy from pageable memory, which the runtime has read by the time the call returns.
struct StagedCopy {
  void* destination;
  std::vector<std::byte> bytes;
  Place from;
};

// Runs before the nodes of a launch whose executable has device-updatable nodes (device_nodes.h).
struct LaunchStart {
  std::shared_ptr<DeviceNodes> nodes;
  int priority;   // of the stream
  bool is_early;  // the upload may still be going on
};

// Runs before the nodes of a launch that gives conditions their values (conditional_nodes.h).
struct ConditionStart {
  std::vector<std::shared_ptr<Condition>> conditions;
};

using Operation = std::variant<NodeParams, GraphRun, StagedCopy, Mark, Wait, LaunchStart, ConditionStart>;

// How far the graph at the front of a queue has come, where its nodes run one by one.
struct GraphProgress {
  std::size_t nodes_left = 0;            // 0: not begun
  std::vector<std::size_t> waiting_for;  // by position: dependencies that have not run
  std::vector<std::uint32_t> ready;
};

struct Stream {
  cudaStream_t handle = nullptr;
  unsigned long long id = 0;
  int device = 0;
  unsigned flags = cudaStreamDefault;
  int priority = 0;
  bool is_legacy = false;

  // Operations in order, and whether hostrt::hold() keeps them there. Unless execution is deferred, left by schedule.cc
  // either empty, or held, or beginning with a wait for another stream.
  std::deque<Operation> queue;
  GraphProgress progress;
  bool held = false;

  Capture* capture = nullptr;
  std::vector<Edge> next;  // what the next captured node depends on

  // The arrays that cudaStreamGetCaptureInfo handed out last.
  std::vector<cudaGraphNode_t> reported_nodes;
  std::vector<cudaGraphEdgeData> reported_edges;

  bool is_blocking() const { return (flags & cudaStreamNonBlocking) == 0; }
};

struct Event {
  cudaEvent_t handle = nullptr;
  int device = 0;
  unsigned flags = cudaEventDefault;
  bool recorded = false;
  std::uint64_t mark = 0;              // behind the work that it was last recorded behind
  std::uint64_t recorded_by = 0;       // the number of the call that last recorded it
  unsigned long long recorded_in = 0;  // the id of the stream of that call; 0 for a capture or a graph's node
  std::uint64_t capture_id = 0;        // of the capture that it was last recorded in; 0 when recorded by an eager call
  std::vector<Edge> captured;          // the dependencies that a waiting stream takes over; valid while that capture is
};

struct Capture {
  std::uint64_t id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::uint64_t thread = 0;  // who began it
  Stream* origin = nullptr;
  Graph* graph = nullptr;  // null once invalidated: the real driver frees it then, too (facts 3)
  bool invalidated = false;
  std::vector<Stream*> streams;  // the origin and every stream forked from it
  std::vector<Edge> abandoned;   // ends of forked streams that were destroyed: still to be joined
};

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_OBJECTS_H_
