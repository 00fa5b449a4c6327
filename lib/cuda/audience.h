// Calls the listeners of a cache (Options::listeners).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "graphcache/listener.h"

namespace graphcache {

// Thread-safe. Its functions are called without the cache's lock.
class Audience {
 public:
  // Asks each listener what it wants.
  explicit Audience(const Listeners& listeners);

  bool empty() const { return seats_.empty(); }
  bool wants_launches() const { return wants_launches_; }
  // Some listener wants the run of a thread that has made this many, if all these bits are set.
  std::uint64_t hits_mask() const { return hits_mask_; }

  // An event that lasts until the end of the scope. Does nothing, and reads no clock, if nobody listens.
  class Span {
   public:
    Span(const Audience& audience, const CacheEvent& of);
    ~Span();
    Span(const Span&) = delete;

    // Its status is the error by which a listener refuses what would follow. What is known at the end is filled in.
    CacheEvent event;

   private:
    const Audience& audience_;
    std::size_t begun_ = 0;  // Listeners that expect an end: the first so many.
  };
  // An event without duration.
  void mark(CacheEvent event) const noexcept;
  // Listener::message().
  void message(std::string_view line) const noexcept;

 private:
  struct Seat {
    std::shared_ptr<Listener> listener;
    bool wants_launches;

    bool receives(EventKind kind) const { return kind != EventKind::kLaunch || wants_launches; }
  };

  void end(const Seat& seat, const CacheEvent& event) const noexcept;

  std::vector<Seat> seats_;
  bool wants_launches_ = false;
  std::uint64_t hits_mask_ = UINT64_MAX;
};

}  // namespace graphcache
