// The launch attributes of kernel nodes, by number, because older toolkits do not name all of them.
#pragma once

#include <cuda.h>

#include <string>

namespace graphcache {

// Every driver for CUDA 12.4 knows the attributes up to this one.
inline constexpr int kLastOfTheOldestDriver = 10;
// A newer driver may have attributes that this code does not know.
inline constexpr int kNewestVersion = 13050;
inline constexpr int kFirstUnknown = 19, kLastUnknown = 31;

inline constexpr int kCooperative = 2;
inline constexpr int kClusterDimension = 4;
inline constexpr int kPreferredClusterDimension = 11;
inline constexpr int kDeviceUpdatable = 13;

struct KnownAttribute {
  int id;
  const char* name;
  std::string (*text)(const CUlaunchAttributeValue&);
  bool needs_cluster = false;  // Whether it cannot be read without a cluster dimension.
  int since = 0;               // The first version of CUDA whose drivers know it, if it is not in the oldest.
};

// Reading one costs 0.08 us a node. Programmatic launches are edges of the graph. NVLink-centric scheduling (16) cannot
// be read, but an update that changes it fails.
extern const KnownAttribute kKnownAttributes[12];

}  // namespace graphcache
