// What distinguishes callables of one type, and which callables hide their code. Not for users.
#pragma once

#include <absl/status/status.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace graphcache::detail {

// ---- Known when compiled ----

struct AnyResult {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
struct AnyCallable {
  template <class... A>
  AnyResult operator()(A&&...) const;
};

// An initialiser for a member of an aggregate, of any type. With kSplits, a member that is an aggregate itself takes
// one initialiser for each of its own members, as braces may be left out.
template <bool kSplits>
struct AnyMember {
  template <class T, std::enable_if_t<!std::is_aggregate_v<T>, int> = 0>
  operator T&() const&;  // NOLINT(google-explicit-constructor)
  template <class T, std::enable_if_t<!std::is_aggregate_v<T>, int> = 0>
  operator T&&() const&&;  // NOLINT(google-explicit-constructor)
};
template <>
struct AnyMember</*kSplits=*/false> {
  template <class T>
  operator T&() const;  // NOLINT(google-explicit-constructor)
};

// An initialiser for pointers to functions and to member functions, and for std::function.
template <class R, bool kNoexcept, class... A>
using FunctionPointer = R (*)(A...) noexcept(kNoexcept);
struct AnyFunction {
  template <class R, bool kNoexcept, class... A>
  operator FunctionPointer<R, kNoexcept, A...>() const;  // NOLINT(google-explicit-constructor)
  template <class F, class C, std::enable_if_t<std::is_function_v<F>, int> = 0>
  operator F C::*() const;  // NOLINT(google-explicit-constructor)
  template <class R, class... A>
  operator std::function<R(A...)>() const;  // NOLINT(google-explicit-constructor)
};

// Whether the aggregate's member behind these is one of these functions.
template <bool kSplits, class Fn, class Members, class = void>
inline constexpr bool kNextIsFunction = false;
template <bool kSplits, class Fn, std::size_t... I>
inline constexpr bool
    kNextIsFunction<kSplits, Fn, std::index_sequence<I...>,
                    std::void_t<decltype(Fn{(static_cast<void>(I), AnyMember<kSplits>())..., AnyFunction()})>> = true;
template <class Fn, std::size_t... I>
constexpr bool holds_function(std::index_sequence<I...>) {
  if constexpr (std::is_aggregate_v<Fn>) {
    return (... || (kNextIsFunction<true, Fn, std::make_index_sequence<I>> ||
                    kNextIsFunction<false, Fn, std::make_index_sequence<I>>));
  }
  return false;
}

template <class Fn>
inline constexpr bool kIsStdFunction = false;
template <class R, class... A>
inline constexpr bool kIsStdFunction<std::function<R(A...)>> = true;

// Whether objects of the type call different code, without a way to see which: std::bind, aggregates with a function
// among their members, and wrappers that can be made of any callable.
template <class Fn>
inline constexpr bool kHidesItsCode = std::is_bind_expression_v<Fn> ||
                                      holds_function<Fn>(std::make_index_sequence<32>()) ||
                                      (std::is_class_v<Fn> && !std::is_aggregate_v<Fn> && !kIsStdFunction<Fn> &&
                                       std::is_constructible_v<Fn, AnyCallable>);

// ---- Known when called ----

// Whether callables of this type hide their code: pointers to functions and members, and callables of the standard
// library and of Abseil.
bool hides_its_code(const std::type_info& type);
inline constexpr const char* kHidesItsCodeText =
    "fn calls code that cannot be told from other code, since it is, or is a std::function that holds, a function "
    "pointer "
    "of another signature, std::bind_front or the like: pass a lambda that makes the call, and name the function in "
    "the "
    "key";

// What `fn` calls. `of` returns an address that distinguishes `fn` from others of its type, or null if there is none.
// `unfit` returns why it cannot be run, or null.
template <class Fn, class = void>
struct Target {
  static constexpr bool kIsHidden = kHidesItsCode<Fn>;
  static const void* of(const Fn& fn) {
    if constexpr (std::is_polymorphic_v<Fn>) return &typeid(fn);
    return nullptr;
  }
  static const char* unfit(const Fn&) { return hides_its_code(typeid(Fn)) ? kHidesItsCodeText : nullptr; }
};

template <class Fn>
struct Target<Fn*, std::enable_if_t<std::is_function_v<Fn>>> {
  static constexpr bool kIsHidden = false;
  static const void* of(Fn* fn) { return reinterpret_cast<const void*>(fn); }
  static const char* unfit(Fn* fn) { return fn == nullptr ? "fn is empty" : nullptr; }
};

template <class R, class... A>
struct Target<std::function<R(A...)>> {
  using Function = std::function<R(A...)>;
  static constexpr bool kIsHidden = false;

  static const void* of(const Function& fn) {
    const void* const pointer =
        pointer_in<R (*)(A...), void (*)(A...), cudaError_t (*)(A...), absl::Status (*)(A...), R (*)(A...) noexcept,
                   void (*)(A...) noexcept, cudaError_t (*)(A...) noexcept, absl::Status (*)(A...) noexcept>(fn);
    return pointer != nullptr ? pointer : &fn.target_type();
  }
  static const char* unfit(const Function& fn) {
    if (!fn) return "fn is empty";
    if (of(fn) != &fn.target_type() || !hides_its_code(fn.target_type())) return nullptr;
    return kHidesItsCodeText;
  }

 private:
  // The function pointer that `fn` holds if it has one of these types, else null.
  template <class... Pointers>
  static const void* pointer_in(const Function& fn) {
    const void* held = nullptr;
    const auto look = [&](auto* const* pointer) {
      if (pointer != nullptr) held = reinterpret_cast<const void*>(*pointer);
    };
    (look(fn.template target<Pointers>()), ...);
    return held;
  }
};

template <class Fn>
struct Target<std::reference_wrapper<Fn>> {
  using Inner = Target<std::conditional_t<std::is_function_v<Fn>, Fn*, std::remove_cv_t<Fn>>>;
  static constexpr bool kIsHidden = Inner::kIsHidden;
  static const void* of(const std::reference_wrapper<Fn>& fn) { return Inner::of(fn.get()); }
  static const char* unfit(const std::reference_wrapper<Fn>& fn) { return Inner::unfit(fn.get()); }
};

// A callable that wraps another one and has it as graphcache_callee().
template <class Fn>
struct Target<Fn, std::void_t<decltype(std::declval<const Fn&>().graphcache_callee())>> {
  using Inner = Target<std::decay_t<decltype(std::declval<const Fn&>().graphcache_callee())>>;
  static constexpr bool kIsHidden = Inner::kIsHidden;
  static const void* of(const Fn& fn) { return Inner::of(fn.graphcache_callee()); }
  static const char* unfit(const Fn& fn) { return Inner::unfit(fn.graphcache_callee()); }
};

}  // namespace graphcache::detail
