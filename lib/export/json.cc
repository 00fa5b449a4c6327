#include "graphcache_export/json.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>

#include "graphcache/observe.h"
#include "graphcache/version.h"
#include "text.h"

namespace graphcache {
namespace {

// A member for each enumerator, by its name.
template <class Enum, std::size_t kCount>
Json by_name(const std::array<std::uint64_t, kCount>& counts) {
  Json json = Json::object();
  for (std::size_t i = 0; i < kCount; ++i) json[to_string(static_cast<Enum>(i))] = counts[i];
  return json;
}

// Null without a HitLatency among the listeners.
Json histogram(const Listeners& listeners) {
  const HitLatency* const latency = find_listener<HitLatency>(listeners);
  if (latency == nullptr) return nullptr;
  const HitLatency::Counts counts = latency->counts();
  Json json = Json::array();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const Json bound = i < HitLatency::kBounds.size() ? Json(HitLatency::kBounds[i]) : Json(nullptr);
    json.push_back({{"below_ns", bound}, {"count", counts[i]}});
  }
  return json;
}

// Indexed by cudaGraphNodeType and named after its enumerators, because older toolkits do not have all of them.
constexpr const char* kNodeTypes[] = {"kernel",
                                      "memcpy",
                                      "memset",
                                      "host",
                                      "graph",
                                      "empty",
                                      "wait_event",
                                      "event_record",
                                      "ext_semaphore_signal",
                                      "ext_semaphore_wait",
                                      "mem_alloc",
                                      "mem_free",
                                      "batch_mem_op",
                                      "conditional",
                                      "memcpy_batch"};
// A newer type is "unknown" (compat.h, node_type).
static_assert(cudaGraphNodeTypeEmpty == 5 && cudaGraphNodeTypeMemFree == 11 && std::size(kNodeTypes) == 15);

Json type_of(const GraphNode& node) {
  const auto number = static_cast<std::size_t>(node.type);
  return number < std::size(kNodeTypes) ? kNodeTypes[number] : "unknown";
}

std::string hex(const std::vector<unsigned char>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

class Objects {
 public:
  explicit Objects(const ExportOptions& options = {}) : options_(options) {}

  template <class T>
  Json of(const std::vector<T>& all) const {
    Json json = Json::array();
    for (const T& one : all) json.push_back(of(one));
    return json;
  }

  Json of(const Stats& stats) const {
    return {{"outcomes", by_name<Outcome>(stats.outcomes)},
            {"eager_reasons", by_name<EagerReason>(stats.eager_reasons)},
            {"failed", stats.failed},
            {"captures", stats.captures},
            {"capture_failures", stats.capture_failures},
            {"value_captures", stats.value_captures},
            {"instantiations", stats.instantiations},
            {"updates", stats.updates},
            {"set_switches", stats.set_switches},
            {"patched_nodes", stats.patched_nodes},
            {"evictions", stats.evictions},
            {"forgotten", stats.forgotten},
            {"refused_updates", stats.refused_updates},
            {"refused_device_updates", stats.refused_device_updates},
            {"verified", stats.verified},
            {"stale", stats.stale},
            {"live_executables", stats.live_executables},
            {"live_templates", stats.live_templates},
            {"families", stats.families},
            {"estimated_device_bytes", stats.estimated_device_bytes},
            {"capture_time_ns", stats.capture_time.count()},
            {"instantiate_time_ns", stats.instantiate_time.count()},
            {"update_time_ns", stats.update_time.count()},
            {"first_launch_time_ns", stats.first_launch_time.count()}};
  }

  Json of(const Counted& found) const { return {{"text", found.text}, {"count", found.count}}; }

  Json of(const LabelStats& label) const {
    return {{"label", label.label},
            {"entries", label.entries},
            {"outcomes", by_name<Outcome>(label.outcomes)},
            {"eager_reasons", by_name<EagerReason>(label.eager_reasons)}};
  }

  Json of(const EntryInfo& entry) const {
    Json json = {{"id", entry.id},
                 {"label", entry.label},
                 {"outcomes", by_name<Outcome>(entry.outcomes)},
                 {"live", entry.live},
                 {"recorded", entry.recorded},
                 {"pinned", entry.pinned},
                 {"eager_reason", entry.eager_reason ? Json(to_string(*entry.eager_reason)) : Json(nullptr)},
                 {"family", entry.family},
                 {"looked_for_siblings", entry.looked_for_siblings},
                 {"nodes", entry.nodes},
                 {"slot_nodes", entry.slot_nodes},
                 {"estimated_device_bytes", entry.estimated_device_bytes},
                 {"last_use_order", entry.last_use_order}};
    if (options_.keys) {
      json.update({{"key", entry.key.to_string()},
                   {"error", entry.error},
                   {"refusal", entry.refusal},
                   {"stale", of(entry.stale)},
                   {"stray_work", of(entry.stray_work)}});
    }
    return json;
  }

  Json of(const Finding& finding) const {
    return {{"kind", to_string(finding.kind)},
            {"label", finding.label},
            {"text", finding.text},
            {"cure", finding.cure},
            {"runs", finding.runs},
            {"buckets", Json(finding.buckets)},
            {"padding", finding.padding},
            {"ready_rate", finding.ready_rate},
            {"ready_rate_of_twice", finding.ready_rate_of_twice},
            {"ready_rate_of_four_times", finding.ready_rate_of_four_times}};
  }

  Json of(const dim3& size) const { return {size.x, size.y, size.z}; }

  Json of(const GraphNode::Attribute& attribute) const {
    return {{"name", attribute.name}, {"value", attribute.value}};
  }

  Json of(const GraphNode::Argument& argument) const {
    Json json = {{"name", argument.name}, {"is_slot", argument.is_slot}};
    if (options_.values) json["value"] = hex(argument.value);
    return json;
  }

  Json of(const GraphNode& node) const {
    return {{"type", type_of(node)},
            {"name", node.name},
            {"grid", of(node.grid)},
            {"block", of(node.block)},
            {"shared_bytes", node.shared_bytes},
            {"grid_is_slot", node.grid_is_slot},
            {"block_is_slot", node.block_is_slot},
            {"shared_is_slot", node.shared_is_slot},
            {"attributes", of(node.attributes)},
            {"arguments", of(node.arguments)},
            {"dependencies", Json(node.dependencies)}};
  }

  Json of(const GraphInfo& graph) const {
    return {{"entry", graph.entry}, {"label", graph.label}, {"family", graph.family}, {"nodes", of(graph.nodes)}};
  }

 private:
  const ExportOptions options_;
};

}  // namespace

std::string to_json(const Cache& cache, const ExportOptions& options) {
  const Objects objects(options);
  const Listeners& listeners = cache.options().listeners;
  const MemoryMeter* const meter = find_listener<MemoryMeter>(listeners);
  return dump({{"graphcache", kVersion},
               {"stats", objects.of(cache.stats())},
               {"hit_latency", histogram(listeners)},
               {"measured_device_bytes", meter != nullptr ? Json(meter->bytes()) : Json(nullptr)},
               {"labels", objects.of(labels(cache))},
               {"entries", objects.of(cache.entries())},
               {"findings", objects.of(advise(cache))}});
}

std::string to_json(const Stats& stats) { return dump(Objects().of(stats)); }
std::string to_json(const std::vector<LabelStats>& labels) { return dump(Objects().of(labels)); }
std::string to_json(const std::vector<EntryInfo>& entries, const ExportOptions& options) {
  return dump(Objects(options).of(entries));
}
std::string to_json(const std::vector<Finding>& findings) { return dump(Objects().of(findings)); }
std::string to_json(const GraphInfo& graph, const ExportOptions& options) { return dump(Objects(options).of(graph)); }

}  // namespace graphcache
