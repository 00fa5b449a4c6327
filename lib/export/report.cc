#include "graphcache_export/report.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graphcache/observe.h"
#include "graphcache/version.h"
#include "graphcache_export/json.h"
#include "node_text.h"
#include "report_page.h"
#include "text.h"

namespace graphcache {
namespace {

constexpr std::size_t kMostSlots = 60;     // limit for the chart of outcomes over time
constexpr std::size_t kMostFamilies = 50;  // limit for the families shown, those with the most runs
constexpr std::size_t kMostMembers = 20;   // limit for the members shown of a family
constexpr std::size_t kMostParts = 6;      // limit for the differing parts shown of a key

std::uint64_t sum(const std::array<std::uint64_t, kOutcomeCount>& outcomes, std::initializer_list<Outcome> which) {
  std::uint64_t total = 0;
  for (const Outcome outcome : which) total += outcomes[static_cast<std::size_t>(outcome)];
  return total;
}

std::uint64_t runs_of(const EntryInfo& entry) {
  std::uint64_t runs = 0;
  for (const std::uint64_t count : entry.outcomes) runs += count;
  return runs;
}

// ---- Entries by cost ------------------------------------------------------------------------------------------------

// Divides the host time of one operation among the entries, by how often each needed it and by its nodes. Deleted
// entries keep their part.
void divide(std::chrono::nanoseconds time, std::uint64_t all, const std::vector<EntryInfo>& entries,
            std::initializer_list<Outcome> needed_by, std::vector<double>* costs) {
  std::vector<double> weights;
  double whole = 0;
  std::uint64_t counted = 0;
  for (const EntryInfo& entry : entries) {
    const std::uint64_t count = sum(entry.outcomes, needed_by);
    weights.push_back(static_cast<double>(count * entry.nodes));
    whole += weights.back();
    counted += count;
  }
  if (whole == 0) return;
  const double here = static_cast<double>(counted) / static_cast<double>(std::max(all, counted));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    (*costs)[i] += static_cast<double>(time.count()) * here * weights[i] / whole;
  }
}

struct Priced {
  EntryInfo entry;
  double nanoseconds = 0;
  // A number for this page, counted from 1, because ids are too long to read.
  std::size_t number = 0;
  // The parts of the key that differ among the keys of its label. Empty if no other key has the label.
  std::string differs = {};
};

// Sorted by cost, the most expensive first.
std::vector<Priced> priced(std::vector<EntryInfo> entries, const Stats& stats) {
  using enum Outcome;
  std::vector<double> costs(entries.size());
  divide(stats.capture_time, stats.captures, entries, {kUpdated, kInstantiated}, &costs);
  divide(stats.instantiate_time, stats.instantiations, entries, {kRestored, kInstantiated}, &costs);
  divide(stats.update_time, stats.outcome(kSwitched) + stats.outcome(kUpdated), entries, {kSwitched, kUpdated}, &costs);
  std::vector<Priced> result;
  for (std::size_t i = 0; i < entries.size(); ++i) result.push_back({std::move(entries[i]), costs[i]});
  std::stable_sort(result.begin(), result.end(), [](const Priced& a, const Priced& b) {
    return a.nanoseconds != b.nanoseconds ? a.nanoseconds > b.nanoseconds : runs_of(a.entry) > runs_of(b.entry);
  });
  for (std::size_t i = 0; i < result.size(); ++i) result[i].number = i + 1;
  return result;
}

// ---- What tells the keys of a label apart ---------------------------------------------------------------------------

struct PartText {
  std::string text;
  const char* hidden_as = nullptr;  // Null if the text may leave the process without ExportOptions::keys.
};

PartText text_of(const KeyPart& part) {
  switch (part.kind) {
    case KeyPart::Kind::kBool:
      return {part.integer != 0 ? "true" : "false"};
    case KeyPart::Kind::kText:
      return {'"' + part.text + '"', "text"};
    case KeyPart::Kind::kAddress: {
      std::ostringstream text;
      text << "0x" << std::hex << static_cast<std::uint64_t>(part.integer);
      return {text.str(), "address"};
    }
    case KeyPart::Kind::kNullText:
      return {"no text"};
    case KeyPart::Kind::kNoValue:
      return {"no value"};
    case KeyPart::Kind::kInteger:
    case KeyPart::Kind::kEnum:
      break;
  }
  const std::string number = (part.kind == KeyPart::Kind::kEnum ? "enum " : "") + std::to_string(part.integer);
  // A larger number may be an address or a hash.
  const bool is_small = part.integer >= std::numeric_limits<std::int32_t>::min() &&
                        part.integer <= std::numeric_limits<std::uint32_t>::max();
  return {number, is_small ? nullptr : "large number"};
}

// Sets `differs` of entries whose keys have the same label. Parts are counted from 0, as in the findings of advise().
void tell_apart(const std::vector<Priced*>& alike, bool may_show_all) {
  std::vector<std::vector<KeyPart>> keys;
  std::size_t most_parts = 0;
  for (const Priced* each : alike) {
    keys.push_back(each->entry.key.parts());
    most_parts = std::max(most_parts, keys.back().size());
  }
  std::size_t told = 0;
  for (std::size_t part = 0; part < most_parts; ++part) {
    std::vector<PartText> texts;
    std::map<std::string, std::size_t> numbers;  // of the values, from 1
    for (const std::vector<KeyPart>& key : keys) {
      texts.push_back(part < key.size() ? text_of(key[part]) : PartText{"missing"});
      numbers.try_emplace(texts.back().text, numbers.size() + 1);
    }
    if (numbers.size() == 1) continue;
    if (++told > kMostParts) break;
    for (std::size_t i = 0; i < alike.size(); ++i) {
      const auto& [text, hidden_as] = texts[i];
      const bool is_hidden = hidden_as != nullptr && !may_show_all;
      const std::string shown = is_hidden ? hidden_as + (" no. " + std::to_string(numbers[text])) : text;
      std::string& differs = alike[i]->differs;
      differs += (differs.empty() ? "part " : ", part ") + std::to_string(part) + ": " + shown;
    }
  }
  if (told <= kMostParts) return;
  for (Priced* each : alike) each->differs += ", ...";
}

void tell_apart(std::vector<Priced>* all, bool may_show_all) {
  std::map<std::string, std::vector<Priced*>> by_label;
  for (Priced& each : *all) by_label[each.entry.label].push_back(&each);
  for (const auto& [label, alike] : by_label) tell_apart(alike, may_show_all);
}

// ---- Entries and families -------------------------------------------------------------------------------------------

Json shown_entries(const std::vector<Priced>& all, const ReportOptions& options) {
  std::vector<EntryInfo> shown;
  for (const Priced& each : all) {
    if (shown.size() < options.most_entries) shown.push_back(each.entry);
  }
  Json json = Json::parse(to_json(shown, options.may_leave));
  for (std::size_t i = 0; i < json.size(); ++i) {
    json[i]["number"] = all[i].number;
    json[i]["cost_ns"] = all[i].nanoseconds;
    json[i]["differs"] = all[i].differs;
  }
  return json;
}

struct Family {
  std::uint64_t number = 0;
  std::uint64_t entries = 0;
  std::uint64_t executables = 0;
  std::uint64_t runs = 0;
  std::uint64_t switches = 0;  // runs that switched to a sibling's executable
  std::size_t nodes = 0;       // of each of its graphs
  std::size_t bytes = 0;
  Json members = Json::array();
};

Json families(const std::vector<Priced>& entries) {
  std::map<std::uint64_t, Family> by_number;
  for (const Priced& each : entries) {
    const EntryInfo& entry = each.entry;
    if (entry.family == 0) continue;
    Family& family = by_number[entry.family];
    family.number = entry.family;
    ++family.entries;
    family.executables += entry.live;
    family.runs += runs_of(entry);
    family.switches += sum(entry.outcomes, {Outcome::kSwitched, Outcome::kUpdated});
    family.nodes = entry.nodes;
    family.bytes += entry.live ? entry.estimated_device_bytes : 0;
    if (family.members.size() < kMostMembers) {
      family.members.push_back(
          {{"label", entry.label}, {"number", each.number}, {"differs", each.differs}, {"live", entry.live}});
    }
  }
  std::vector<Family> sorted;
  for (auto& [number, family] : by_number) sorted.push_back(std::move(family));
  std::stable_sort(sorted.begin(), sorted.end(), [](const Family& a, const Family& b) { return a.runs > b.runs; });
  if (sorted.size() > kMostFamilies) sorted.resize(kMostFamilies);
  Json json = Json::array();
  for (const Family& family : sorted) {
    json.push_back({{"family", family.number},
                    {"entries", family.entries},
                    {"executables", family.executables},
                    {"runs", family.runs},
                    {"switches", family.switches},
                    {"nodes", family.nodes},
                    {"estimated_device_bytes", family.bytes},
                    {"members", family.members}});
  }
  return json;
}

// ---- Events ---------------------------------------------------------------------------------------------------------

Json over_time(const std::vector<KeptEvent>& events) {
  using Counts = std::array<std::uint64_t, kOutcomeCount + 1>;  // the last one counts failed runs
  if (events.empty()) return nullptr;
  auto first = events.front().begin, last = first;
  std::size_t runs = 0;
  for (const KeptEvent& event : events) {
    first = std::min(first, event.begin);
    last = std::max(last, event.begin);
    runs += event.kind == EventKind::kRun;
  }
  const std::size_t slots = std::clamp<std::size_t>(runs, 1, kMostSlots);
  const auto width = (last - first) / slots + std::chrono::nanoseconds(1);
  std::vector<Counts> outcomes(slots);
  std::vector<std::uint64_t> evictions(slots);
  std::map<std::string, std::array<std::uint64_t, 2>> lost;  // executables and templates, keyed by label
  for (const KeptEvent& event : events) {
    const auto slot = static_cast<std::size_t>((event.begin - first) / width);
    if (event.kind == EventKind::kRun)
      ++outcomes[slot][event.outcome ? static_cast<int>(*event.outcome) : kOutcomeCount];
    if (event.kind == EventKind::kEvict) ++evictions[slot], ++lost[event.label][0];
    if (event.kind == EventKind::kDestroyGraph && event.loss != Loss::kErased) ++lost[event.label][1];
  }
  Json json = {{"kept", events.size()}, {"runs", runs},           {"slot_ns", std::chrono::nanoseconds(width).count()},
               {"outcomes", outcomes},  {"evictions", evictions}, {"lost", Json::array()}};
  for (const auto& [label, counts] : lost) {
    json["lost"].push_back({{"label", label}, {"executables", counts[0]}, {"templates", counts[1]}});
  }
  return json;
}

// ---- Graphs ---------------------------------------------------------------------------------------------------------

Json graphs(const Cache& cache, const std::vector<Priced>& entries, const ReportOptions& options) {
  Json json = Json::array();
  std::size_t nodes_left = options.most_nodes;
  for (const Priced& each : entries) {
    if (json.size() == options.most_graphs || nodes_left == 0) break;
    if (!each.entry.recorded) continue;
    absl::StatusOr<GraphInfo> graph = cache.graph(each.entry.id);
    if (!graph.ok()) continue;  // it was deleted, or is in use
    const std::size_t all = graph->nodes.size();
    graph->nodes.resize(std::min(all, nodes_left));
    nodes_left -= graph->nodes.size();
    Json shown = Json::parse(to_json(*graph, options.may_leave));
    shown["number"] = each.number;
    shown["differs"] = each.differs;
    shown["nodes_in_all"] = all;
    for (std::size_t i = 0; i < graph->nodes.size(); ++i) {
      Json& lines = shown["nodes"][i]["lines"] = Json::array();
      for (const std::string& line : lines_of(graph->nodes[i])) {
        if (!line.empty()) lines.push_back(line);
      }
    }
    json.push_back(std::move(shown));
  }
  return json;
}

// ---- The page -------------------------------------------------------------------------------------------------------

Json options_of(const Options& options) {
  return {{"device", options.device},
          {"max_executables", options.max_executables},
          {"max_device_bytes", options.max_device_bytes},
          {"max_templates", options.max_templates},
          {"share", static_cast<int>(options.share)},
          {"capture_mode", static_cast<int>(options.capture_mode)},
          {"instantiate_flags", options.instantiate_flags},
          {"capture_after", options.capture_after},
          {"inline_in_foreign_capture", options.inline_in_foreign_capture},
          {"on_capture_failure", static_cast<int>(options.on_capture_failure)},
          {"listeners", options.listeners.size()},
          {"verify_every", options.verify_every},
          {"on_stale", static_cast<int>(options.on_stale)},
          {"diagnose", options.diagnose}};
}

// The name of the device, which on hostrt begins with "hostrt". Empty if the cache has no device yet, and where an
// older error of the program would be lost.
std::string device_of(const Cache& cache) {
  const int device = cache.options().device;
  cudaDeviceProp properties = {};
  if (device < 0 || cudaPeekAtLastError() != cudaSuccess) return "";
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) return properties.name;
  (void)cudaGetLastError();  // The program must not find this failure in its next check.
  return "";
}

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&time, &utc);
  std::array<char, 64> text = {};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc)};
}

