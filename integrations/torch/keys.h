// The keys of runs: what of the key, fn and the arguments counts by value, and what moves. For module.cc.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <graphcache/graphcache.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arguments.h"

namespace graphcache {
namespace [[gnu::visibility("hidden")]] torch_keys {  // As pybind11's.

// What a run passes that may change from run to run: the floats among its arguments, and the tensors.
struct Arguments {
  enum class Tensors {
    kStay,    // in the key
    kMove,    // in the list
    kCopied,  // into buffers of the key
  };
  explicit Arguments(c10::DeviceIndex of_cache, Tensors how = Tensors::kStay, bool do_numbers_move = false)
      : device(of_cache), tensors(how), numbers_move(do_numbers_move) {}

  c10::DeviceIndex device;  // of the cache
  Tensors tensors;
  bool numbers_move;  // whether floats are in the list, and not in the key
  graphcache::ValueList list;
  bool has_numbers = false;  // whether floats are in it
  std::vector<at::Tensor> copied;
  std::vector<std::size_t> firsts;   // firsts_of() these, once make_key() has taken them
  bool must_stay = false;            // whether a list, dict or dataclass is met both in an object and outside
  const char* why_direct = nullptr;  // why a graph would be wrong, if it would

  // One that requires gradients is a parameter, as a rule.
  static bool may_move(const at::Tensor& tensor, c10::DeviceIndex device) {
    return !tensor.requires_grad() && tensor.get_device() == device;
  }
  static bool may_be_copied(const at::Tensor& tensor, c10::DeviceIndex device) {
    return may_move(tensor, device) && !tensor.is_conj() && !tensor.is_neg() &&
           at::has_internal_overlap(tensor) != at::MemOverlap::Yes;
  }
  bool take(const at::Tensor& tensor) {
    if (tensors == Tensors::kCopied && may_be_copied(tensor, device)) {
      copied.push_back(tensor);
      return true;
    }
    if (tensors != Tensors::kMove || !may_move(tensor, device) || is_full()) return false;
    add(tensor, &list);
    return true;
  }
  static void add(const at::Tensor& tensor, graphcache::ValueList* to) {
    const c10::Storage& storage = tensor.storage();
    to->add(tensor.data_ptr(), storage.data(), storage.nbytes());
  }
  bool take(double number) {
    if (!numbers_move || is_full()) return false;
    has_numbers = true;
    list.add(number);
    return true;
  }
  // For each of these tensors the number of the first one that is the same, or nothing if two have memory in common
  // and are not the same. Their buffers would not have it in common.
  static std::optional<std::vector<std::size_t>> firsts_of(const std::vector<at::Tensor>& copied) {
    std::vector<std::size_t> order(copied.size()), firsts(copied.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto memory = [&](std::size_t i) { return copied[i].storage().data(); };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return std::less<>()(memory(a), memory(b)); });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const at::Tensor& tensor = copied[order[i]];
      firsts[order[i]] = order[i];
      if (i == 0 || memory(order[i]) != memory(order[i - 1]) || memory(order[i]) == nullptr) continue;
      firsts[order[i]] = firsts[order[i - 1]];
      const at::Tensor& first = copied[firsts[order[i]]];
      const bool is_same = tensor.data_ptr() == first.data_ptr() && tensor.scalar_type() == first.scalar_type() &&
                           tensor.sizes() == first.sizes() && tensor.strides() == first.strides();
      if (!is_same) return std::nullopt;
    }
    return firsts;
  }
  bool is_full() const { return list.size() == graphcache::ValueList::kMost; }
};

// The holders that were met, each with its number. One that is met again is a part by its number: so an object may
// contain itself, and fn may ask whether two arguments are one object.
struct Met {
  struct Holder {
    std::size_t number;
    bool is_open;       // whether its parts are being added
    bool is_in_object;  // where fn reads what the arguments hold, and not what is copied
    py::object object;  // it must exist meanwhile
  };
  std::unordered_map<PyObject*, Holder> holders;
};

// The objects whose addresses the keys contain that this thread makes meanwhile.
class Identities {
 public:
  using Objects = std::unordered_map<PyObject*, py::object>;
  Identities() : outer_(std::exchange(current, this)) {}
  ~Identities() { current = outer_; }
  Identities(const Identities&) = delete;
  Identities& operator=(const Identities&) = delete;

