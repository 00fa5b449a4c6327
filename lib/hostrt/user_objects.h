// User objects: reference counts of the caller, of graphs, and of executables with their launches (facts 28). All
// functions expect the state to be locked.
//
// An object's destructor runs on the thread that released the last reference, before that call returns. On a real GPU
// it runs later, on a thread of the driver.

#ifndef GRAPHCACHE_LIB_HOSTRT_USER_OBJECTS_H_
#define GRAPHCACHE_LIB_HOSTRT_USER_OBJECTS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace graphcache::hostrt {

struct Graph;
struct Program;
struct State;

struct UserObject {
  cudaHostFn_t destroy = nullptr;
  void* data = nullptr;
  std::uint64_t references = 0;  // the sum over all owners
  std::uint64_t of_caller = 0;
};

void retain(State& state, Graph& graph, cudaUserObject_t object, std::uint64_t count);
void release_all(State& state, Graph& graph);
void copy_references(State& state, const Graph& from, Graph& to);

// Holds one reference to each user object of a graph during its lifetime. A program and its launches in flight share
// one.
class Holding {
 public:
  Holding(State& state, const Graph& graph);
  ~Holding();
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

  bool is_empty() const { return objects_.empty(); }

  // What the program holds after an update. A launch that was already in flight keeps this as well.
  std::shared_ptr<Holding> later;

 private:
  State& state_;
  std::vector<cudaUserObject_t> objects_;
};

// Makes the program hold the user objects of the graph.
void hold(State& state, Program& program, const Graph& graph);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_USER_OBJECTS_H_
