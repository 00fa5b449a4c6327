#include "trained.h"

#include <absl/strings/str_format.h>

#include <cstddef>
#include <cstring>

namespace demo {
namespace {

bool equals(const std::vector<float>& found, const std::vector<float>& expected, const char* what, const char* way) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::memcmp(&found[i], &expected[i], sizeof(float)) == 0) continue;
    absl::FPrintF(stderr, "%s: %s %d is %.9g, the eager run's %.9g\n", way, what, i, found[i], expected[i]);
    return false;
  }
  return true;
}

}  // namespace

Trained trained(const Training& training) { return {training.losses(), training.final_parameters()}; }

bool equals(const Trained& found, const Trained& expected, const char* way) {
  const bool losses = equals(found.losses, expected.losses, "loss", way);
  return equals(found.parameters, expected.parameters, "parameter", way) && losses;
}

}  // namespace demo