  static void note(PyObject* object) {
    if (current != nullptr) current->objects_.try_emplace(object, py::reinterpret_borrow<py::object>(object));
  }
  // The gradient and the history of one that requires gradients are those of the object.
  static void note_tensor(PyObject* part) {
    if (!is_exact_tensor(part) || THPVariable_Unpack(part).requires_grad()) note(part);
  }

  Objects take() { return std::exchange(objects_, {}); }

 private:
  static inline thread_local Identities* current = nullptr;
  Identities* const outer_;
  Objects objects_;
};

// Where a part of a key is.
struct Where {
  Arguments* arguments;  // null in the key itself
  Met& met;
  bool is_in_object = false;
  int depth = 0;  // number of holders around it

  bool is_in_key() const { return arguments == nullptr && !is_in_object; }
};

inline void add(Keyer& keyer, PyObject* part, const Where& where);
inline void add_callable(Keyer& keyer, PyObject* fn);

// What a holder holds, for graphcache_key.
struct Parts {
  PyObject* of;
  Holder holder;
  Where where;
};
inline void graphcache_key(Keyer& keyer, const Parts& parts) {
  const auto& [of, holder, where] = parts;
  check_depth(where.depth);
  const bool is_object = holder == Holder::kObject;
  const Where inner{where.arguments, where.met, where.is_in_object || is_object, where.depth + 1};
  if (is_mutable(of, holder)) {
    const auto [met, is_new] = where.met.holders.try_emplace(
        of, Met::Holder{where.met.holders.size(), true, inner.is_in_object, py::reinterpret_borrow<py::object>(of)});
    if (!is_new) {
      if (met->second.is_open && !inner.is_in_object) {
        throw py::value_error("graphcache: a container in a key or an argument contains itself");
      }
      const bool is_both = met->second.is_in_object != inner.is_in_object;
      if (is_both && inner.arguments != nullptr) inner.arguments->must_stay = true;
      keyer.add(nullptr, met->second.number);
      return;
    }
  }
  const Where of_name{nullptr, where.met, true, inner.depth};
  for_each_part(of, holder, [&](PyObject* name, PyObject* part) {
    if (name != nullptr) add(keyer, name, of_name);
    add(keyer, part, inner);
  });
  if (may_have_added(of, holder)) keyer.add(nullptr);
  for_each_added(of, holder, [&](PyObject* name, PyObject* value) {
    add(keyer, name, of_name);
    add(keyer, value, {where.arguments, where.met, true, inner.depth});
  });
  if (is_mutable(of, holder)) where.met.holders.find(of)->second.is_open = false;
}
// The same with its type.
struct Typed {
  const Parts& parts;
};
inline void graphcache_key(Keyer& keyer, const Typed& typed) {
  Identities::note(reinterpret_cast<PyObject*>(Py_TYPE(typed.parts.of)));
  keyer.add(static_cast<const void*>(Py_TYPE(typed.parts.of)), typed.parts);
}
struct PassedParts {
  const Passed& passed;
  Arguments* arguments;
};
inline void graphcache_key(Keyer& keyer, const PassedParts& parts) {
  Met met;
  keyer.add(parts.passed.by_position);
  for (Py_ssize_t i = 0; i < parts.passed.size(); ++i) {
    const Py_ssize_t name = i - parts.passed.by_position;
    if (name >= 0) add(keyer, PyTuple_GET_ITEM(parts.passed.names, name), {nullptr, met});
    add(keyer, parts.passed.values[i], {parts.arguments, met});
  }
}
struct TensorPart {
  const at::Tensor& tensor;
  bool moves = false;
};
struct Number {
  double value;
};
struct Callable {
  PyObject* fn;
};
// A value that differs in its type from an equal number or text.
struct OfType {
  PyObject* of;
  PyObject* value;  // a number or a text
};
// Not the encoding of an integer.
inline void graphcache_key(Keyer& keyer, const Number& number) {
  std::int64_t bits = 0;
  std::memcpy(&bits, &number.value, sizeof bits);
  keyer.add(std::optional<std::int64_t>(bits));
}
inline void graphcache_key(Keyer& keyer, const TensorPart& part) {
  const at::Tensor& tensor = part.tensor;
  const int flags = int{tensor.is_conj()} | int{tensor.is_neg()} << 1 | int{tensor.requires_grad()} << 2;
  keyer.add(part.moves ? nullptr : static_cast<const void*>(tensor.data_ptr()), static_cast<int>(tensor.scalar_type()),
            flags);
  // Its gradient and its history are those of the object.
  if (tensor.requires_grad()) keyer.add(static_cast<const void*>(tensor.unsafeGetTensorImpl()));
  for (const std::int64_t size : tensor.sizes()) keyer.add(size);
  keyer.add(nullptr);
  for (const std::int64_t stride : tensor.strides()) keyer.add(stride);
}
inline void graphcache_key(Keyer& keyer, const Callable& callable) {
  keyer.add(nullptr);
  add_callable(keyer, callable.fn);
}

