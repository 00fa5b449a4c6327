// Deleted functions with advice: compilers print their names when a call does not compile. Not for users.
#pragma once

#include <vector_types.h>

#include <type_traits>

namespace graphcache::detail {

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

}  // namespace graphcache::detail
