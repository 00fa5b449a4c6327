// Finds differences between two recordings of one `fn`, for verify mode (lib/run/verify_mode.cc).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/template.h"

namespace graphcache {

struct RecordedGraph {
  const Template& graph;
  const Content& content;
  // If the content's slots were found (found_values.h): the values that they have in a run.
  const unsigned char* values = nullptr;
};

// Returns the first difference between the kept template and a new recording of `fn`, as a sentence for people. It
// names the node, the kernel, the argument's index, both values, and what they point to. It is empty if there is no
// difference. Returns nothing if one of the graphs could not be read.
//
// Nodes are compared in their order: types, dependencies, kernels, launch shapes, arguments, copies, sets, and host
// functions with their data. Launch attributes are compared if a kernel can see them.
//
// An address that is the same is a difference as well if the memory there is another (Content::allocations).
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
// Without `further`, bytes that `fn` leaves undefined, such as the padding of structures, and addresses on the stack
// may seem to be differences. `further` are three more new recordings: two made at one place deeper in the stack and
// over the same other contents, and one over a third part of the stack and another heap. What differs among `now`, the
// first and the third is then no difference. But an argument is one if it differs between the first and the second:
// each call of `fn` changes it. Of addresses and of members of structures, that is said only if a value returns.
//
// REQUIRES: the device of the graphs is current.
std::optional<std::string> first_difference(RecordedGraph kept, RecordedGraph now,
                                            const std::vector<RecordedGraph>& further = {});

}  // namespace graphcache
