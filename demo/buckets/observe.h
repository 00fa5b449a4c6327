// One more pass of the cache, watched, so that the ways that are measured stay unwatched.
#pragma once

#include <string>
#include <vector>

#include "loop.h"

namespace demo {

// Where the pass writes what it has seen. It is made if one of these is not empty.
struct Observed {
  std::string report;  // A page of HTML.
  std::string trace;   // For chrome://tracing and Perfetto.
  std::string dot;     // A folder for pictures of two buckets' graphs and of their difference.

  bool is_wanted() const { return !report.empty() || !trace.empty() || !dot.empty(); }
  // Ends the program with status 2 and a message if it cannot be written, or not by this build.
  void check() const;
};

// Runs the requests and writes what is wanted. False, with a message, if a result is not the reference, or if something
// cannot be written.
bool observe(const Loop& loop, const std::vector<Request>& requests, int executables, const Observed& observed);

}  // namespace demo
