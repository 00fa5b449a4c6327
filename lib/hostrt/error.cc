// The last-error slot, and the errors' names.

#include "state.h"

// Every error of CUDA 12.4. newer_error_name() has the newer ones by number, because older headers lack their names.
// clang-format off
#define GRAPHCACHE_HOSTRT_ERRORS(X)                                                                                   \
  X(cudaSuccess) X(cudaErrorInvalidValue) X(cudaErrorMemoryAllocation) X(cudaErrorInitializationError)                \
  X(cudaErrorCudartUnloading) X(cudaErrorProfilerDisabled) X(cudaErrorProfilerNotInitialized)                         \
  X(cudaErrorProfilerAlreadyStarted) X(cudaErrorProfilerAlreadyStopped) X(cudaErrorInvalidConfiguration)              \
  X(cudaErrorInvalidPitchValue) X(cudaErrorInvalidSymbol) X(cudaErrorInvalidHostPointer)                              \
  X(cudaErrorInvalidDevicePointer) X(cudaErrorInvalidTexture) X(cudaErrorInvalidTextureBinding)                       \
  X(cudaErrorInvalidChannelDescriptor) X(cudaErrorInvalidMemcpyDirection) X(cudaErrorAddressOfConstant)               \
  X(cudaErrorTextureFetchFailed) X(cudaErrorTextureNotBound) X(cudaErrorSynchronizationError)                         \
  X(cudaErrorInvalidFilterSetting) X(cudaErrorInvalidNormSetting) X(cudaErrorMixedDeviceExecution)                    \
  X(cudaErrorNotYetImplemented) X(cudaErrorMemoryValueTooLarge) X(cudaErrorStubLibrary)                               \
  X(cudaErrorInsufficientDriver) X(cudaErrorCallRequiresNewerDriver) X(cudaErrorInvalidSurface)                       \
  X(cudaErrorDuplicateVariableName) X(cudaErrorDuplicateTextureName) X(cudaErrorDuplicateSurfaceName)                 \
  X(cudaErrorDevicesUnavailable) X(cudaErrorIncompatibleDriverContext) X(cudaErrorMissingConfiguration)               \
  X(cudaErrorPriorLaunchFailure) X(cudaErrorLaunchMaxDepthExceeded) X(cudaErrorLaunchFileScopedTex)                   \
  X(cudaErrorLaunchFileScopedSurf) X(cudaErrorSyncDepthExceeded) X(cudaErrorLaunchPendingCountExceeded)               \
  X(cudaErrorInvalidDeviceFunction) X(cudaErrorNoDevice) X(cudaErrorInvalidDevice) X(cudaErrorDeviceNotLicensed)      \
  X(cudaErrorSoftwareValidityNotEstablished) X(cudaErrorStartupFailure) X(cudaErrorInvalidKernelImage)                \
  X(cudaErrorDeviceUninitialized) X(cudaErrorMapBufferObjectFailed) X(cudaErrorUnmapBufferObjectFailed)               \
  X(cudaErrorArrayIsMapped) X(cudaErrorAlreadyMapped) X(cudaErrorNoKernelImageForDevice)                              \
  X(cudaErrorAlreadyAcquired) X(cudaErrorNotMapped) X(cudaErrorNotMappedAsArray) X(cudaErrorNotMappedAsPointer)       \
  X(cudaErrorECCUncorrectable) X(cudaErrorUnsupportedLimit) X(cudaErrorDeviceAlreadyInUse)                            \
  X(cudaErrorPeerAccessUnsupported) X(cudaErrorInvalidPtx) X(cudaErrorInvalidGraphicsContext)                         \
  X(cudaErrorNvlinkUncorrectable) X(cudaErrorJitCompilerNotFound) X(cudaErrorUnsupportedPtxVersion)                   \
  X(cudaErrorJitCompilationDisabled) X(cudaErrorUnsupportedExecAffinity) X(cudaErrorUnsupportedDevSideSync)           \
  X(cudaErrorInvalidSource) X(cudaErrorFileNotFound) X(cudaErrorSharedObjectSymbolNotFound)                           \
  X(cudaErrorSharedObjectInitFailed) X(cudaErrorOperatingSystem) X(cudaErrorInvalidResourceHandle)                    \
  X(cudaErrorIllegalState) X(cudaErrorLossyQuery) X(cudaErrorSymbolNotFound) X(cudaErrorNotReady)                     \
  X(cudaErrorIllegalAddress) X(cudaErrorLaunchOutOfResources) X(cudaErrorLaunchTimeout)                               \
  X(cudaErrorLaunchIncompatibleTexturing) X(cudaErrorPeerAccessAlreadyEnabled) X(cudaErrorPeerAccessNotEnabled)       \
  X(cudaErrorSetOnActiveProcess) X(cudaErrorContextIsDestroyed) X(cudaErrorAssert) X(cudaErrorTooManyPeers)           \
  X(cudaErrorHostMemoryAlreadyRegistered) X(cudaErrorHostMemoryNotRegistered) X(cudaErrorHardwareStackError)          \
  X(cudaErrorIllegalInstruction) X(cudaErrorMisalignedAddress) X(cudaErrorInvalidAddressSpace)                        \
  X(cudaErrorInvalidPc) X(cudaErrorLaunchFailure) X(cudaErrorCooperativeLaunchTooLarge) X(cudaErrorNotPermitted)      \
  X(cudaErrorNotSupported) X(cudaErrorSystemNotReady) X(cudaErrorSystemDriverMismatch)                                \
  X(cudaErrorCompatNotSupportedOnDevice) X(cudaErrorMpsConnectionFailed) X(cudaErrorMpsRpcFailure)                    \
  X(cudaErrorMpsServerNotReady) X(cudaErrorMpsMaxClientsReached) X(cudaErrorMpsMaxConnectionsReached)                 \
  X(cudaErrorMpsClientTerminated) X(cudaErrorCdpNotSupported) X(cudaErrorCdpVersionMismatch)                          \
  X(cudaErrorStreamCaptureUnsupported) X(cudaErrorStreamCaptureInvalidated) X(cudaErrorStreamCaptureMerge)            \
  X(cudaErrorStreamCaptureUnmatched) X(cudaErrorStreamCaptureUnjoined) X(cudaErrorStreamCaptureIsolation)             \
  X(cudaErrorStreamCaptureImplicit) X(cudaErrorCapturedEvent) X(cudaErrorStreamCaptureWrongThread)                    \
  X(cudaErrorTimeout) X(cudaErrorGraphExecUpdateFailure) X(cudaErrorExternalDevice)                                   \
  X(cudaErrorInvalidClusterSize) X(cudaErrorUnknown)
