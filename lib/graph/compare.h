// Finds differences between two recordings of one `fn`, for verify mode (lib/run/verify_mode.cc).
#pragma once

#include <optional>
#include <string>

#include "graph/template.h"

namespace graphcache {

// Returns the first difference between the kept template and a new recording of `fn`, as a sentence for people. It
// names the node, the kernel, the argument's index, both values, and what they point to. It is empty if there is no
// difference. Returns nothing if one of the graphs could not be read.
//
// Nodes are compared in their order: types, dependencies, kernels, launch shapes, arguments, copies, sets, and host
// functions with their data. Launch attributes are compared if a kernel can see them.
//
// Fields that may differ between two correct recordings are left out. Arguments and fields may follow the same slot in
// both. The recording may have memory of its own, which it keeps (Recorder::keep) or allocates. Two addresses in
// such memory count as equal if they are at the same place of the same block. Priorities and other launch attributes
// may follow from the stream of the capture.
//
// Some parts are not examined: the insides of child graphs, and which events are recorded and waited for. The same
// applies to nodes of types that this code does not know, such as batches of copies. Arguments of kernels are left out
// if the driver does not report the kernel's parameters.
//
// Padding bytes of structures are compared like all others. So an argument with undefined padding may show a difference
// where there is none. A stack address may do so as well, if a kernel gets it and does not read it.
//
// REQUIRES: the device of the graphs is current.
std::optional<std::string> first_difference(const Template& kept, const Content& of_kept, const Template& now,
                                            const Content& of_now);
// The same with a second new recording, made deeper in the stack and over other stack contents. Bytes of arguments that
// differ between the two new recordings do not count.
std::optional<std::string> first_difference(const Template& kept, const Content& of_kept, const Template& now,
                                            const Content& of_now, const Template& again, const Content& of_again);

}  // namespace graphcache
