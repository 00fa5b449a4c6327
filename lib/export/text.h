// Texts of the caller, such as labels, may contain any bytes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace graphcache {

using Json = nlohmann::ordered_json;

// The JSON on one line. U+FFFD replaces bytes that are not valid UTF-8.
std::string dump(const Json& json);

// The text with the same replacements.
std::string valid_utf8(const std::string& text);

}  // namespace graphcache