inline std::string name_of_type(PyObject* object) { return Py_TYPE(object)->tp_name; }

// Whether it may require gradients or have tangents.
inline bool has_autograd(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->autograd_meta() != nullptr; }
// Whether it has a tangent of forward-mode differentiation, which is in other memory.
inline bool is_dual(const at::Tensor& tensor) { return has_autograd(tensor) && tensor._fw_grad(/*level=*/0).defined(); }
// Whether its dimensions have names, which PyTorch knows up to some version.
template <class Tensor>
bool has_names(const Tensor& tensor) {
  if constexpr (requires { tensor.has_names(); }) {
    return tensor.has_names();
  } else {
    return false;
  }
}
// Whether its memory describes the tensor completely.
inline bool is_plain_tensor(PyObject* value) {
  if (!is_tensor(value)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return tensor.is_cuda() && tensor.layout() == c10::kStrided && tensor.has_storage() &&
         !tensor.key_set().has(c10::DispatchKey::Python) && !tensor.is_quantized() && !tensor.is_nested() &&
         !tensor._is_zerotensor() && !has_names(tensor) && !is_dual(tensor);
}

inline void add_tensor(Keyer& keyer, PyObject* part, const Where& where) {
  const at::Tensor& tensor = THPVariable_Unpack(part);
  if (where.is_in_key()) {
    throw py::type_error(
        "graphcache: a tensor cannot be part of a key, since its contents would not count: pass it as an argument, or "
        "put its values into the key");
  }
  if (is_plain_tensor(part)) {
    Identities::note_tensor(part);
    const bool is_exact = is_exact_tensor(part);
    if (!is_exact) keyer.add(nullptr, nullptr, static_cast<const void*>(part));
    const bool is_argument = where.arguments != nullptr && !where.is_in_object;
    keyer.add(TensorPart{tensor, is_exact && is_argument && where.arguments->take(tensor)});
    return;
  }
  if (where.is_in_object && where.arguments != nullptr) {
    // Such as a counter that its class moves to the GPU later.
    where.arguments->why_direct = "an argument holds a tensor whose contents a graph would not read";
    Identities::note(part);
    keyer.add(nullptr, nullptr, nullptr, static_cast<const void*>(part));
    return;
  }
  if (!tensor.is_cuda()) {
    throw py::type_error(
        "graphcache: a tensor of the " + (tensor.is_cpu() ? "CPU" : "device " + tensor.device().str()) +
        " cannot be an argument, since a graph would keep the values that it has now: move it to the GPU, or put its "
        "values into the key");
  }
  if (tensor.is_quantized() || tensor._is_zerotensor() || has_names(tensor) || is_dual(tensor)) {
    throw py::type_error("graphcache: an argument is a tensor whose memory does not describe it completely");
  }
  throw py::type_error(tensor.layout() != c10::kStrided
                           ? "graphcache: an argument is a tensor that is not strided"
                           : "graphcache: an argument is a tensor whose class decides what operators do: its memory is "
                             "not known");
}

inline void add_integer(Keyer& keyer, PyObject* part, bool is_in_object) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(part, &overflow);
  if (overflow != 0 && is_in_object) {
    keyer.add(nullptr, nullptr, std::string(py::str(part)));
    return;
  }
  if (overflow != 0) throw py::value_error("graphcache: an integer of a key or an argument does not fit into 64 bits");
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  keyer.add(value);
}

