#include "user_objects.h"

#include <climits>
#include <utility>

#include "graph.h"

namespace graphcache::hostrt {
namespace {

// "Destructor callbacks cannot make CUDA API calls": they get an error, like calls from kernels and host functions.
void call_destructor(const UserObject& object) noexcept {
  Thread& thread = this_thread();
  const bool was_in_work = thread.in_work;
  thread.in_work = true;
  object.destroy(object.data);
  thread.in_work = was_in_work;
}

// Does nothing for an object that reset() has removed.
void release(State& state, cudaUserObject_t handle, std::uint64_t count) {
  UserObject* object = state.user_objects.find(handle);
  if (object == nullptr) return;
  object->references -= count;
  if (object->references == 0) call_destructor(*state.user_objects.remove(handle));
}

bool is_count(unsigned count) { return count != 0 && count <= INT_MAX; }

cudaError_t create(const Call& call, cudaUserObject_t* out, void* data, cudaHostFn_t destroy, unsigned count,
                   unsigned flags) {
  if (out == nullptr || destroy == nullptr || !is_count(count)) return cudaErrorInvalidValue;
  if (flags != cudaUserObjectNoDestructorSync) return cudaErrorInvalidValue;
  auto object = std::make_unique<UserObject>(UserObject{destroy, data, count, count});
  *out = reinterpret_cast<cudaUserObject_t>(call.state.user_objects.add(std::move(object)));
  return cudaSuccess;
}

cudaError_t retain(const Call& call, cudaUserObject_t handle, unsigned count) {
  UserObject* object = find_user_object(call, handle);
  if (object == nullptr || !is_count(count)) return cudaErrorInvalidValue;
  object->references += count;
  object->of_caller += count;
  return cudaSuccess;
}

// "It is undefined behavior to release references not owned by the caller". This is detected only by their number.
cudaError_t take_from_caller(const Call& call, UserObject& object, unsigned count) {
  if (object.of_caller < count) {
    return call.misuse(cudaErrorInvalidValue, "more references to the user object than the caller owns");
  }
  object.of_caller -= count;
  return cudaSuccess;
}

cudaError_t release(const Call& call, cudaUserObject_t handle, unsigned count) {
  UserObject* object = find_user_object(call, handle);
  if (object == nullptr || !is_count(count)) return cudaErrorInvalidValue;
  const cudaError_t error = take_from_caller(call, *object, count);
  if (error == cudaSuccess) release(call.state, handle, count);
  return error;
}

cudaError_t retain_by_graph(const Call& call, cudaGraph_t graph_handle, cudaUserObject_t handle, unsigned count,
                            unsigned flags) {
  Graph* graph = find_graph(call, graph_handle);
  UserObject* object = find_user_object(call, handle);
  if (graph == nullptr || object == nullptr || !is_count(count)) return cudaErrorInvalidValue;
  if ((flags & ~unsigned{cudaGraphUserObjectMove}) != 0) return cudaErrorInvalidValue;
  if (flags == cudaGraphUserObjectMove) {
    if (const cudaError_t error = take_from_caller(call, *object, count); error != cudaSuccess) return error;
    object->references -= count;  // the graph adds them again
  }
  retain(call.state, *graph, handle, count);
  return cudaSuccess;
}

cudaError_t release_by_graph(const Call& call, cudaGraph_t graph_handle, cudaUserObject_t handle, unsigned count) {
  Graph* graph = find_graph(call, graph_handle);
  if (graph == nullptr || find_user_object(call, handle) == nullptr || !is_count(count)) return cudaErrorInvalidValue;
  const auto found = graph->references.find(handle);
  if (found == graph->references.end() || found->second < count) {  // on a GPU this succeeds and crashes later
    return call.misuse(cudaErrorInvalidValue, "more references to the user object than the graph holds");
  }
  found->second -= count;
  if (found->second == 0) graph->references.erase(found);
  release(call.state, handle, count);
  return cudaSuccess;
}

}  // namespace

void retain(State& state, Graph& graph, cudaUserObject_t object, std::uint64_t count) {
  graph.references[object] += count;
  state.user_objects.find(object)->references += count;
}

void release_all(State& state, Graph& graph) {
  const auto references = std::exchange(graph.references, {});
  for (const auto& [object, count] : references) release(state, object, count);
}

void copy_references(State& state, const Graph& from, Graph& to) {
  for (const auto& [object, count] : from.references) retain(state, to, object, count);
}

Holding::Holding(State& state, const Graph& graph) : state_(state) {
  for (const auto& [object, count] : graph.references) {
    objects_.push_back(object);
    ++state.user_objects.find(object)->references;
  }
}

Holding::~Holding() {
  for (cudaUserObject_t object : objects_) release(state_, object, 1);
  // A loop, because there may be more updates than the stack has room for nested destructors.
  for (std::shared_ptr<Holding> next = std::move(later); next != nullptr && next.use_count() == 1;) {
    std::shared_ptr<Holding> behind = std::move(next->later);
    next = std::move(behind);
  }
}

void hold(State& state, Program& program, const Graph& graph) {
  if (program.holding != nullptr && program.holding->is_empty() && graph.references.empty()) return;
  auto holding = std::make_shared<Holding>(state, graph);
  if (program.holding != nullptr) program.holding->later = holding;
  program.holding = std::move(holding);
}

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaUserObjectCreate(cudaUserObject_t* object_out, void* ptr, cudaHostFn_t destroy,
                                           unsigned int initialRefcount, unsigned int flags) {
  return enter(Function::kUserObjectCreate,
               [&](const Call& call) { return create(call, object_out, ptr, destroy, initialRefcount, flags); });
}

cudaError_t CUDARTAPI cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
  return enter(Function::kUserObjectRetain, [&](const Call& call) { return retain(call, object, count); });
}

cudaError_t CUDARTAPI cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  return enter(Function::kUserObjectRelease, [&](const Call& call) { return release(call, object, count); });
}

cudaError_t CUDARTAPI cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned int count,
                                                unsigned int flags) {
  return enter({Function::kGraphRetainUserObject, graph},
               [&](const Call& call) { return retain_by_graph(call, graph, object, count, flags); });
}

cudaError_t CUDARTAPI cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned int count) {
  return enter({Function::kGraphReleaseUserObject, graph},
               [&](const Call& call) { return release_by_graph(call, graph, object, count); });
}

}  // extern "C"
