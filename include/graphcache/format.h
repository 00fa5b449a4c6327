// Makes Outcome, EagerReason, Stats and EntryInfo printable by fmt. Optional: no other public header needs fmt.
//
//   fmt::print("{}\n", cache.stats());
#pragma once

#include <fmt/format.h>

#include <string>

#include "graphcache/stats.h"

namespace graphcache::detail {

// Formats the to_string() of a value. Format specifications are those of strings.
template <class T>
struct ToStringFormatter : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const T& value, Context& context) const {
    const std::string text = graphcache::to_string(value);
    fmt::formatter<fmt::string_view> as_text = *this;  // fmt 9's format() of a string is not const.
    return as_text.format(fmt::string_view(text), context);
  }
};

}  // namespace graphcache::detail

template <>
struct fmt::formatter<graphcache::Outcome> : graphcache::detail::ToStringFormatter<graphcache::Outcome> {};
template <>
struct fmt::formatter<graphcache::EagerReason> : graphcache::detail::ToStringFormatter<graphcache::EagerReason> {};
template <>
struct fmt::formatter<graphcache::Stats> : graphcache::detail::ToStringFormatter<graphcache::Stats> {};
template <>
struct fmt::formatter<graphcache::EntryInfo> : graphcache::detail::ToStringFormatter<graphcache::EntryInfo> {};
