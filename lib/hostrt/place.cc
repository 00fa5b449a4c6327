#include "place.h"

#include <cstdint>

#include "diagnose/caller.h"

namespace graphcache::hostrt {
namespace {

std::string describe(const void* behind_call) {
  const diagnose::Location where = diagnose::location_of_call(behind_call);
  if (where.module.empty()) return diagnose::hexadecimal(reinterpret_cast<std::uintptr_t>(behind_call) - 1);
  std::string text = where.module + "+" + diagnose::hexadecimal(where.offset);
  if (where.symbol.empty()) return text;
  return text + " (" + diagnose::demangled(where.symbol) + "+" + diagnose::hexadecimal(where.into_symbol) + ")";
}

}  // namespace

std::string to_string(const Place& place) {
  std::string text = place.function;
  if (place.call != 0) text += ", call " + std::to_string(place.call);
  if (place.thread != 0) text += ", thread " + std::to_string(place.thread);
  if (place.address != nullptr) text += ", at " + describe(place.address);
  return text;
}

std::string name_of_function(const void* function) {
  const diagnose::Location where = diagnose::location_of_call(static_cast<const char*>(function) + 1);
  if (where.module.empty())
    return "the function at " + diagnose::hexadecimal(reinterpret_cast<std::uintptr_t>(function));
  if (!where.symbol.empty() && where.into_symbol == 0) return diagnose::demangled(where.symbol);
  return where.module + "+" + diagnose::hexadecimal(where.offset);
}

Place Endings::find(const void* what) const {
  const auto bits = reinterpret_cast<std::uintptr_t>(what);
  for (std::size_t back = 1; back <= ring_.size(); ++back) {
    const Ending& ending = ring_[(next_ + kCapacity - back) % kCapacity];
    if (ending.what == bits) return ending.where;
  }
  return {};
}

}  // namespace graphcache::hostrt
