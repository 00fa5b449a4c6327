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

struct AnyValue {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
struct AnyCallable {
  template <class... A>
  AnyValue operator()(A&&...) const;
};
template <class R, bool kNoexcept, class... A>
using FunctionPointer = R (*)(A...) noexcept(kNoexcept);
struct AnyFunctionPointer {
  template <class R, bool kNoexcept, class... A>
  operator FunctionPointer<R, kNoexcept, A...>() const;  // NOLINT(google-explicit-constructor)
};

// Whether the aggregate's member behind these is a function pointer.
template <class Fn, class Members, class = void>
inline constexpr bool kNextIsFunction = false;
template <class Fn, std::size_t... I>
inline constexpr bool
    kNextIsFunction<Fn, std::index_sequence<I...>,
                    std::void_t<decltype(Fn{(static_cast<void>(I), AnyValue())..., AnyFunctionPointer()})>> = true;
template <class Fn, std::size_t... I>
constexpr bool holds_function_pointer(std::index_sequence<I...>) {
  if constexpr (std::is_aggregate_v<Fn>) return (... || kNextIsFunction<Fn, std::make_index_sequence<I>>);
  return false;
}

template <class Fn>
inline constexpr bool kIsStdFunction = false;
template <class R, class... A>
inline constexpr bool kIsStdFunction<std::function<R(A...)>> = true;

// Whether objects of the type call different code, without a way to see which: std::bind, functors with a function
// pointer among their first members, and wrappers that can be made of any callable.
template <class Fn>
inline constexpr bool kHidesItsCode = std::is_bind_expression_v<Fn> ||
                                      holds_function_pointer<Fn>(std::make_index_sequence<8>()) ||
                                      (std::is_class_v<Fn> && !kIsStdFunction<Fn> &&
                                       std::is_constructible_v<Fn, AnyCallable>);

// ---- Known when called ----

// Whether a std::function that holds this type hides its code: pointers to functions and members, and callables of the
// standard library.
bool hides_its_code(const std::type_info& type);

// What `fn` calls. `of` returns an address that distinguishes `fn` from others of its type, or null if there is none.
// `unfit` returns why it cannot be run, or null.
template <class Fn, class = void>
struct Target {
  static constexpr bool kIsHidden = kHidesItsCode<Fn>;
  static const void* of(const Fn&) { return nullptr; }
  static const char* unfit(const Fn&) { return nullptr; }
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
        pointer_in<void (*)(A...), cudaError_t (*)(A...), absl::Status (*)(A...), void (*)(A...) noexcept,
                   cudaError_t (*)(A...) noexcept, absl::Status (*)(A...) noexcept>(fn);
    return pointer != nullptr ? pointer : &fn.target_type();
  }
  static const char* unfit(const Function& fn) {
    if (!fn) return "fn is empty";
    if (of(fn) != &fn.target_type() || !hides_its_code(fn.target_type())) return nullptr;
    return "fn is a std::function whose code cannot be told from other code: it holds a function pointer of another "
           "signature, std::bind or the like. Let it hold a lambda, or pass a lambda and name the function in the key";
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
