// to_json(): the state of a cache as JSON.
#pragma once

#include <string>
#include <vector>

#include "graphcache/advice.h"
#include "graphcache/cache.h"
#include "graphcache/history.h"

namespace graphcache {

// Which data an export may contain in addition to counts, labels and names of kernels.
struct ExportOptions {
  // Texts that may contain parts of keys, addresses and values: whole keys, errors, EntryInfo::stray_work, and findings
  // of verify mode.
  bool keys = false;
  // The captured values of arguments, in graphs.
  bool values = false;
};

// The whole state, as one object with the members "graphcache" (the version), "stats", "hit_latency" (null without a
// HitLatency), "measured_device_bytes" (null without a MemoryMeter), "labels", "entries" and "findings". All texts are
// valid UTF-8; invalid bytes are replaced. Makes no CUDA calls except those of advise(). Throws std::bad_alloc.
std::string to_json(const Cache& cache, const ExportOptions& options = {});

// Each part of the state by itself. These throw std::bad_alloc as well.
std::string to_json(const Stats& stats);
std::string to_json(const std::vector<LabelStats>& labels);
std::string to_json(const std::vector<EntryInfo>& entries, const ExportOptions& options = {});
std::string to_json(const std::vector<Finding>& findings);
std::string to_json(const GraphInfo& graph, const ExportOptions& options = {});

}  // namespace graphcache
