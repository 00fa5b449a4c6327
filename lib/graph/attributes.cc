#include "graph/attributes.h"

#include <absl/strings/str_cat.h>

#include <array>
#include <cstdint>

#include "graph/template.h"

namespace graphcache {
namespace {

template <class T>
std::string number(const CUlaunchAttributeValue& value) {
  return absl::StrCat(read_as<T>(&value));
}
std::string three(const CUlaunchAttributeValue& value) {
  return absl::StrCat(value.clusterDim.x, ", ", value.clusterDim.y, ", ", value.clusterDim.z);
}
std::string domains(const CUlaunchAttributeValue& value) {
  const auto map = read_as<std::array<std::uint8_t, 2>>(&value);
  return absl::StrCat(map[0], ", ", map[1]);
}
std::string window(const CUlaunchAttributeValue& value) {
  return absl::StrCat(value.accessPolicyWindow.num_bytes, " bytes, hit ratio ", value.accessPolicyWindow.hitRatio);
}

}  // namespace

const KnownAttribute kKnownAttributes[12] = {{1, "access policy window", window},
                                             {kCooperative, "cooperative", number<int>},
                                             {kClusterDimension, "cluster dimension", three},
                                             {5, "cluster scheduling policy", number<int>, /*needs_cluster=*/true},
                                             {8, "priority", number<int>},
                                             {9, "memory synchronization domain map", domains},
                                             {10, "memory synchronization domain", number<int>},
                                             {kPreferredClusterDimension, "preferred cluster dimension", three, true},
                                             {kDeviceUpdatable, "device-updatable", number<int>},
                                             {14, "shared memory carveout", number<unsigned>},
                                             {17, "portable cluster size mode", number<int>, false, /*since=*/13020},
                                             {18, "shared memory mode", number<int>, false, 13020}};

}  // namespace graphcache
