// What differs between two recordings of one `fn`: for verify mode (lib/run/stale.cc).
#pragma once

#include <optional>
#include <string>

#include "graph/template.h"

namespace graphcache {

// The first difference between what was kept and what `fn` records now, as a sentence for people: the node, the
// kernel's name, the argument's index, both values, and what they point to. Empty if there is none. Nothing if one of
// the graphs could not be read.
//
// Compared are the nodes in their order, their types and dependencies, kernels, launch shapes, the launch attributes
// that a kernel can see, arguments, copies, sets, and host functions with their data. Left out is what may differ
// between two right recordings:
// - arguments and fields that follow the same slot in both;
// - addresses in memory that the recording itself got: by Recorder::on_device(), or by an allocation node. They count
//   as equal if they are at the same place of the same block;
// - priorities and other launch attributes that follow from the stream of the capture;
// - what is inside of child graphs, and which events are recorded and waited for;
// - what nodes of types do that came after this was written, batches of copies among them.
// Arguments of kernels whose parameters the driver does not know are left out, too.
//
// Bytes between the members of a structure are compared like all others. An `fn` that leaves them undefined in an
// argument may show a difference that is none, and so may an address on the stack that a kernel gets and does not read.
//
// Current is the device that the graphs are of.
std::optional<std::string> first_difference(const Template& kept, const Content& of_kept, const Template& now,
                                            const Content& of_now);
// The same with a second recording of now, made deeper in the stack and over other bytes of it. Bytes of arguments that
// differ between these two do not count.
std::optional<std::string> first_difference(const Template& kept, const Content& of_kept, const Template& now,
                                            const Content& of_now, const Template& again, const Content& of_again);

}  // namespace graphcache
