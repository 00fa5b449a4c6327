// The price of each action, in nanoseconds of host and device time, measured on an H200. 2026-11-28.md has the source
// of each number. The cache decides without prices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "trace.h"

namespace graphcache::sim {

using Ns = std::uint64_t;

// Device time is split: `kernels` is the time of the nodes themselves, which is the same in every policy.
struct Price {
  Ns host = 0;
  Ns device = 0;
  Ns kernels = 0;

  Ns overhead() const { return host + device; }
  Ns total() const { return host + device + kernels; }
  Price& operator+=(const Price& other) {
    host += other.host;
    device += other.device;
    kernels += other.kernels;
    return *this;
  }
};

// An executable as captured, with a node that writes slots, or with one that writes slots and parameter sets.
enum class Kind : std::uint8_t { kPlain, kSlots, kTable };

namespace price {

// Prices per node. test/bench/results/2026-11-22-keys.md, "Many keys on few executables": first captures and reading;
// "What a switch costs".
inline constexpr Ns kFirstCapture = 1680;
inline constexpr Ns kCapture = 350;
inline constexpr Ns kRead = 630;
inline constexpr Ns kInstantiate = 1400;
inline constexpr Ns kMoreMemory = 2000;  // added if the driver must allocate device memory
inline constexpr Ns kUpload = 900;
inline constexpr Ns kDestroy = 900;
inline constexpr Ns kUpdateReads = 25;
inline constexpr Ns kUpdate[] = {80, 900, 1000};  // indexed by Difference, for a node that differs
inline constexpr Ns kPatch = 146;                 // of the arguments of a node
inline constexpr Ns kTakeOver = 800;

// Device-updated executables: test/bench/results/2026-11-24-updater-node.md, and 2026-11-24-runs.md, "What being right
// on the GPU costs".
inline constexpr Ns kMakeUpdatable = 2000;   // per node, once
inline constexpr Ns kUpdatableNode = 20;     // device time per node and launch
inline constexpr Ns kUpdaterIdle = 1000;     // device time per launch without new values
inline constexpr Ns kUpdaterWrites = 2300;   // device time per launch with new values
inline constexpr Ns kCell = 8;               // device time per node that it writes
inline constexpr Ns kPatchUpdater = 400;     // host time per launch with new values
inline constexpr Ns kSwitchSet = 800;        // per switch to another parameter set
inline constexpr Ns kSwitchSetPerNode = 10;  // per switch and node
inline constexpr Ns kWriteSet = 200;         // per differing node, when a key gets its parameter set

// A launch; the addition for another executable than in the last launch; the addition per node.
inline constexpr Ns kLaunch = 1500;
inline constexpr Ns kLaunchOther = 1400;
inline constexpr Ns kLaunchPerNode = 2;

// The launch of a node without a graph: 531.7 us for 200 nodes on an H200.
inline constexpr Ns kDirectLaunch = 2660;

// Launches of one executable follow each other whatever their streams. A launch that waits for another stream's loses
// this percentage of the kernels' time (docs/demos/decode.md: 0.709 of the tokens).
inline constexpr Ns kSerializedPercent = 41;
// If several streams are in use, destroying an updatable node waits for this percentage of a launch in flight
// (docs/semantics.md: 131 ms for 100 nodes beside launches of 1.7 ms).
inline constexpr Ns kDestroyWaitsPercent = 77;

// Device memory: lib/graph/template.h, lib/exec/updated_executable.cc, lib/exec/parameter_table.cc.
inline constexpr std::size_t kExecutableBytes = 114'000, kNodeBytes = 2'600;
inline constexpr std::size_t kUpdaterNodeBytes = 150, kSetNodeBytes = 40;
inline constexpr std::size_t kDriverBytes = 16'800'000;  // once a process, for the first device-updated executable

inline std::size_t bytes(const Graph& graph) { return kExecutableBytes + graph.nodes * kNodeBytes; }
inline std::size_t updater_bytes(const Graph& graph, Kind kind) {
  return kind == Kind::kPlain ? 0 : kUpdaterNodeBytes * (kind == Kind::kTable ? graph.nodes : graph.slot_nodes);
}
inline std::size_t set_bytes(const Graph& graph) { return kSetNodeBytes * graph.differing; }

inline Ns kernels(const Graph& graph) { return Ns{graph.nodes} * graph.node_ns; }

inline std::uint32_t updatable_nodes(const Graph& graph, Kind kind) {
  return kind == Kind::kPlain ? 0 : kind == Kind::kTable ? graph.nodes : graph.slot_nodes;
}

inline Ns instantiate(const Graph& graph, Kind kind, bool more_memory) {
  return kTakeOver + graph.nodes * (kInstantiate + kUpload + (more_memory ? kMoreMemory : 0)) +
         updatable_nodes(graph, kind) * kMakeUpdatable;
}

inline Ns destroy(const Graph& graph, Kind kind, std::size_t streams) {
  const Ns in_flight = streams > 1 ? kernels(graph) * streams : 0;
  const Ns waits = updatable_nodes(graph, kind) * in_flight * kDestroyWaitsPercent / 100;
  return graph.nodes * kDestroy + waits;
}

// An update from a sibling's graph to this one.
inline Ns update(const Graph& graph, Difference difference) {
  const auto i = static_cast<std::size_t>(difference);
  return kTakeOver + graph.nodes * kUpdateReads + graph.differing * kUpdate[i];
}

// The price of new slot values in an executable.
inline Price values(const Graph& graph, Kind kind) {
  if (graph.slot_nodes == 0) return {};
  if (kind == Kind::kPlain) return {.host = graph.slot_nodes * kPatch};
  return {.host = kPatchUpdater, .device = kUpdaterWrites - kUpdaterIdle + graph.slot_nodes * kCell};
}

// The price of a switch to another key's parameter set, new values included.
inline Price switch_set(const Graph& graph) {
  return {.host = kSwitchSet + kPatchUpdater + graph.nodes * kSwitchSetPerNode,
          .device = kUpdaterWrites - kUpdaterIdle + std::max(graph.differing, graph.slot_nodes) * kCell};
}

inline Price launch(const Graph& graph, Kind kind, bool other_executable, bool other_stream) {
  Price price{.host = kLaunch + graph.nodes * kLaunchPerNode + (other_executable ? kLaunchOther : 0),
              .kernels = kernels(graph)};
  if (kind != Kind::kPlain) price.device += kUpdaterIdle + updatable_nodes(graph, kind) * kUpdatableNode;
  if (other_stream) price.device += kernels(graph) * kSerializedPercent / 100;
  return price;
}

}  // namespace price
}  // namespace graphcache::sim
