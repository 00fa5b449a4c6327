// Reading and writing the parameter structures of the graph calls.

#ifndef GRAPHCACHE_LIB_HOSTRT_PARAMS_H_
#define GRAPHCACHE_LIB_HOSTRT_PARAMS_H_

#include "state.h"

namespace graphcache::hostrt {

// Checks, then takes over everything but the attributes, which these structures do not carry. On an error, `params` is
// as before.
cudaError_t read_kernel(const Call& call, const cudaKernelNodeParams* from, KernelParams* params);
cudaError_t read_copy(const cudaMemcpy3DParms* from, CopyParams* params);  // cudaErrorNotSupported for more dimensions
cudaError_t read_fill(const cudaMemsetParams* from, FillParams* params);
cudaError_t read_host(const cudaHostNodeParams* from, HostParams* params);

// Notes which memory a copy of an executable is made with.
void note_memory(const State& state, CopyParams& params);

// Writes the parameters as the query calls return them.
void write_kernel(const KernelParams& params, cudaKernelNodeParams* to);

// What a copy or fill of an executable graph may become. Device memory may not become another device's. The kinds of
// memory of a copy may not change, and cudaMemcpyDefault counts as a kind of its own; a fill of one dimension may be
// resized, of a fill of two only address and value may change (facts 23).
bool may_become(const CopyParams& old, const CopyParams& wanted);
bool may_become(const FillParams& old, const FillParams& wanted);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_PARAMS_H_
