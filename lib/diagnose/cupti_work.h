// Which calls, as CUPTI numbers them, enqueue work, and on which stream.

#ifndef GRAPHCACHE_LIB_DIAGNOSE_CUPTI_WORK_H_
#define GRAPHCACHE_LIB_DIAGNOSE_CUPTI_WORK_H_

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti.h>  // After these two, whose types its lists of parameters use.

namespace graphcache::diagnose {

// The stream of a call that enqueues work, with the legacy and the per-thread stream by their names; false if the call
// enqueues none. Of the parameters of cudaMemcpy and the like no stream is known but that they use the default one.
bool stream_of_work(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* params, cudaStream_t* stream);

}  // namespace graphcache::diagnose

#endif  // GRAPHCACHE_LIB_DIAGNOSE_CUPTI_WORK_H_
