// Reading and writing the parameter structures of the graph calls.

#ifndef GRAPHCACHE_LIB_HOSTRT_PARAMS_H_
#define GRAPHCACHE_LIB_HOSTRT_PARAMS_H_

#include "state.h"

namespace graphcache::hostrt {

// Checks and then takes all parameters except the attributes, which these structures do not contain. On an error,
// `params` is unchanged.
cudaError_t read_kernel(const Call& call, const cudaKernelNodeParams* from, KernelParams* params);

// The arguments of a launch or node: `values`, or one buffer in `extra` (CU_LAUNCH_PARAM_BUFFER_POINTER), not both.
cudaError_t read_arguments(const Call& call, const Kernel& kernel, void* const* values, void* const* extra,
                           Arguments* arguments);

// Takes a copy without checking its pitches. cudaErrorNotSupported for arrays.
cudaError_t take_copy(const cudaMemcpy3DParms* from, CopyParams* params);
// What the runtime checks of a node's copy before all else (check_rows()).
cudaError_t check_rows(const cudaMemcpy3DParms* box);
cudaError_t read_copy(const cudaMemcpy3DParms* from, CopyParams* params);
cudaError_t read_fill(const cudaMemsetParams* from, FillParams* params);
cudaError_t read_host(const cudaHostNodeParams* from, HostParams* params);

// Whether an instantiation makes it a copy of the device's (docs/semantics.md, "Copies that move to other memory").
bool is_of_device(const State& state, const CopyParams& copy);
// CopyParams::devices, by the memory that there is now (docs/semantics.md).
std::optional<std::pair<int, int>> devices_of(const State& state, const CopyParams& copy);

// Writes the parameters as the query calls return them.
void write_kernel(const KernelParams& params, cudaKernelNodeParams* to);
void write_copy(const CopyParams& params, cudaMemcpy3DParms* to);

// What a copy or fill of an executable graph may be changed to. Device memory must stay on its device. The memory kinds
// of a copy must stay the same, and cudaMemcpyDefault counts as a kind of its own. Of a copy in two or three dimensions
// nothing may change. A one-dimensional fill may be
// resized; of a two-dimensional fill only address and value may change (facts 23).
bool may_become(const CopyParams& old, const CopyParams& wanted);
bool may_become(const FillParams& old, const FillParams& wanted);

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_PARAMS_H_
