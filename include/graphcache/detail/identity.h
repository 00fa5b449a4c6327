// Which types values() takes, and what of a value besides its bytes may decide which kernels a library chooses. Not for
// users.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "graphcache/detail/argument.h"

namespace graphcache::detail {

// Half and bfloat16, whatever their type is called.
template <class T, bool = std::is_class_v<T> || (std::is_arithmetic_v<T> && !std::is_integral_v<T>)>
inline constexpr bool kIsHalf = false;
template <class T>
inline constexpr bool kIsHalf<T, true> =
    sizeof(T) == 2 && std::is_trivially_copyable_v<T>&& std::is_convertible_v<const T&, float>;

template <class T>
inline constexpr bool kIsValue = std::is_same_v<T, float> || std::is_same_v<T, double> || kIsHalf<T> ||
                                 (std::is_pointer_v<T> && (std::is_object_v<std::remove_pointer_t<T>> ||
                                                           std::is_void_v<std::remove_pointer_t<T>>));

// Whether a parameter of `fn` may take a value. A conversion to an integer would decide by it.
template <class P>
inline constexpr bool kTakesValue = !std::is_integral_v<std::decay_t<P>> && !std::is_enum_v<std::decay_t<P>>;
struct TakesValues {
  template <class R, class First, class... P>
  static std::bool_constant<(... && kTakesValue<P>)> of(R (*)(First, P...));
  template <class R, class C, class First, class... P>
  static std::bool_constant<(... && kTakesValue<P>)> of(R (C::*)(First, P...));
  template <class R, class C, class First, class... P>
  static std::bool_constant<(... && kTakesValue<P>)> of(R (C::*)(First, P...) const);
};
// Of callables whose parameters are not known, such as generic lambdas, it is true.
template <class Fn, class = void>
inline constexpr bool kTakesValues = true;
template <class R, class... P>
inline constexpr bool kTakesValues<R (*)(P...)> = decltype(TakesValues::of(static_cast<R (*)(P...)>(nullptr)))::value;
template <class Fn>
inline constexpr bool kTakesValues<Fn, std::void_t<decltype(TakesValues::of(&Fn::operator()))>> =
    decltype(TakesValues::of(&Fn::operator()))::value;

// As what else a value may be passed on: a float as a double, and so on.
template <class T>
using Other = std::conditional_t<std::is_same_v<T, float>, double, float>;

// Where a value is among the values of a run, in bytes.
struct ValuePlace {
  std::size_t offset;
  std::size_t size;
  bool is_pointer;
  // How it becomes the other floating-point type, which has this size. Null for a pointer or a slot.
  Convert convert;
  std::size_t converted_size;
};
template <class T>
constexpr ValuePlace place_of_value(std::size_t offset) {
  if constexpr (std::is_pointer_v<T>) {
    return {offset, sizeof(T), true, nullptr, 0};
  } else {
    return {offset, sizeof(T), false, &convert<T, Other<T>>, sizeof(Other<T>)};
  }
}

constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t with) {
  hash = (hash ^ with) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

template <class T>
std::uint64_t kind_of_value(const T& value) {
  if constexpr (std::is_pointer_v<T>) {
    return value == nullptr ? 1 : 0x100 | (reinterpret_cast<std::uintptr_t>(value) & 0xff);
  } else {
    // A double may be passed on as a float.
    const auto number = static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(value);
    const auto rounded = static_cast<float>(number);
    return number == 0 ? 2 : number == 1 ? 3 : rounded == 0 ? 4 : rounded == 1 ? 5 : 6;
  }
}
template <class T>
const volatile void* address_of_value(const T& value) {
  if constexpr (std::is_pointer_v<T>) {
    return value;
  } else {
    return nullptr;
  }
}

template <class... Ts>
std::uint64_t identity_of(const Ts&... values) {
  const volatile void* const addresses[] = {address_of_value(values)..., nullptr};
  const std::uint64_t kinds[] = {kind_of_value(values)..., 0};
  std::uint64_t hash = sizeof...(Ts);
  for (std::size_t i = 0; i < sizeof...(Ts); ++i) {
    std::size_t equal = 0;  // The first value that is the same address.
    while (addresses[i] != nullptr && addresses[equal] != addresses[i]) ++equal;
    hash = mix(hash, kinds[i] << 16 | equal);
  }
  return hash | 1;
}

}  // namespace graphcache::detail
