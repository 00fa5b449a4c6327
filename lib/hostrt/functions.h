// The runtime functions that hostrt defines. The enumeration, the names in call counts and the names accepted by
// fail_call() all come from this list. A CUDA 12 function with a _v2 or _v3 suffix counts under its CUDA 13 name, and a
// driver function under the corresponding runtime name. Device code updates nodes by the last two functions: they can
// be made to fail, and are not counted.

#ifndef GRAPHCACHE_LIB_HOSTRT_FUNCTIONS_H_
#define GRAPHCACHE_LIB_HOSTRT_FUNCTIONS_H_

#include <cstddef>
#include <cstdint>

// Without the prefix "cuda", because some of the full names are macros in the headers of CUDA 12.
// clang-format off
#define GRAPHCACHE_HOSTRT_FUNCTIONS(X)                                                                              \
  X(GetDevice) X(SetDevice) X(GetDeviceCount) X(GetDeviceProperties) X(DeviceGetAttribute)                          \
  X(DeviceGetStreamPriorityRange) X(DriverGetVersion) X(RuntimeGetVersion) X(DeviceSynchronize)                     \
  X(DeviceGraphMemTrim) X(DeviceGetGraphMemAttribute) X(DeviceSetGraphMemAttribute) X(DeviceReset) X(CtxGetId)        \
  X(DeviceCanAccessPeer) X(DeviceEnablePeerAccess) X(DeviceDisablePeerAccess) X(MemcpyPeer) X(MemcpyPeerAsync)       \
  X(CtxCreate) X(CtxDestroy) X(CtxSetCurrent)                                                                       \
  X(MemGetInfo) X(Malloc) X(MallocManaged) X(Free) X(MallocHost) X(HostAlloc) X(FreeHost) X(HostRegister)           \
  X(HostUnregister) X(PointerGetAttributes)                                                                         \
  X(MallocPitch) X(Malloc3D) X(Memcpy2D) X(Memcpy3D) X(Memcpy2DAsync) X(Memcpy3DAsync) X(Memset2D) X(Memset2DAsync) \
  X(Memcpy) X(Memset) X(MemcpyAsync) X(MemsetAsync) X(MallocAsync) X(FreeAsync)                                     \
  X(GetLastError) X(PeekAtLastError)                                                                                \
  X(StreamCreate) X(StreamCreateWithFlags) X(StreamCreateWithPriority) X(StreamDestroy) X(StreamSynchronize)        \
  X(StreamQuery) X(StreamGetPriority) X(StreamGetFlags) X(StreamGetDevice) X(StreamGetId) X(StreamWaitEvent)        \
  X(StreamIsCapturing) X(StreamBeginCapture) X(StreamBeginCaptureToGraph) X(StreamEndCapture) X(StreamGetCaptureInfo)                            \
  X(StreamUpdateCaptureDependencies) X(ThreadExchangeStreamCaptureMode)                                             \
  X(EventCreate) X(EventCreateWithFlags) X(EventRecord) X(EventRecordWithFlags) X(EventQuery) X(EventSynchronize)   \
  X(EventElapsedTime) X(EventDestroy)                                                                               \
  X(GetFuncBySymbol) X(FuncGetAttributes) X(FuncSetAttribute) X(FuncGetName) X(GetDriverEntryPoint) X(FuncGetParamInfo) X(KernelGetFunction)                                \
  X(LibraryLoadData) X(LibraryUnload) X(LibraryGetKernel)                                                           \
  X(LaunchKernel) X(LaunchKernelExC) X(LaunchHostFunc)                                                              \
  X(GraphCreate) X(GraphDestroy) X(GraphClone) X(GraphAddKernelNode) X(GraphAddMemcpyNode) X(GraphAddMemcpyNode1D) X(GraphAddMemsetNode)  \
  X(GraphAddEmptyNode) X(GraphAddHostNode) X(GraphAddDependencies) X(GraphRemoveDependencies) X(GraphDestroyNode)   \
  X(GraphAddNode) X(GraphConditionalHandleCreate) X(GraphAddChildGraphNode) X(GraphChildGraphNodeGetGraph) X(GraphExecChildGraphNodeSetParams)                      \
  X(GraphAddEventRecordNode) X(GraphEventRecordNodeGetEvent) X(GraphEventRecordNodeSetEvent)                        \
  X(GraphExecEventRecordNodeSetEvent) X(GraphAddEventWaitNode) X(GraphEventWaitNodeGetEvent)                        \
  X(GraphEventWaitNodeSetEvent) X(GraphExecEventWaitNodeSetEvent)                                                   \
  X(GraphAddMemAllocNode) X(GraphMemAllocNodeGetParams) X(GraphAddMemFreeNode) X(GraphMemFreeNodeGetParams)         \
  X(UserObjectCreate) X(UserObjectRetain) X(UserObjectRelease) X(GraphRetainUserObject) X(GraphReleaseUserObject)   \
  X(GraphGetNodes) X(GraphGetEdges) X(GraphGetRootNodes) X(GraphNodeGetType) X(GraphNodeGetDependencies)            \
  X(GraphNodeGetDependentNodes) X(GraphNodeFindInClone)                                                             \
  X(GraphKernelNodeGetParams) X(GraphKernelNodeSetParams) X(GraphKernelNodeGetAttribute)                            \
  X(GraphKernelNodeSetAttribute) X(GraphKernelNodeCopyAttributes) X(GraphMemcpyNodeGetParams)                       \
  X(GraphMemcpyNodeSetParams) X(GraphMemcpyNodeSetParams1D) X(GraphMemsetNodeGetParams) X(GraphMemsetNodeSetParams) X(GraphHostNodeGetParams)   \
  X(GraphHostNodeSetParams) X(GraphExecHostNodeSetParams) X(GraphExecGetFlags)                                      \
  X(GraphInstantiate) X(GraphInstantiateWithFlags) X(GraphExecDestroy) X(GraphLaunch) X(GraphUpload)                \
  X(GraphExecUpdate) X(GraphExecKernelNodeSetParams) X(GraphExecMemcpyNodeSetParams)                                \
  X(GraphExecMemcpyNodeSetParams1D) X(GraphExecMemsetNodeSetParams) X(GraphNodeSetEnabled) X(GraphNodeGetEnabled)      \
  X(GraphKernelNodeSetParam) X(GraphKernelNodeSetGridDim)
// clang-format on

namespace graphcache::hostrt {

enum class Function : std::uint16_t {
#define GRAPHCACHE_HOSTRT_ENUMERATOR(name) k##name,
  GRAPHCACHE_HOSTRT_FUNCTIONS(GRAPHCACHE_HOSTRT_ENUMERATOR)
#undef GRAPHCACHE_HOSTRT_ENUMERATOR
};

inline constexpr const char* kFunctionNames[] = {
#define GRAPHCACHE_HOSTRT_NAME(name) "cuda" #name,
    GRAPHCACHE_HOSTRT_FUNCTIONS(GRAPHCACHE_HOSTRT_NAME)
#undef GRAPHCACHE_HOSTRT_NAME
};

inline constexpr std::size_t kFunctionCount = sizeof kFunctionNames / sizeof kFunctionNames[0];

inline const char* name_of(Function function) { return kFunctionNames[static_cast<std::size_t>(function)]; }

}  // namespace graphcache::hostrt

#endif  // GRAPHCACHE_LIB_HOSTRT_FUNCTIONS_H_
