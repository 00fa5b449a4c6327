// A cache's state as JSON.
#pragma once

#include <string>
#include <vector>

#include "graphcache/cache.h"

namespace graphcache {

// What may leave the process beside counts, labels and names of kernels.
struct ExportOptions {
  // Texts that may hold parts of keys, addresses and values: whole keys, errors, work that captures missed, findings of
  // verify mode. Labels always leave.
  bool keys = false;
  // The captured values of arguments, in graphs.
  bool values = false;
};

// One object with the members "graphcache" (the version), "stats", "labels", "entries" and "findings". All texts are
// valid UTF-8: bytes that are not are replaced. Makes no CUDA call except those of Cache::advise(). Throws
// std::bad_alloc.
std::string to_json(const Cache& cache, const ExportOptions& options = {});

// The parts alone.
std::string to_json(const Stats& stats);
std::string to_json(const std::vector<LabelStats>& labels);
std::string to_json(const std::vector<EntryInfo>& entries, const ExportOptions& options = {});
std::string to_json(const std::vector<Finding>& findings);
std::string to_json(const GraphInfo& graph, const ExportOptions& options = {});

}  // namespace graphcache