inline void add_text(Keyer& keyer, PyObject* part) {
  Py_ssize_t size = 0;
  if (const char* const text = PyUnicode_AsUTF8AndSize(part, &size); text != nullptr) {
    keyer.add(std::string_view(text, static_cast<std::size_t>(size)));
    return;
  }
  if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) throw py::error_already_set();
  PyErr_Clear();  // It has half of a surrogate pair, which the texts of reports cannot have.
  const auto escaped = py::reinterpret_steal<py::bytes>(PyUnicode_AsUnicodeEscapeString(part));
  if (!escaped) throw py::error_already_set();
  keyer.add(std::optional<std::string>(std::string(escaped)));  // Not the encoding of a text.
}
inline void graphcache_key(Keyer& keyer, const OfType& of) {
  keyer.add(static_cast<const void*>(Py_TYPE(of.of)), nullptr);
  if (PyLong_Check(of.value)) {
    add_integer(keyer, of.value, false);
  } else {
    add_text(keyer, of.value);
  }
}

// Adds an object by its identity, and a module's mode. Frozen TorchScript has none.
inline void add_object(Keyer& keyer, PyObject* object) {
  static PyObject* const training = interned("training");
  Identities::note(object);
  keyer.add(static_cast<const void*>(object));
  if (!is_module(object)) return;
  keyer.add(attribute_of(object, training).ptr() == Py_True);
}

// An integer of another library, such as NumPy, or null.
inline py::object as_integer(PyObject* part) {
  // A class of the program may hold more than a number.
  if (PyIndex_Check(part) == 0 || PyType_HasFeature(Py_TYPE(part), Py_TPFLAGS_HEAPTYPE) != 0) return {};
  auto number = py::reinterpret_steal<py::object>(PyNumber_Index(part));
  if (number) return number;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();  // an array of several
  return {};
}

// A float that may move: one of Python or NumPy. Others may be more than their value, such as members of an enum.
inline bool is_number(PyObject* of) {
  return PyFloat_CheckExact(of) || (PyFloat_Check(of) && std::strcmp(Py_TYPE(of)->tp_name, "numpy.float64") == 0);
}
// A number like `of` with this value.
inline py::object number_like(PyObject* of, double value) {
  if (PyFloat_CheckExact(of)) return py::float_(value);
  return py::handle(reinterpret_cast<PyObject*>(Py_TYPE(of)))(value);
}

// Adds a part of a key, or an argument of fn.
inline void add(Keyer& keyer, PyObject* part, const Where& where) {
  if (PyBool_Check(part)) {
    keyer.add(part == Py_True);
  } else if (PyLong_CheckExact(part)) {
    add_integer(keyer, part, where.is_in_object);
  } else if (PyUnicode_CheckExact(part)) {
    add_text(keyer, part);
  } else if (PyUnicode_Check(part) && std::strcmp(Py_TYPE(part)->tp_name, "numpy.str_") == 0) {
    keyer.add(nullptr, nullptr, OfType{part, py::str(part).ptr()});
  } else if (PyLong_Check(part) || PyUnicode_Check(part)) {
    add_object(keyer, part);  // a member of an enum, as a rule
  } else if (part == Py_None) {
    keyer.add(std::optional<int>());
  } else if (is_tensor(part)) {
    add_tensor(keyer, part, where);
  } else if (PyTuple_CheckExact(part)) {
    keyer.add(Parts{part, Holder::kSequence, where});
  } else if (PyList_CheckExact(part)) {
    keyer.add(nullptr, Parts{part, Holder::kSequence, where});
  } else if (PyFloat_Check(part) && !where.is_in_key()) {
    if (!is_number(part)) {
      add_object(keyer, part);
      return;
    }
    if (!PyFloat_CheckExact(part)) keyer.add(nullptr, nullptr, static_cast<const void*>(Py_TYPE(part)));
    const double number = PyFloat_AS_DOUBLE(part);
    if (where.arguments != nullptr && !where.is_in_object && where.arguments->take(number)) {
      keyer.add(static_cast<const char*>(nullptr));  // nothing else is encoded so
    } else {
      keyer.add(Number{number});
    }
  } else if (PyFloat_Check(part)) {
    throw py::type_error(
        "graphcache: a float cannot be part of a key, since each new value would be a new graph: pass it as an "
        "argument, or round it to an integer");
  } else if (is_constant(part)) {
    keyer.add(nullptr, nullptr, OfType{part, py::str(part).ptr()});
  } else {
    const Holder holder = holder_of(part);
    if (holder != Holder::kNone && (!where.is_in_key() || holder == Holder::kSequence)) {
      keyer.add(nullptr, nullptr, Typed{Parts{part, holder, where}});
    } else if (const py::object number = as_integer(part)) {
      keyer.add(nullptr, nullptr, OfType{part, number.ptr()});
    } else if (!where.is_in_key() && is_callable_value(part)) {
      keyer.add(nullptr, nullptr, Callable{part});
    } else if (where.is_in_object) {
      add_object(keyer, part);
    } else {
      throw py::type_error("graphcache: a key or an argument cannot hold a " + name_of_type(part) +
                           (where.is_in_key() ? ": a key takes int, bool, str, None, and tuples or lists of these"
                                              : ": the page on PyTorch says what an argument may be"));
    }
  }
}

