// Launches of kernels and host functions.

#include "launch.h"

#include <algorithm>
#include <utility>

#include "attributes.h"
#include "capture.h"
#include "diagnose.h"
#include "function_calls.h"
#include "graph.h"
#include "params.h"
#include "schedule.h"
#include "work.h"

namespace graphcache::hostrt {
namespace {

// The edges of a kernel captured with cudaLaunchAttributeProgrammaticStreamSerialization allow it to start before the
// preceding kernels have ended.
void make_programmatic(std::vector<Edge>& edges) {
  for (Edge& edge : edges) {
    if (!std::holds_alternative<KernelParams>(edge.from->params) || !is_plain(edge.data)) continue;
    edge.data.from_port = cudaGraphKernelNodePortProgrammatic;
    edge.data.type = cudaGraphDependencyTypeProgrammatic;
  }
}

}  // namespace

cudaError_t launch(const Call& call, const LaunchRequest& request) {
  // The runtime looks up the function before the stream, so neither error breaks a capture.
  KernelParams params;
  if (const cudaError_t error = resolve_kernel(call, request.function, &params.kernel); error != cudaSuccess) {
    return error;
  }
#if CUDART_VERSION < 13000
  // So is the shape, by a runtime before 13.0 (docs/semantics.md, "Older toolkits").
  if (check_shape(request.grid, request.block, 0, 0) != cudaSuccess) return cudaErrorInvalidConfiguration;
#endif
  Stream* stream = find_stream(call, request.stream);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;  // also for a stream of another device
  Capture* capture = nullptr;
  if (const cudaError_t error = admit_work(call.state, *stream, &capture); error != cudaSuccess) return error;

  // The driver checks the shape later, when an error already breaks the capture.
  params.device = stream->device;
  cudaError_t error = check_shape(request.grid, request.block, request.shared_bytes,
                                  max_shared_bytes(call.state, *params.kernel, params.device));
  if (error != cudaSuccess) {
    if (capture != nullptr) invalidate(call.state, *capture);
    const bool is_cooperative = std::any_of(
        request.attributes, request.attributes + request.attribute_count, [](const cudaLaunchAttribute& attribute) {
          return attribute.id == cudaLaunchAttributeCooperative && attribute.val.cooperative != 0;
        });
    // Then only the shared memory is too large.
    const bool has_shape = check_shape(request.grid, request.block, 0, 0) == cudaSuccess;
    return capture == nullptr && is_cooperative && has_shape ? cudaErrorCooperativeLaunchTooLarge : error;
  }
  if (request.arguments == nullptr && request.extra == nullptr && !params.kernel->parameters.empty()) {
    return call.misuse(cudaErrorInvalidValue, params.kernel->name + " launched without its arguments");
  }
  error = read_arguments(call, *params.kernel, request.arguments, request.extra, &params.arguments);
  if (error != cudaSuccess) return error;
  params.grid = request.grid;
  params.block = request.block;
  params.shared_bytes = static_cast<unsigned>(request.shared_bytes);

  bool programmatic = false;
  for (unsigned i = 0; i < request.attribute_count; ++i) {
    const cudaLaunchAttribute& attribute = request.attributes[i];
    if (attribute.id == cudaLaunchAttributeDeviceUpdatableKernelNode && capture == nullptr) {
      return cudaErrorNotSupported;  // "passing it to a launch in a non-capturing stream will result in an error"
    }
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
    } else if (error = set_attribute(params, attribute.id, attribute.val); error != cudaSuccess) {
      return error;
    }
  }
  note_launch(*params.kernel);
  if (capture == nullptr) {
    note_stray(call, *stream, params.kernel);
    enqueue(call.state, *stream, NodeParams(std::move(params)));
    return cudaSuccess;
  }
  if (!has_attribute(params, cudaLaunchAttributePriority)) {
    set_priority(params, stream->priority);  // only captured nodes inherit it (facts 9)
  }
  if (programmatic) make_programmatic(stream->next);
  const Node& node = add_captured_node(call.state, *stream, std::move(params));
  for (unsigned i = 0; i < request.attribute_count; ++i) {
    if (request.attributes[i].id == cudaLaunchAttributeDeviceUpdatableKernelNode) {
      hand_out_device_node(node, &request.attributes[i].val);
    }
  }
  return cudaSuccess;
}

}  // namespace graphcache::hostrt

using namespace graphcache::hostrt;

extern "C" {

cudaError_t CUDARTAPI cudaLaunchKernel(const void* func, dim3 gridDim, dim3 blockDim, void** args, size_t sharedMem,
                                       cudaStream_t stream) {
  return enter(Function::kLaunchKernel, [&](const Call& call) {
    return launch(call, {func, gridDim, blockDim, args, nullptr, sharedMem, stream});
  });
}

cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* func, void** args) {
  return enter(Function::kLaunchKernelExC, [&](const Call& call) {
    if (config == nullptr || (config->attrs == nullptr && config->numAttrs != 0)) {
      return call.misuse(cudaErrorInvalidValue, "no launch configuration, or attributes missing");
    }
    return launch(call, {func, config->gridDim, config->blockDim, args, nullptr, config->dynamicSmemBytes,
                         config->stream, config->attrs, config->numAttrs});
  });
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  return enter(Function::kLaunchHostFunc, [&](const Call& call) {
    if (fn == nullptr) return cudaErrorInvalidValue;
    Stream* target = find_stream(call, stream);
    if (target == nullptr) return cudaErrorInvalidResourceHandle;
    return submit(call, *target, HostParams{fn, userData});
  });
}

}  // extern "C"
