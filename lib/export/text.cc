#include "text.h"

namespace graphcache {

std::string dump(const Json& json) {
  constexpr int kOneLine = -1;
  return json.dump(kOneLine, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string valid_utf8(const std::string& text) { return Json::parse(dump(text)).get<std::string>(); }

}  // namespace graphcache