// JSON that can stand inside an HTML element: these characters occur only in texts, where JSON can escape them.
std::string inside_html(const std::string& json) {
  std::string result;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string_view separator = std::string_view(json).substr(i, 3);
    if (json[i] == '<') {
      result += "\\u003c";
    } else if (separator == "\xE2\x80\xA8" || separator == "\xE2\x80\xA9") {
      result += separator.back() == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      result += json[i];
    }
  }
  return result;
}

}  // namespace

std::string report_html(const Cache& cache, const ReportOptions& options) {
  const Stats stats = cache.stats();
  const Json all = Json::parse(to_json(cache, options.may_leave));
  const EventRing* const ring = find_listener<EventRing>(cache.options().listeners);
  std::vector<Priced> entries = priced(cache.entries(), stats);
  tell_apart(&entries, options.may_leave.keys);
  const Json data = {{"title", options.title},
                     {"made", now()},
                     {"graphcache", kVersion},
                     {"device", device_of(cache)},
                     {"options", options_of(cache.options())},
                     {"defaults", options_of(Options())},
                     {"stats", all.at("stats")},
                     {"hit_latency", all.at("hit_latency")},
                     {"measured_device_bytes", all.at("measured_device_bytes")},
                     {"runs", stats.runs()},
                     {"hit_rate", stats.hit_rate()},
                     {"graph_rate", stats.graph_rate()},
                     {"labels", all.at("labels")},
                     {"entries", shown_entries(entries, options)},
                     {"entries_in_all", entries.size()},
                     {"families", families(entries)},
                     {"over_time", over_time(ring == nullptr ? std::vector<KeptEvent>() : ring->events())},
                     {"findings", all.at("findings")},
                     {"graphs", graphs(cache, entries, options)}};
  constexpr std::string_view kPlace = "{data}";
  std::string page(kPage);
  page.replace(page.find(kPlace), kPlace.size(), inside_html(dump(data)));
  return page;
}

}  // namespace graphcache
