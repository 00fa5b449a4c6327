#include "graph/graph_info.h"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/errors.h"
#include "graph/describe.h"
#include "graph/fields.h"
#include "graph/node_names.h"

namespace graphcache {
namespace {

GraphNode node_of(const Reading& reading, const Slots& slots, std::uint32_t index) {
  const NodeContent& content = reading.content.nodes[index];
  const std::vector<Field> fields = fields_of(reading, slots, index);
  GraphNode node;
  node.type = content.type;
  node.name = kind_of(content);
  node.dependencies = reading.parts[index].dependencies;
  if (content.type == cudaGraphNodeTypeKernel) {
    const CUDA_KERNEL_NODE_PARAMS& kernel = content.kernel;
    node.grid = dim3(kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ);
    node.block = dim3(kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ);
    node.shared_bytes = kernel.sharedMemBytes;
    node.grid_is_slot = fields[0].slot != nullptr;
    node.block_is_slot = fields[1].slot != nullptr;
    node.shared_is_slot = fields[2].slot != nullptr;
    for (const Reading::Attribute& attribute : reading.parts[index].attributes) {
      node.attributes.push_back({attribute.known->name, attribute.known->text(attribute.value)});
    }
  }
  for (const Field& field : fields) {
    if (field.shown == nullptr) continue;
    node.arguments.push_back({*field.shown == '\0' ? field.name : field.shown,
                              {field.value.begin(), field.value.end()},
                              field.slot != nullptr});
  }
  return node;
}

}  // namespace

bool read_graph_info(const Template& from, const Content& content, GraphInfo* info) {
  const LastErrorGuard last_error;
  const std::optional<Reading> reading = read_all(from);
  if (!reading) return false;
  for (std::uint32_t i = 0; i < from.nodes.size(); ++i) {
    info->nodes.push_back(node_of(*reading, content.slots, i));
  }
  return true;
}

}  // namespace graphcache
