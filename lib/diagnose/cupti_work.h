// Which of the calls that CUPTI reports enqueue work, and on which stream.

#ifndef GRAPHCACHE_LIB_DIAGNOSE_CUPTI_WORK_H_
#define GRAPHCACHE_LIB_DIAGNOSE_CUPTI_WORK_H_

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti.h>  // After these two headers, whose types CUPTI's parameter structures use.

namespace graphcache::diagnose {

// The stream of a call that enqueues work, where the legacy and the per-thread stream have their special handles.
// Returns false if the call enqueues nothing. Calls such as cudaMemcpy have no stream parameter and use the default
// stream.
bool stream_of_work(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* params, cudaStream_t* stream);

}  // namespace graphcache::diagnose

#endif  // GRAPHCACHE_LIB_DIAGNOSE_CUPTI_WORK_H_
