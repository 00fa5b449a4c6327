// Measures the ways. main.cc describes what is timed.
#pragma once

#include <vector>

#include "times.h"
#include "ways.h"
#include "work.h"

namespace demo {

// Medians of `iterations` repetitions, by kind; the ways take turns. Sets `equal` to false, with a message, if a way
// left other results than the host reference, or if its graph has another topology.
std::vector<Figures> measure(const Work& work, const std::vector<Kind>& kinds, int iterations, bool* equal);

}  // namespace demo