// Such as that of a tensor, which is another object each time.
inline bool is_builtin_method(PyObject* fn) { return PyCFunction_Check(fn) && PyCFunction_GET_SELF(fn) != nullptr; }

// Calls `visit` with each value that a function has in its closure or as a default, and the object of a builtin method.
template <class Visit>
void for_each_closed_over(PyObject* fn, const Visit& visit) {
  if (is_builtin_method(fn)) visit(PyCFunction_GET_SELF(fn));
  if (PyMethod_Check(fn)) fn = PyMethod_GET_FUNCTION(fn);
  if (!PyFunction_Check(fn)) return;
  for (PyObject* const values : {PyFunction_GET_CLOSURE(fn), PyFunction_GET_DEFAULTS(fn)}) {
    if (values == nullptr) continue;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); ++i) {
      PyObject* value = PyTuple_GET_ITEM(values, i);
      if (PyCell_Check(value)) value = PyCell_GET(value);
      visit(value != nullptr ? value : Py_Ellipsis);  // for an empty cell
    }
  }
}

inline void add_simple(Keyer& keyer, PyObject* value) {
  Met met;
  add(keyer, value, {nullptr, met});
}

// Adds numbers and texts by value, tensors by their memory, and everything else by identity.
inline void add_closed_over(Keyer& keyer, PyObject* value) {
  if (is_plain_tensor(value) && is_exact_tensor(value)) {
    Identities::note_tensor(value);
    keyer.add(TensorPart{THPVariable_Unpack(value)});
  } else if (is_exact_constant(value) && !PyLong_CheckExact(value)) {
    add_simple(keyer, value);
  } else if (PyFloat_CheckExact(value)) {
    keyer.add(Number{PyFloat_AS_DOUBLE(value)});
  } else {
    int overflow = 1;
    const long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
    if (overflow == 0) {
      keyer.add(number);
    } else {
      add_object(keyer, value);
    }
  }
}

// What tells functions apart that are made anew: the code, or else the object.
inline PyObject* code_of(PyObject* fn) {
  if (PyMethod_Check(fn)) fn = PyMethod_GET_FUNCTION(fn);
  return PyFunction_Check(fn) ? PyFunction_GET_CODE(fn) : fn;
}

// Identifies a callable: its code and its closure, or the called object.
inline void add_callable(Keyer& keyer, PyObject* fn) {
  if (PyMethod_Check(fn)) {
    PyObject* const self = PyMethod_GET_SELF(fn);
    if (is_tensor(self)) {
      add_closed_over(keyer, self);
    } else {
      add_object(keyer, self);
    }
  }
  if (is_builtin_method(fn)) {
    keyer.add(reinterpret_cast<const void*>(PyCFunction_GET_FUNCTION(fn)));
  } else {
    add_object(keyer, code_of(fn));
  }
  for_each_closed_over(fn, [&](PyObject* value) { add_closed_over(keyer, value); });
}

// The same, and the PyTorch modes of this thread, which change what operators do.
inline void add_fn(Keyer& keyer, PyObject* fn) {
  const bool autocasts = at::autocast::is_autocast_enabled(at::kCUDA);
  keyer.add(int{at::GradMode::is_enabled()} | int{c10::InferenceMode::is_enabled()} << 1 | int{autocasts} << 2);
  if (autocasts) keyer.add(static_cast<int>(at::autocast::get_autocast_dtype(at::kCUDA)));
  add_callable(keyer, fn);
}

// Calls `visit` with a callable and what a key has of it.
template <class Visit>
void for_each_of_callable(PyObject* fn, const Visit& visit) {
  visit(fn);
  visit(code_of(fn));
  for_each_closed_over(fn, visit);
}

