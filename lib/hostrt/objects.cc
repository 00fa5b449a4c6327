#include "objects.h"

#include <type_traits>

#include "state.h"
#include "work.h"

namespace graphcache::hostrt {

cudaGraphNodeType node_type(const NodeParams& params) {
  return std::visit(
      [](const auto& alternative) {
        using T = std::decay_t<decltype(alternative)>;
        if constexpr (std::is_same_v<T, KernelParams>) return cudaGraphNodeTypeKernel;
        if constexpr (std::is_same_v<T, CopyParams>) return cudaGraphNodeTypeMemcpy;
        if constexpr (std::is_same_v<T, FillParams>) return cudaGraphNodeTypeMemset;
        if constexpr (std::is_same_v<T, HostParams>) return cudaGraphNodeTypeHost;
        if constexpr (std::is_same_v<T, ChildParams>) return cudaGraphNodeTypeGraph;
        if constexpr (std::is_same_v<T, ConditionalParams>) return cudaGraphNodeTypeConditional;
        if constexpr (std::is_same_v<T, EventRecordParams>) return cudaGraphNodeTypeEventRecord;
        if constexpr (std::is_same_v<T, EventWaitParams>) return cudaGraphNodeTypeWaitEvent;
        if constexpr (std::is_same_v<T, AllocationParams>) return cudaGraphNodeTypeMemAlloc;
        if constexpr (std::is_same_v<T, FreeParams>) return cudaGraphNodeTypeMemFree;
        return cudaGraphNodeTypeEmpty;
      },
      params);
}

void set_place(CopyParams& copy, const Place& place) {
  copy.from = place;
  copy.destination_id = allocation_id(state(), copy.destination);
  copy.source_id = allocation_id(state(), copy.source);
  const std::optional<int> to = device_of_memory(state(), copy.destination);
  const std::optional<int> from = device_of_memory(state(), copy.source);
  copy.is_far = to && from && *to != *from;
}

void set_place(NodeParams& params, const Place& place) {
  if (auto* copy = std::get_if<CopyParams>(&params)) set_place(*copy, place);
  if (auto* fill = std::get_if<FillParams>(&params)) fill->from = place;
}

bool is_plain(const cudaGraphEdgeData& data) { return data.from_port == 0 && data.to_port == 0 && data.type == 0; }

bool operator==(const Edge& a, const Edge& b) {
  return a.from == b.from && a.data.from_port == b.data.from_port && a.data.to_port == b.data.to_port &&
         a.data.type == b.data.type;
}

}  // namespace graphcache::hostrt
