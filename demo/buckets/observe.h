// One more pass of the cache, observed, so that the measured ways run without observation.
#pragma once

#include <string>
#include <vector>

#include "loop.h"

namespace demo {

// Where the observed pass writes its files. It runs if one of these is not empty.
struct Observed {
  std::string report;  // an HTML page
  std::string trace;   // a trace for chrome://tracing and Perfetto
  std::string dot;     // a folder for pictures of two buckets' graphs and of their difference

  bool is_wanted() const { return !report.empty() || !trace.empty() || !dot.empty(); }
  // Ends the program with status 2 and a message if a file cannot be written, or not by this build.
  void check() const;
};

// Runs the requests and writes the files. Returns false, with a message, if a result differs from the reference or a
// file cannot be written.
bool observe(const Loop& loop, const std::vector<Request>& requests, int executables, const Observed& observed);

}  // namespace demo
