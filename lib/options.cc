#include "options.h"

#include <absl/strings/str_cat.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "run/core.h"

namespace graphcache {

absl::Status check(Options& options) {
  if (options.device == kMinusOne) {
    return absl::InvalidArgumentError("cache_for(-1): there is no such device; devices are counted from 0");
  }
  if (options.device < 0 && options.device != Options::kCurrentDevice) {
    return absl::InvalidArgumentError(absl::StrCat("Options::device is ", options.device, ": there is no such device"));
  }
  const std::pair<const char*, int> counts[] = {{"max_executables", options.max_executables},
                                                {"capture_after", options.capture_after},
                                                {"max_templates", options.max_templates},
                                                {"verify_every", options.verify_every}};
  for (const auto& [name, count] : counts) {
    if (count >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("Options::", name, " is ", count, ": it must not be negative"));
  }
  if (std::find(options.listeners.begin(), options.listeners.end(), nullptr) != options.listeners.end()) {
    return absl::InvalidArgumentError("Options::listeners contains a null pointer");
  }
  if ((options.instantiate_flags & ~static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority)) != 0) {
    return absl::InvalidArgumentError(
        "Options::instantiate_flags may contain only cudaGraphInstantiateFlagUseNodePriority");
  }
  if (const char* const wanted = std::getenv("GRAPHCACHE_VERIFY");
      is_set("GRAPHCACHE_VERIFY") && options.verify_every == 0) {
    int every = 0;
    const char* const end = wanted + std::strlen(wanted);
    const auto [read, error] = std::from_chars(wanted, end, every);
    if (error != std::errc() || read != end || every < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the environment variable GRAPHCACHE_VERIFY is '", wanted,
                                                     "': it must be a whole number from 0 to 2147483647"));
    }
    options.verify_every = every;
  }
  return absl::OkStatus();
}

}  // namespace graphcache
