// One call of Cache::run() or Cache::warm(), its types erased. Not for users.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "graphcache/detail/hit.h"
#include "graphcache/params.h"
#include "graphcache/recorder.h"

namespace graphcache::detail {

// The place of the program that a run is made at.
struct Site {
  const void* type;    // One address per type of `fn` and of its values.
  const void* target;  // The function behind a pointer or std::function, else null.
  friend bool operator==(const Site& a, const Site& b) { return a.type == b.type && a.target == b.target; }
};

// The call.
struct Call {
  Site site;
  void* fn;
  absl::Status (*invoke)(void* fn, Recorder& recorder, std::uint64_t recording);
  bool (*empty)(const void* fn);
  const unsigned char* values;
  std::size_t values_size;
  bool is_adopted = false;     // Whether `fn` only stands for an adopted graph (adopt.h).
  mutable bool threw = false;  // Whether `fn` did: its exceptions pass, those of the library do not.
};

// Where a step found its entry.
struct Remembered {
  HotEntry* entry = nullptr;
  std::uint64_t life = 0;      // Of the entry.
  const void* type = nullptr;  // Of the site.
};

template <class Fn, class... Ts>
inline char site_tag = 0;  // Not const: identical constants may be merged by a linker, objects not.

// The function pointer of one of these types that `fn` holds, or null.
template <class... Pointers, class Function>
const void* held_pointer(const Function& fn) {
  const void* held = nullptr;
  const auto look = [&](auto* const* pointer) {
    if (pointer != nullptr) held = reinterpret_cast<const void*>(*pointer);
  };
  (look(fn.template target<Pointers>()), ...);
  return held;
}

// What tells two `fn` of one type apart, or null.
template <class Fn>
const void* target(const Fn& fn) {
  if constexpr (std::is_pointer_v<Fn> && std::is_function_v<std::remove_pointer_t<Fn>>) {
    return reinterpret_cast<const void*>(fn);
  } else {
    return nullptr;
  }
}
template <class R, class... A>
const void* target(const std::function<R(A...)>& fn) {
  const void* held =
      held_pointer<void (*)(A...), cudaError_t (*)(A...), absl::Status (*)(A...), void (*)(A...) noexcept,
                   cudaError_t (*)(A...) noexcept, absl::Status (*)(A...) noexcept>(fn);
  return held != nullptr ? held : &fn.target_type();
}

template <class Fn, class = void>
inline constexpr bool kMayBeEmpty = std::is_pointer_v<Fn>;
template <class Fn>
inline constexpr bool kMayBeEmpty<Fn, std::void_t<decltype(std::declval<const Fn&>().operator bool())>> = true;

template <class Fn>
bool is_empty([[maybe_unused]] const void* fn) {
  if constexpr (kMayBeEmpty<Fn>) {
    return !static_cast<bool>(*static_cast<const Fn*>(fn));
  } else {
    return false;
  }
}

absl::Status fn_failure(cudaError_t error);

template <class Call>
absl::Status status_of(Call&& call) {
  using Result = decltype(call());
  static_assert(std::is_void_v<Result> || std::is_same_v<Result, cudaError_t> || std::is_same_v<Result, absl::Status>,
                "graphcache: fn must return nothing, a cudaError_t or an absl::Status");
  if constexpr (std::is_void_v<Result>) {
    call();
    return absl::OkStatus();
  } else if constexpr (std::is_same_v<Result, cudaError_t>) {
    return fn_failure(call());
  } else {
    return call();
  }
}

// Calls fn with the run's stream, or with its recorder and a slot for each value.
template <class Fn, class... Ts>
struct Invoker {
  static constexpr bool kTakesRecorder = std::is_invocable_v<Fn&, Recorder&, Slot<Ts>...>;
  static constexpr bool kTakesStream = sizeof...(Ts) == 0 && std::is_invocable_v<Fn&, cudaStream_t>;

  static absl::Status invoke(void* fn, Recorder& recorder, std::uint64_t recording) {
    return invoke(*static_cast<Fn*>(fn), recorder, recording, std::index_sequence_for<Ts...>());
  }

 private:
  template <std::size_t... I>
  static absl::Status invoke(Fn& fn, Recorder& recorder, [[maybe_unused]] std::uint64_t recording,
                             std::index_sequence<I...>) {
    if constexpr (kTakesRecorder) {
      return status_of([&]() -> decltype(auto) {
        return fn(recorder, SlotAccess::make<Ts>(recording, Params<Ts...>::offset(I))...);
      });
    } else {
      return status_of([&]() -> decltype(auto) { return fn(recorder.stream()); });
    }
  }
};

}  // namespace graphcache::detail
