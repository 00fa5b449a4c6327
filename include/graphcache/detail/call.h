// Call: a type-erased call of Cache::run() or Cache::warm(). Not for users.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>
#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "graphcache/detail/identity.h"
#include "graphcache/detail/target.h"
#include "graphcache/graph.h"
#include "graphcache/params.h"
#include "graphcache/recorder.h"
#include "graphcache/stop.h"
#include "graphcache/values.h"

namespace graphcache::detail {

struct HotEntry;
struct Hits;

// The place in the program where a run is made.
struct Site {
  const void* type;            // An address that is unique for the types of `fn` and its values in their module.
  const void* target;          // Distinguishes callables of one type (Target).
  std::int64_t module;         // When the module was loaded. Code of another module may have taken its addresses since.
  std::uint64_t identity = 0;  // Values::identity(), or 0 for a run without them.
  friend bool operator==(const Site& a, const Site& b) { return a.is_like(b) && a.identity == b.identity; }
  // Whether at most the identity differs.
  bool is_like(const Site& other) const {
    return type == other.type && target == other.target && module == other.module;
  }
};

// Two shared objects may have different types of the same name, so each has its own tags and time.
#pragma GCC visibility push(hidden)  // As an attribute, nvcc warns of it where a type is local.
template <class Fn, class... Ts>
struct SiteTag {
  static inline char value = 0;  // Not const, because a linker may merge identical constants.
};
#pragma GCC visibility pop
[[gnu::visibility("hidden")]] inline const std::int64_t loaded_at =
    std::chrono::steady_clock::now().time_since_epoch().count();

// What is known of `fn` and of the params or values by their types.
struct Callee {
  // Calls it.
  absl::Status (*invoke)(void* fn, Recorder& recorder, std::uint64_t recording, const unsigned char* values);
  absl::StatusOr<Graph> (*make)(void* fn);  // Calls it if it takes nothing and returns a graph; else null.
  const char* (*unfit)(const void* fn);     // Why it cannot be run, or null.
  absl::Span<const ValuePlace> places;      // Empty for a ValueList, which has them.
  bool gets_values = false;                 // Whether it gets values, not slots.
};

// A call of run() or warm() with its `fn` and its params or values.
struct Call {
  Site site;
  void* fn;  // The address of the callable.
  const Callee* callee;
  const unsigned char* values;      // The params or values, as bytes.
  std::size_t values_size;          // Their size in bytes.
  const ValueList* list = nullptr;  // The values, if they are one.
  // Whether `fn` threw an exception. Its exceptions pass through; exceptions of the library do not.
  mutable bool threw = false;

