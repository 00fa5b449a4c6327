// Finds differences between two recordings of one `fn`, for verify mode (lib/run/stale.cc).
#pragma once

#include <optional>
#include <string>

#include "graph/template.h"

namespace graphcache {

// Returns the first difference between the kept template and a new recording of `fn`, as a sentence for people: the
// node, the kernel's name, the argument's index, both values, and what they point to. The sentence is empty if there is
// no difference. Returns nothing if one of the graphs could not be read.
//
// Nodes are compared in their order: types and dependencies, kernels, launch shapes, the launch attributes that a
// kernel can see, arguments, copies, sets, and host functions with their data. These may differ between two correct
// recordings and are left out:
// - arguments and fields that follow the same slot in both;
// - addresses in memory that the recording got for itself, by Recorder::on_device() or by an allocation node. Two of
//   them count as equal if they are at the same place of the same block;
// - priorities and other launch attributes that follow from the stream of the capture;
// - the insides of child graphs, and which events are recorded and waited for;
// - nodes of types that this code does not know, among them batches of copies.
// Arguments of kernels whose parameters the driver does not report are left out as well.
//
// Padding bytes of structures are compared like all others. So an argument with undefined padding may show a difference
// where there is none, and so may a stack address that a kernel gets and does not read.
//
// REQUIRES: the device of the graphs is current.
std::optional<std::string> first_difference(const Template& kept, const Content& of_kept, const Template& now,
                                            const Content& of_now);
// The same with a second new recording, made deeper in the stack and over other stack contents. Bytes of arguments that
// differ between the two new recordings do not count.
std::optional<std::string> first_difference(const Template& kept, const Content& of_kept, const Template& now,
                                            const Content& of_now, const Template& again, const Content& of_again);

}  // namespace graphcache
