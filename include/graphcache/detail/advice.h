// Messages of calls that do not compile. Not for users.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace graphcache::detail {

// Deleted functions with advice: compilers print their names.
// NOLINTBEGIN(google-explicit-constructor, readability-identifier-naming): the names are sentences.

// The base of Slot<T>. A slot does not convert to its value. So a slot as an argument or as the grid in <<<>>>, and
// arithmetic on a slot, select one of these deleted conversions. Compilers quote the comments behind them. A library's
// function takes no slot either: docs/libraries.md shows how changing pointers reach it.
template <class T>
struct a_slot_has_no_value_pass_it_to_rec_launch_or_pass_a_computed_result_to_params {
  operator T() const = delete;  // Pass the slot to rec.launch(). Compute before the run; pass the result to params().
  template <class U, std::enable_if_t<std::is_same_v<U, dim3> && !std::is_same_v<T, dim3>, int> = 0>
  operator U() const = delete;  // Pass the slot to rec.launch(): rec.launch(kernel, {slot, block}, args...).
};

// Accepts everything that is not a kernel: a template without its arguments, an overloaded function, a lambda.
struct name_the_template_arguments_of_the_kernel_as_in_rec_launch_scale_of_float {
  name_the_template_arguments_of_the_kernel_as_in_rec_launch_scale_of_float(...);
};

// NOLINTEND(google-explicit-constructor, readability-identifier-naming)

// Always false, but only when T is known. It is for a static_assert in a function that must not be called.
template <class T>
inline constexpr bool kNever = false;

// Whether the arguments with these numbers, counted from 1, are right. Of arguments that do not exist it is true.
constexpr bool are_right(std::size_t first, std::size_t last, std::initializer_list<bool> all) {
  for (std::size_t i = first; i <= last && i <= all.size(); ++i) {
    if (!all.begin()[i - 1]) return false;
  }
  return true;
}

// A static_assert for each of the arguments of a call, with the argument's number in the message. Behind `text`, such
// as "of launch() is wrong", is a pack expansion that has a bool for each argument.
// clang-format off
#define GRAPHCACHE_ASSERT_ARGUMENTS(text, ...) \
  GRAPHCACHE_ASSERT_ARGUMENT_(1, text, __VA_ARGS__); GRAPHCACHE_ASSERT_ARGUMENT_(2, text, __VA_ARGS__); \
  GRAPHCACHE_ASSERT_ARGUMENT_(3, text, __VA_ARGS__); GRAPHCACHE_ASSERT_ARGUMENT_(4, text, __VA_ARGS__); \
  GRAPHCACHE_ASSERT_ARGUMENT_(5, text, __VA_ARGS__); GRAPHCACHE_ASSERT_ARGUMENT_(6, text, __VA_ARGS__); \
  GRAPHCACHE_ASSERT_ARGUMENT_(7, text, __VA_ARGS__); GRAPHCACHE_ASSERT_ARGUMENT_(8, text, __VA_ARGS__); \
  GRAPHCACHE_ASSERT_ARGUMENT_(9, text, __VA_ARGS__); GRAPHCACHE_ASSERT_ARGUMENT_(10, text, __VA_ARGS__); \
  GRAPHCACHE_ASSERT_ARGUMENT_(11, text, __VA_ARGS__); GRAPHCACHE_ASSERT_ARGUMENT_(12, text, __VA_ARGS__); \
  static_assert(::graphcache::detail::are_right(13, SIZE_MAX, {__VA_ARGS__}), \
                "graphcache: an argument after the twelfth " text)
#define GRAPHCACHE_ASSERT_ARGUMENT_(number, text, ...) \
  static_assert(::graphcache::detail::are_right(number, number, {__VA_ARGS__}), \
                "graphcache: argument " #number " " text)
// clang-format on

}  // namespace graphcache::detail