  bool makes_graph() const { return callee->make != nullptr; }
  bool gets_values() const { return callee->gets_values; }
  absl::Span<const ValuePlace> places() const { return list != nullptr ? list->places() : callee->places; }
  const char* unfit() const { return callee->unfit(fn); }
};

// The entry that a step found in its previous run.
struct Remembered {
  HotEntry* entry = nullptr;
  std::uint64_t life = 0;  // HotEntry::life at that time. If it has changed, the entry has a new key.
  Site site = {};          // The place of that run.
};

template <class Fn>
const char* unfit(const void* fn) {
  return Target<Fn>::unfit(*static_cast<const Fn*>(fn));
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

// Depends on Fn, so that a program may specialise OrdersToStop after it has included this header.
template <class Fn>
struct WhenCalled {
  using Void = void;
};

// Makes a call and notes exceptions of these types.
template <class Call>
absl::Status noting_orders_to_stop(Call&& call, Recorder&, TypeList<>) {
  return call();
}
#ifdef __cpp_exceptions
template <class Call, class T, class... Ts>
absl::Status noting_orders_to_stop(Call&& call, Recorder& recorder, TypeList<T, Ts...>) {
  try {
    return noting_orders_to_stop(call, recorder, TypeList<Ts...>());
  } catch (const T&) {
    note_order_to_stop(recorder);
    throw;
  }
}
#endif

// Whether a call without arguments returns a graph.
template <class Fn, class = void>
inline constexpr bool kMakesGraph = false;
template <class Fn>
inline constexpr bool kMakesGraph<Fn, std::enable_if_t<std::is_invocable_v<Fn&>>> =
    std::is_convertible_v<std::invoke_result_t<Fn&>, absl::StatusOr<Graph>> &&
    !std::is_convertible_v<std::invoke_result_t<Fn&>, absl::Status>;

#pragma GCC visibility push(hidden)  // As SiteTag.
// Calls `fn` with the stream of the run, or with its recorder and one slot for each value, or for its graph.
template <class Fn, class... Ts>
struct Invoker {
  template <class F>
  using Tag = SiteTag<F, Ts...>;
  static constexpr bool kTakesRecorder = std::is_invocable_v<Fn&, Recorder&, Slot<Ts>...>;
  static constexpr bool kTakesStream = sizeof...(Ts) == 0 && std::is_invocable_v<Fn&, cudaStream_t>;

  static absl::Status invoke(void* fn, Recorder& recorder, std::uint64_t recording, const unsigned char*) {
    return noting_orders_to_stop(
        [&] { return invoke(*static_cast<Fn*>(fn), recorder, recording, std::index_sequence_for<Ts...>()); }, recorder,
        typename OrdersToStop<typename WhenCalled<Fn>::Void>::Types());
  }
  static absl::StatusOr<Graph> make(void* fn) { return (*static_cast<Fn*>(fn))(); }
  static constexpr Callee callee() {
    if constexpr (kTakesRecorder || kTakesStream) {
      return {&invoke, nullptr, &detail::unfit<std::remove_cv_t<Fn>>, kPlaces};
    } else {
      return {nullptr, &make, &detail::unfit<std::remove_cv_t<Fn>>, kPlaces};
    }
  }

 private:
  template <std::size_t... I>
  static constexpr std::array<ValuePlace, sizeof...(Ts)> places(std::index_sequence<I...>) {
    return {ValuePlace{Params<Ts...>::offset(I), sizeof(Ts), false, nullptr, 0}...};
  }
  static constexpr std::array<ValuePlace, sizeof...(Ts)> kPlaces = places(std::index_sequence_for<Ts...>());

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

// Calls `fn` with the stream or the recorder of the run and its values.
template <class Fn, class... Ts>
struct ValuesInvoker {
  template <class F>
  using Tag = SiteTag<F, Values<Ts...>>;
  static constexpr bool kTakesRecorder = std::is_invocable_v<Fn&, Recorder&, const Ts&...>;
  static constexpr bool kTakesStream = std::is_invocable_v<Fn&, cudaStream_t, const Ts&...>;

  static absl::Status invoke(void* fn, Recorder& recorder, std::uint64_t, const unsigned char* values) {
    return noting_orders_to_stop(
        [&] { return invoke(*static_cast<Fn*>(fn), recorder, values, std::index_sequence_for<Ts...>()); }, recorder,
        typename OrdersToStop<typename WhenCalled<Fn>::Void>::Types());
  }
  static constexpr Callee callee() { return {&invoke, nullptr, &detail::unfit<std::remove_cv_t<Fn>>, kPlaces, true}; }

 private:
  template <std::size_t... I>
  static constexpr std::array<ValuePlace, sizeof...(Ts)> places(std::index_sequence<I...>) {
    return {place_of_value<Ts>(Params<Ts...>::offset(I))...};
  }
  static constexpr std::array<ValuePlace, sizeof...(Ts)> kPlaces = places(std::index_sequence_for<Ts...>());

  template <std::size_t... I>
  static absl::Status invoke(Fn& fn, Recorder& recorder, [[maybe_unused]] const unsigned char* values,
                             std::index_sequence<I...>) {
    return status_of([&]() -> decltype(auto) {
      if constexpr (kTakesRecorder) {
        return fn(recorder, *reinterpret_cast<const Ts*>(values + Params<Ts...>::offset(I))...);
      } else {
        return fn(recorder.stream(), *reinterpret_cast<const Ts*>(values + Params<Ts...>::offset(I))...);
      }
    });
  }
};

// Calls `fn` with the stream or the recorder of the run, and all values as one argument.
template <class Fn>
struct ValuesInvoker<Fn, ValueList> {
  template <class F>
  using Tag = SiteTag<F, ValueList>;
  static constexpr bool kTakesRecorder = std::is_invocable_v<Fn&, Recorder&, const ListedValues&>;
  static constexpr bool kTakesStream = std::is_invocable_v<Fn&, cudaStream_t, const ListedValues&>;

  static absl::Status invoke(void* fn, Recorder& recorder, std::uint64_t, const unsigned char* values) {
    const auto call = [&]() -> decltype(auto) {
      if constexpr (kTakesRecorder) {
        return (*static_cast<Fn*>(fn))(recorder, ListedValues(values));
      } else {
        return (*static_cast<Fn*>(fn))(recorder.stream(), ListedValues(values));
      }
    };
    return noting_orders_to_stop([&] { return status_of(call); }, recorder,
                                 typename OrdersToStop<typename WhenCalled<Fn>::Void>::Types());
  }
  static constexpr Callee callee() { return {&invoke, nullptr, &detail::unfit<std::remove_cv_t<Fn>>, {}, true}; }
};

template <class Invoker>
struct CalleeOf {
  static constexpr Callee value = Invoker::callee();
};

// An overload with this parameter takes params or values.
template <class T>
inline constexpr bool kIsGiven = false;
template <class... Ts>
inline constexpr bool kIsGiven<Params<Ts...>> = true;
template <class... Ts>
inline constexpr bool kIsGiven<Values<Ts...>> = true;
template <class T>
using IfGiven = std::enable_if_t<kIsGiven<T>, int>;

template <class Invoker, class Given, class Fn>
Call make_call_by(const Given& given, Fn& fn) {
  using Bare = std::remove_cv_t<Fn>;
  constexpr bool can_be_told_apart = !Target<Bare>::kIsHidden;
  static_assert(can_be_told_apart,
                "graphcache: objects of fn's type may call different functions, whose graphs would be taken for each "
                "other: pass a lambda that makes the call, and name the function in the key");
  if constexpr (can_be_told_apart) {
    const void* const address = std::addressof(fn);
    return {{&Invoker::template Tag<Bare>::value, Target<Bare>::of(fn), loaded_at},
            const_cast<void*>(address),
            &CalleeOf<Invoker>::value,
            given.data(),
            given.size()};
  } else {
    return {};
  }
}

template <class... Ts, class Fn>
Call make_call(const Params<Ts...>& params, Fn& fn) {
  using ThisInvoker = Invoker<Fn, Ts...>;
  constexpr bool can_be_called = ThisInvoker::kTakesRecorder || ThisInvoker::kTakesStream || kMakesGraph<Fn>;
  static_assert(can_be_called,
                "graphcache: with params, fn must take a graphcache::Recorder& and one graphcache::Slot<T> for each of "
                "them, of the same types in the same order; without, a cudaStream_t or a graphcache::Recorder&, or "
                "nothing if it returns a graphcache::Graph");
  if constexpr (can_be_called) {
    return make_call_by<ThisInvoker>(params, fn);
  } else {
    return {};
  }
}

template <class... Ts, class Fn>
Call make_call(const Values<Ts...>& values, Fn& fn) {
  using ThisInvoker = ValuesInvoker<Fn, Ts...>;
  constexpr bool can_be_called = ThisInvoker::kTakesRecorder || ThisInvoker::kTakesStream;
  static_assert(can_be_called,
                "graphcache: fn must take a cudaStream_t or a graphcache::Recorder&, and then the values, of the same "
                "types in the same order");
  constexpr bool takes_values = kTakesValues<std::remove_cv_t<Fn>>;
  static_assert(takes_values,
                "graphcache: fn takes a value as an integer, an enumerator or a bool, and so decides by it: put that "
                "into the key, or make it a slot by params()");
  if constexpr (can_be_called && takes_values) {
    Call call = make_call_by<ThisInvoker>(values, fn);
    call.site.identity = values.identity();
    call.list = values.list();
    return call;
  } else {
    return {};
  }
}

// Calls use(call). A function is called by its address.
template <class Given, class Fn, class Use>
auto with_call(const Given& given, Fn& fn, Use&& use) {
  if constexpr (std::is_function_v<Fn>) {
    auto* const address = &fn;
    return use(make_call(given, address));
  } else {
    return use(make_call(given, fn));
  }
}
#pragma GCC visibility pop

}  // namespace graphcache::detail
