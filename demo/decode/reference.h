// The host reference and its checks: the same transformer in double precision, without intermediate rounding and
// without a cache, written independently.
#pragma once

#include <vector>

#include "network.h"
#include "support.h"

namespace demo {

// The logits of every position of a sequence, one position after another.
std::vector<double> reference_logits(const Network& network, const std::vector<int>& tokens);

// Serves some requests with a network of this shape, but two layers, on the device and on the host.
std::vector<Check> check_steps(Shape shape);

}  // namespace demo