// Calls `visit` with each object whose address a key contains because of a part or an argument, and with parameters,
// whose gradients a graph uses. Such an object must live as long as the key. Tensors need not, because each run passes
// them.
template <class Visit>
void for_each_identity(PyObject* of, const Visit& visit) {
  walk(Passed{&of, 1}, Into::kAll, [&](PyObject* part, Holder holder) {
    if (is_exact_constant(part) || PyFloat_CheckExact(part)) return;
    if (is_exact_tensor(part) && !THPVariable_Unpack(part).requires_grad()) return;
    visit(reinterpret_cast<PyObject*>(Py_TYPE(part)));
    if (holder == Holder::kNone) for_each_of_callable(part, visit);
  });
}

// Adds all of a run but its arguments.
inline void begin_key(Keyer& keyer, const py::handle& key, const py::handle& fn) {
  Met met;
  add(keyer, key.ptr(), {nullptr, met});
  if (PyCallable_Check(fn.ptr()) == 0)
    throw py::type_error("graphcache: fn is a " + name_of_type(fn.ptr()) + ": it must be callable");
  add_fn(keyer, fn.ptr());
}

// `values` are empty, and then have what is not in the key. Keys of different lives differ.
inline Key make_key(const py::handle& key, const py::handle& fn, const Passed& passed, Arguments* values,
                    std::uint64_t life = 0) {
  Keyer keyer;
  begin_key(keyer, key, fn);
  keyer.add(PassedParts{passed, values});
  // What values have another graph for, they have another record for, too.
  if (values->list.size() != 0) keyer.add(values->list.identity());
  if (values->tensors == Arguments::Tensors::kCopied) {
    std::optional<std::vector<std::size_t>> firsts = Arguments::firsts_of(values->copied);
    if (!firsts || values->must_stay) {
      *values = Arguments(values->device, Arguments::Tensors::kStay, values->numbers_move);
      return make_key(key, fn, passed, values, life);
    }
    for (const std::size_t first : *firsts) keyer.add(first);
    values->firsts = *std::move(firsts);
  }
  if (life != 0) keyer.add(nullptr, life);
  return std::move(keyer).finish();
}

// The arguments of a run without the addresses and floats that may move. A run with like ones needs no new key.
class ArgumentKinds {
 public:
  // `all` is empty. Of objects, dataclasses, modules, functions and subclasses of containers, nothing is known.
  ArgumentKinds(const Passed& passed, Arguments all) : by_position_(passed.by_position) {
    std::vector<PyObject*> held;  // the lists and dicts
    if (passed.names != nullptr) names_ = py::reinterpret_borrow<py::object>(passed.names);
    for (PyObject* const one : passed) add(one, &all, &held);
    identity_ = all.list.identity();
  }

  bool are_known() const { return is_known_; }
  // Whether these are like them. Sets whether their values are the same words.
  bool are(const Passed& passed, const std::vector<std::uint64_t>& words, bool* are_equal) const {
    if (!is_known_ || passed.by_position != by_position_ || !have_names(passed)) return false;
    Position at{kinds_.data(), numbers_.data(), words.data(), true};
    if (!are_like(passed.begin(), passed.end(), at)) return false;
    *are_equal = at.are_equal;
    return true;
  }
  // The values of arguments that are like them, or null if their key is another one.
  std::shared_ptr<const graphcache::ValueList> values_of(const Passed& passed) const {
    auto list = std::make_shared<graphcache::ValueList>();
    for_each_leaf_of(passed, [&](PyObject* one, const Kind& kind) {
      if (kind.what == Kind::kMoving) Arguments::add(THPVariable_Unpack(one), list.get());
      if (kind.what == Kind::kNumber) list->add(PyFloat_AS_DOUBLE(one));
    });
    return list->identity() == identity_ ? list : nullptr;
  }
  // Those that are copied.
  std::vector<at::Tensor> inputs_of(const Passed& passed) const {
    std::vector<at::Tensor> inputs;
    for_each_leaf_of(passed, [&](PyObject* one, const Kind& kind) {
      if (kind.what == Kind::kCopied) inputs.push_back(THPVariable_Unpack(one));
    });
    return inputs;
  }

 private:
  struct Kind {
    enum { kConstant, kNumber, kMoving, kCopied, kStaying, kTuple, kList, kDict } what = kConstant;
    caffe2::TypeMeta type = {};
    std::int64_t bytes = 0;  // of an element
    c10::DeviceIndex device = -1;
    const c10::TensorImpl* with_gradient = nullptr;  // one that requires gradients
    c10::DispatchKeySet keys;                        // with the device's type, the layout, and what is lazy about it
    std::size_t size = 0;                            // of a container; of a tensor, the number of dimensions
    const void* address = nullptr;                   // of one that stays
    py::object object = {};                          // a constant, or the keys of a dict

