// NvtxRanges. NVTX is header-only and part of the CUDA toolkit.
#include <algorithm>
#include <array>
#include <cstring>

#include "graphcache/observe.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define GRAPHCACHE_HAS_NVTX 1
#else
#define GRAPHCACHE_HAS_NVTX 0
#endif

namespace graphcache {

#if GRAPHCACHE_HAS_NVTX

namespace {

constexpr std::size_t kMostOfLabel = 32;

// NVTX returns no domain if no profiler is attached.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("graphcache");
  return domain;
}

// The name of a range, such as "capture decode".
class Message {
 public:
  explicit Message(const CacheEvent& event) {
    const auto label = event.key.label();
    const char* const name = to_string(event.kind);
    char* to = std::copy(name, name + std::strlen(name), text_.data());
    if (!label.empty()) *to++ = ' ';
    *std::copy_n(label.data(), std::min(label.size(), kMostOfLabel), to) = '\0';
  }
  nvtxEventAttributes_t attributes() const {
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = text_.data();
    return attributes;
  }

 private:
  std::array<char, 64> text_;
};

}  // namespace

NvtxRanges::NvtxRanges() : is_profiled_(domain() != nullptr) {}

absl::Status NvtxRanges::begin(const CacheEvent& event) {
  if (!is_profiled_) return absl::OkStatus();
  const Message message(event);
  const nvtxEventAttributes_t attributes = message.attributes();
  nvtxDomainRangePushEx(domain(), &attributes);
  return absl::OkStatus();
}

void NvtxRanges::end(const CacheEvent& event) {
  if (!is_profiled_) return;
  if (has_duration(event.kind)) {
    nvtxDomainRangePop(domain());
    return;
  }
  const Message message(event);
  const nvtxEventAttributes_t attributes = message.attributes();
  nvtxDomainMarkEx(domain(), &attributes);
}

#else

NvtxRanges::NvtxRanges() : is_profiled_(false) {}
absl::Status NvtxRanges::begin(const CacheEvent&) { return absl::OkStatus(); }
void NvtxRanges::end(const CacheEvent&) {}

#endif

}  // namespace graphcache
