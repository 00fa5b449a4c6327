#include "run/observer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>

#include "run/hit.h"

// NVTX is header-only and part of the CUDA toolkit.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define GRAPHCACHE_HAS_NVTX 1
#else
#define GRAPHCACHE_HAS_NVTX 0
#endif

namespace graphcache {
namespace {

constexpr std::size_t kMostOfLabel = 32;
constexpr const char* kNames[] = {"run", "capture", "instantiate", "update", "upload", "evict", "forget"};
static_assert(std::size(kNames) == kEventKindCount);

#if GRAPHCACHE_HAS_NVTX

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("graphcache");
  return domain;
}

// The name of a range: the operation and the key's label, such as "capture decode".
class Message {
 public:
  Message(EventKind kind, const Key& key) {
    const auto label = key.label();
    const char* const name = to_string(kind);
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

// NVTX returns no domain if no profiler is attached.
bool is_profiled() { return domain() != nullptr; }
void push_range(EventKind kind, const Key& key) {
  const Message message(kind, key);
  const nvtxEventAttributes_t attributes = message.attributes();
  nvtxDomainRangePushEx(domain(), &attributes);
}
void pop_range() { nvtxDomainRangePop(domain()); }
void mark_moment(EventKind kind, const Key& key) {
  const Message message(kind, key);
  const nvtxEventAttributes_t attributes = message.attributes();
  nvtxDomainMarkEx(domain(), &attributes);
}

#else

bool is_profiled() { return false; }
void push_range(EventKind, const Key&) {}
void pop_range() {}
void mark_moment(EventKind, const Key&) {}

#endif

}  // namespace

const char* to_string(EventKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

Observer::Observer(std::size_t events, bool nvtx) : nvtx_(nvtx && is_profiled()), ring_(events) {}

Observer::Span::Span(Observer& observer, EventKind kind, const Key& key) : observer_(observer), kind_(kind), key_(key) {
  if (observer_.nvtx_) push_range(kind, key);
  if (!observer_.ring_.empty()) begin_ = std::chrono::steady_clock::now();
}

Observer::Span::~Span() {
  if (observer_.nvtx_) pop_range();
  if (observer_.ring_.empty()) return;
  observer_.keep(kind_, outcome_, key_, begin_, std::chrono::steady_clock::now() - begin_);
}

void Observer::mark(EventKind kind, const Key& key) noexcept {
  if (nvtx_) mark_moment(kind, key);
  if (!ring_.empty()) keep(kind, std::nullopt, key, std::chrono::steady_clock::now(), {});
}

void Observer::keep(EventKind kind, std::optional<Outcome> outcome, const Key& key,
                    std::chrono::steady_clock::time_point begin, std::chrono::nanoseconds duration) noexcept {
  if (detail::this_thread.number == 0) detail::ThisThread::take_number();
  const auto label = key.label();
  Kept event = {kind, outcome, detail::this_thread.number, begin, duration, std::min(label.size(), sizeof(Kept::label)),
                {}};
  std::copy_n(label.data(), event.label_size, event.label);
  MutexLock lock(mutex_);
  ring_[next_] = event;
  next_ = next_ + 1 == ring_.size() ? 0 : next_ + 1;
  kept_ = std::min(kept_ + 1, ring_.size());
}

std::vector<CacheEvent> Observer::events() const try {
  std::vector<Kept> kept;
  {
    MutexLock lock(mutex_);
    const auto next = ring_.begin() + static_cast<std::ptrdiff_t>(next_);
    if (kept_ == ring_.size()) kept.assign(next, ring_.end());
    kept.insert(kept.end(), ring_.begin(), next);
  }
  std::vector<CacheEvent> events;
  events.reserve(kept.size());
  for (const Kept& event : kept) {
    events.push_back({event.kind, event.outcome, std::string(event.label, event.label_size), event.thread, event.begin,
                      event.duration});
  }
  return events;
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace graphcache