    bool is_tensor() const { return what == kMoving || what == kCopied || what == kStaying; }
  };
  struct Position {
    const Kind* kind;
    const std::int64_t* number;
    const std::uint64_t* word;
    bool are_equal;
    using Held = std::array<PyObject*, 8>;
    Held held = {};  // the lists and dicts that were met
    std::size_t met = 0;

    // Whether it was not met before.
    bool meet(PyObject* one) {
      if (std::find(held.begin(), held.begin() + met, one) != held.begin() + met) return false;
      held[met++] = one;
      return true;
    }

    template <class T>
    void note(const T& value) {
      static_assert(sizeof value == sizeof *word);
      are_equal = are_equal && std::memcmp(word, &value, sizeof value) == 0;
      ++word;
    }
  };

  void add(PyObject* one, Arguments* all, std::vector<PyObject*>* held, int depth = 0) {
    const std::size_t at = kinds_.size();
    Kind& kind = kinds_.emplace_back();
    const bool is_dict = PyDict_CheckExact(one);
    if (is_tensor(one)) {
      is_known_ = is_known_ && is_exact_tensor(one);
      const at::Tensor& tensor = THPVariable_Unpack(one);
      using Tensors = Arguments::Tensors;
      kind.what = !is_exact_tensor(one) || !all->take(tensor) ? Kind::kStaying
                  : all->tensors == Tensors::kCopied          ? Kind::kCopied
                                                              : Kind::kMoving;
      kind.address = tensor.data_ptr();
      kind.keys = tensor.key_set();
      kind.type = tensor.dtype();
      kind.bytes = static_cast<std::int64_t>(tensor.element_size());
      kind.device = tensor.get_device();
      if (tensor.requires_grad()) kind.with_gradient = tensor.unsafeGetTensorImpl();
      kind.size = static_cast<std::size_t>(tensor.dim());
      numbers_.insert(numbers_.end(), tensor.sizes().begin(), tensor.sizes().end());
      numbers_.insert(numbers_.end(), tensor.strides().begin(), tensor.strides().end());
    } else if (PyFloat_CheckExact(one) && all->take(PyFloat_AS_DOUBLE(one))) {
      kind.what = Kind::kNumber;
    } else if ((PyTuple_CheckExact(one) || PyList_CheckExact(one) || is_dict) && depth < kMaxDepth) {
      kind.what = is_dict ? Kind::kDict : PyTuple_CheckExact(one) ? Kind::kTuple : Kind::kList;
      kind.size = static_cast<std::size_t>(PyObject_Size(one));
      if (is_dict) kind.object = py::reinterpret_steal<py::object>(PySequence_Tuple(one));
      // As Position::meet() says.
      const bool is_new = std::find(held->begin(), held->end(), one) == held->end();
      if (kind.what != Kind::kTuple) held->push_back(one);
      is_known_ = is_known_ && is_new && held->size() <= std::tuple_size_v<Position::Held>;
      for_each_part(one, is_dict ? Holder::kDict : Holder::kSequence, [&](PyObject* name, PyObject* part) {
        is_known_ = is_known_ && (name == nullptr || is_exact_constant(name));
        add(part, all, held, depth + 1);
      });
    } else {
      is_known_ = is_known_ && is_exact_constant(one);
      if (is_known_) kinds_[at].object = py::reinterpret_borrow<py::object>(one);
    }
  }