// clang-format on

namespace graphcache::hostrt {
namespace {

constexpr const char* kUnrecognized = "unrecognized error code";

const char* newer_error_name(int error) {
  switch (error) {
    case 226:
      return "cudaErrorContained";
    case 721:
      return "cudaErrorTensorMemoryLeak";
    case 913:
      return "cudaErrorFunctionNotLoaded";
    case 914:
      return "cudaErrorInvalidResourceType";
    case 915:
      return "cudaErrorInvalidResourceConfiguration";
    default:
      return kUnrecognized;
  }
}

const char* error_name(cudaError_t error) {
  switch (error) {
#define GRAPHCACHE_HOSTRT_ERROR_NAME(name) \
  case name:                               \
    return #name;
    GRAPHCACHE_HOSTRT_ERRORS(GRAPHCACHE_HOSTRT_ERROR_NAME)
#undef GRAPHCACHE_HOSTRT_ERROR_NAME
    default:
      return newer_error_name(static_cast<int>(error));
  }
}

// Descriptions of the errors that hostrt itself returns. For all other errors the description is the name.
const char* error_description(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "an argument is invalid";
    case cudaErrorMemoryAllocation:
      return "not enough memory";
    case cudaErrorInvalidMemcpyDirection:
      return "unknown kind of copy";
    case cudaErrorInvalidDeviceFunction:
      return "not a kernel";
    case cudaErrorInvalidDevice:
      return "no such device";
    case cudaErrorInvalidResourceHandle:
      return "the handle is not valid";
    case cudaErrorIllegalState:
      return "not possible in the present state";
    case cudaErrorNotReady:
      return "not finished yet";
    case cudaErrorLaunchFailure:
      return "a kernel or a host function failed";
    case cudaErrorNotPermitted:
      return "not permitted here";
    case cudaErrorNotSupported:
      return "not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "not permitted while a stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "an earlier error has invalidated the capture";
    case cudaErrorStreamCaptureMerge:
      return "two captures cannot be merged";
    case cudaErrorStreamCaptureUnmatched:
      return "the capture was begun on another stream";
    case cudaErrorStreamCaptureUnjoined:
      return "a forked stream was not joined to the stream that began the capture";
    case cudaErrorStreamCaptureIsolation:
      return "a capture cannot depend on work outside of it";
    case cudaErrorStreamCaptureImplicit:
      return "the legacy stream would depend on a capture";
    case cudaErrorCapturedEvent:
      return "the event was last recorded in a capture";
    case cudaErrorStreamCaptureWrongThread:
      return "the capture was begun by another thread";
    case cudaErrorGraphExecUpdateFailure:
      return "the executable graph cannot take this graph's parameters";
    case cudaErrorLossyQuery:
      return "the query would drop edge data";
    default:
      return error_name(error);
  }
}

}  // namespace
}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

// enter() latches the error that it returns, so the slot is emptied after it.
cudaError_t CUDARTAPI cudaGetLastError(void) {
  const cudaError_t error = enter(Function::kGetLastError, [](const Call& call) { return call.thread.last_error; });
  this_thread().last_error = cudaSuccess;
  return error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError(void) {
  return enter(Function::kPeekAtLastError, [](const Call& call) { return call.thread.last_error; });
}

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) { return error_name(error); }

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) { return error_description(error); }

}  // extern "C"
