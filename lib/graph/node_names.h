// Names of nodes in texts for people.
#pragma once

#include <string>

#include "graph/template.h"

namespace graphcache {

// Stands for a kernel whose name the driver does not report.
inline constexpr char kUnknownName[] = "of unknown name";
std::string name_of(const CUDA_KERNEL_NODE_PARAMS& kernel);

// "kernel add(float*)", "copy", "host function", ...
std::string kind_of(const NodeContent& node);

}  // namespace graphcache