  bool have_names(const Passed& passed) const {
    if (passed.names == nullptr || !names_) return passed.names == names_.ptr();
    const Py_ssize_t size = PyTuple_GET_SIZE(passed.names);
    if (size != PyTuple_GET_SIZE(names_.ptr())) return false;
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (!is_same(PyTuple_GET_ITEM(passed.names, i), PyTuple_GET_ITEM(names_.ptr(), i))) return false;
    }
    return true;
  }
  // Whether two constants are the same. Runs no code of Python.
  static bool is_same(PyObject* a, PyObject* b) {
    return a == b || (Py_TYPE(a) == Py_TYPE(b) && is_exact_constant(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1);
  }
  static bool are_like(PyObject* const* begin, PyObject* const* end, Position& at) {
    for (PyObject* const* one = begin; one != end; ++one) {
      const Kind& kind = *at.kind;
      if (!kind.is_tensor()) {
        if (!is_like(*one, at)) return false;
        continue;
      }
      ++at.kind;
      if (!is_exact_tensor(*one) || !is_like(THPVariable_Unpack(*one), kind, at)) return false;
    }
    return true;
  }
  // Not of a tensor.
  static bool is_like(PyObject* one, Position& at) {
    const Kind& kind = *at.kind++;
    switch (kind.what) {
      case Kind::kConstant:
        return is_same(one, kind.object.ptr());
      case Kind::kNumber:
        if (!PyFloat_CheckExact(one)) return false;
        at.note(PyFloat_AS_DOUBLE(one));
        return true;
      case Kind::kTuple:
      case Kind::kList: {
        const bool is_it = kind.what == Kind::kTuple ? PyTuple_CheckExact(one) : PyList_CheckExact(one);
        if (!is_it || static_cast<std::size_t>(Py_SIZE(one)) != kind.size) return false;
        if (kind.what == Kind::kList && !at.meet(one)) return false;
        PyObject* const* const parts = PySequence_Fast_ITEMS(one);
        return are_like(parts, parts + kind.size, at);
      }
      case Kind::kDict: {
        if (!PyDict_CheckExact(one) || static_cast<std::size_t>(PyDict_GET_SIZE(one)) != kind.size) return false;
        if (!at.meet(one)) return false;
        PyObject *name = nullptr, *value = nullptr;
        for (Py_ssize_t i = 0, next = 0; PyDict_Next(one, &next, &name, &value) != 0; ++i) {
          if (!is_same(name, PyTuple_GET_ITEM(kind.object.ptr(), i)) || !are_like(&value, &value + 1, at)) return false;
        }
        return true;
      }
      default:
        return false;
    }
  }
  static bool is_like(const at::Tensor& tensor, const Kind& kind, Position& at) {
    c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (impl.key_set() != kind.keys || impl.dtype() != kind.type || impl.get_device() != kind.device) return false;
    const bool is_simple = !has_autograd(tensor);  // The others are calls into a library.
    const bool has_gradient = !is_simple && impl.requires_grad();
    if ((has_gradient ? &impl : nullptr) != kind.with_gradient || (!is_simple && is_dual(tensor))) return false;
    const c10::IntArrayRef sizes = impl.sizes(), strides = impl.strides();
    if (sizes.size() != kind.size) return false;
    for (std::size_t i = 0; i < kind.size; ++i) {  // A call of memcmp takes longer.
      if (sizes[i] != at.number[i] || strides[i] != at.number[kind.size + i]) return false;
    }
    at.number += 2 * kind.size;
    if (kind.what == Kind::kCopied) return true;
    // As Tensor::data_ptr(), which makes calls.
    const c10::Storage& storage = impl.unsafe_storage();
    if (!storage) return false;
    const auto* const begin = static_cast<const char*>(storage.unsafeGetStorageImpl()->mutable_data());
    const void* const address = impl.numel() == 0 ? nullptr : begin + impl.storage_offset() * kind.bytes;
    if (kind.what == Kind::kStaying) return address == kind.address;
    at.note(address);
    return true;
  }

  template <class Visit>
  void for_each_leaf_of(const Passed& passed, const Visit& visit) const {
    const Kind* kind = kinds_.data();
    for (PyObject* const one : passed) for_each_leaf_of(one, kind, visit);
  }
  template <class Visit>
  static void for_each_leaf_of(PyObject* one, const Kind*& at, const Visit& visit) {
    const Kind& kind = *at++;
    if (kind.what == Kind::kDict) {
      PyObject* value = nullptr;
      for (Py_ssize_t next = 0; PyDict_Next(one, &next, nullptr, &value) != 0;) for_each_leaf_of(value, at, visit);
    } else if (kind.what == Kind::kTuple || kind.what == Kind::kList) {
      for (std::size_t i = 0; i < kind.size; ++i) {
        for_each_leaf_of(PySequence_Fast_GET_ITEM(one, static_cast<Py_ssize_t>(i)), at, visit);
      }
    } else {
      visit(one, kind);
    }
  }

  Py_ssize_t by_position_;
  py::object names_ = {};
  std::vector<Kind> kinds_;
  std::vector<std::int64_t> numbers_;  // sizes and strides of the tensors
  std::uint64_t identity_ = 0;
  bool is_known_ = true;
};

}  // namespace gnu::visibility("hidden")]]torch_keys
}  // namespace graphcache
