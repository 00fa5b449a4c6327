// Call: a type-erased call of Cache::run() or Cache::warm(). Not for users.
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

// The place in the program where a run is made.
struct Site {
  const void* type;    // An address that is unique for the types of `fn` and its values.
  const void* target;  // Distinguishes callables of one type: see target().
  friend bool operator==(const Site& a, const Site& b) { return a.type == b.type && a.target == b.target; }
};

// A call of run() or warm() with its `fn` and the values of its params.
struct Call {
  Site site;
  void* fn;                                                                       // The address of the callable.
  absl::Status (*invoke)(void* fn, Recorder& recorder, std::uint64_t recording);  // Calls it.
  bool (*empty)(const void* fn);  // Whether it is a null pointer or an empty std::function.
  const unsigned char* values;    // The values of the params, as bytes.
  std::size_t values_size;        // The size of the values in bytes.
  bool is_adopted = false;        // Whether `fn` is the placeholder of an adopted graph (adopt.h).
  // Whether `fn` threw an exception. Its exceptions pass through; exceptions of the library do not.
  mutable bool threw = false;
};

// The entry that a step found in its previous run.
struct Remembered {
  HotEntry* entry = nullptr;
  std::uint64_t life = 0;      // HotEntry::life at that time. A different value means that the entry has a new key.
  const void* type = nullptr;  // Site::type of that run.
};

template <class Fn, class... Ts>
inline char site_tag = 0;  // Not const, because a linker may merge identical constants, but never objects.

// Returns the function pointer that `fn` holds if it has one of these types, else null.
template <class... Pointers, class Function>
const void* held_pointer(const Function& fn) {
  const void* held = nullptr;
  const auto look = [&](auto* const* pointer) {
    if (pointer != nullptr) held = reinterpret_cast<const void*>(*pointer);
  };
  (look(fn.template target<Pointers>()), ...);
  return held;
}

// Returns an address that distinguishes `fn` from others of its type, or null if there is none.
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

// Whether an `fn` of this type can be empty, as function pointers and std::function can.
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

// The status of an `fn` that returned this error.
absl::Status fn_failure(cudaError_t error);

// Makes a call and converts its result to a status.
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

// Calls `fn` with the stream of the run, or with its recorder and one slot for each value.
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
