// Measures the ways beside each other; the top of main.cc says what is timed.
#pragma once

#include <vector>

#include "times.h"
#include "ways.h"
#include "work.h"

namespace demo {

// By kind, the medians of `iterations` repetitions, in which the ways take turns. `equal` becomes false, with a
// message, if a way left other results than the host reference or its graph is not that of the topology.
std::vector<Figures> measure(const Work& work, const std::vector<Kind>& kinds, int iterations, bool* equal);

}  // namespace demo
