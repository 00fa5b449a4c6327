#include "cuda/audience.h"

#include <algorithm>
#include <bit>
#include <new>
#include <optional>

#include "cuda/errors.h"
#include "cuda/this_thread.h"
#include "graphcache/detail/call.h"

namespace graphcache {
namespace {

// Calls f for an event. Returns what it threw as an error. Preserves the last error, except of what each hit may have.
template <class F>
absl::Status guarded(EventKind kind, F&& f) noexcept try {
  std::optional<LastErrorGuard> last_error;
  if (kind != EventKind::kRun && kind != EventKind::kLaunch) last_error.emplace();
  return detail::status_of(f);
} catch (const std::bad_alloc&) {
  return out_of_memory();
} catch (...) {
  return exception_failure("a listener threw");
}

}  // namespace

Audience::Audience(const Listeners& listeners) {
  for (const std::shared_ptr<Listener>& listener : listeners) {
    if (listener == nullptr) continue;  // Then the options are invalid.
    const Listener::Wants wants = listener->wants();
    seats_.push_back({listener, wants.launches});
    wants_launches_ = wants_launches_ || wants.launches;
    if (wants.hits > 0) hits_mask_ = std::min(hits_mask_, std::bit_ceil(static_cast<std::uint64_t>(wants.hits)) - 1);
  }
}

Audience::Span::Span(const Audience& audience, const CacheEvent& of) : event(of), audience_(audience) {
  if (audience.empty()) return;
  event.thread = detail::number_of_this_thread();
  event.begin = std::chrono::steady_clock::now();
  const bool may_refuse = event.kind == EventKind::kCapture || event.kind == EventKind::kLaunch;
  for (; begun_ < audience.seats_.size(); ++begun_) {
    const Seat& seat = audience.seats_[begun_];
    if (!seat.receives(event.kind)) continue;
    absl::Status status = guarded(event.kind, [&] { return seat.listener->begin(event); });
    if (status.ok() || !may_refuse) continue;
    event.status = std::move(status);
    return;
  }
}

Audience::Span::~Span() {
  if (begun_ == 0) return;
  event.end = std::chrono::steady_clock::now();
  while (begun_ > 0) audience_.end(audience_.seats_[--begun_], event);
}

void Audience::mark(CacheEvent event) const noexcept {
  if (empty()) return;
  event.thread = detail::number_of_this_thread();
  event.begin = event.end = std::chrono::steady_clock::now();
  for (const Seat& seat : seats_) end(seat, event);
}

void Audience::end(const Seat& seat, const CacheEvent& event) const noexcept {
  if (!seat.receives(event.kind)) return;
  const absl::Status threw = guarded(event.kind, [&] { seat.listener->end(event); });
  if (!threw.ok()) (void)guarded(event.kind, [&] { message(line_of(threw, event.key)); });
}

void Audience::message(std::string_view line) const noexcept {
  for (const Seat& seat : seats_) {
    (void)guarded(EventKind::kCapture, [&] { seat.listener->message(line); });
  }
}

}  // namespace graphcache
