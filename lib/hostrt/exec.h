// What the calls on executable graphs share. All functions expect the state to be locked.

#ifndef GRAPHCACHE_LIB_HOSTRT_EXEC_H_
#define GRAPHCACHE_LIB_HOSTRT_EXEC_H_

#include "state.h"

namespace graphcache::hostrt {

// The executable's node that a template's node stands for, or null: only nodes of the graph that the executable was
// instantiated from have one, and only while that graph lives (facts 12).
const ProgramNode* find_program_node(const Call& call, const Executable& executable, cudaGraphNode_t node);

// The program, for changes: a copy takes its place if a launch still holds on to it (facts 14).
Program& writable_program(Executable& executable);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_EXEC_H_
