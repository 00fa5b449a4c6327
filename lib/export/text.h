// Texts that are the caller's own, such as labels, may hold any bytes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace graphcache {

// As one line, without what is no UTF-8: U+FFFD stands for it.
std::string dump(const nlohmann::ordered_json& json);

// The text with the same replacements.
std::string valid_utf8(const std::string& text);

}  // namespace graphcache
