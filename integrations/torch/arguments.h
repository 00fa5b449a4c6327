// What a run passes to fn, and what it holds: containers, and objects with contents. For keys.h and module.cc.
#pragma once

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

namespace graphcache {
namespace [[gnu::visibility("hidden")]] torch_keys {  // As pybind11's.

namespace py = pybind11;

// Set at module initialization.
inline PyObject* module_type = nullptr;     // torch.nn.Module
inline PyObject* partial_type = nullptr;    // functools.partial
inline PyObject* namespace_type = nullptr;  // types.SimpleNamespace
inline PyObject* copy_of = nullptr;         // copy.copy

inline PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// The attribute, or null if there is none.
inline py::object attribute_of(PyObject* of, PyObject* name) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(of, name));
  if (!value) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
    PyErr_Clear();
  }
  return value;
}

// Arguments of a call, as Python's vector calls have them. They belong to the caller.
struct Passed {
  PyObject* const* values = nullptr;  // by position, and then by name
  Py_ssize_t by_position = 0;
  PyObject* names = nullptr;  // a tuple, or null

  Py_ssize_t size() const { return by_position + (names == nullptr ? 0 : PyTuple_GET_SIZE(names)); }
  PyObject* const* begin() const { return values; }
  PyObject* const* end() const { return values + size(); }
};

inline bool is_partial(PyObject* of) { return Py_TYPE(of) == reinterpret_cast<PyTypeObject*>(partial_type); }

// fn and its arguments without functools.partial, whose arguments are those of the run. So a partial that is made anew
// is no other fn.
class Applied {
 public:
  Applied(PyObject* fn, const Passed& passed) : fn_(py::reinterpret_borrow<py::object>(fn)), passed_(passed) {
    while (is_partial(fn_.ptr())) unwrap();
  }
  Applied(const Applied&) = delete;
  Applied& operator=(const Applied&) = delete;

  const py::object& fn() const { return fn_; }
  const Passed& passed() const { return passed_; }

 private:
  void unwrap() {
    const py::tuple first = fn_.attr("args");
    py::dict by_name = py::reinterpret_steal<py::dict>(PyDict_Copy(fn_.attr("keywords").ptr()));
    for (Py_ssize_t i = passed_.by_position; i < passed_.size(); ++i) {
      PyObject* const name = PyTuple_GET_ITEM(passed_.names, i - passed_.by_position);
      if (PyDict_SetItem(by_name.ptr(), name, passed_.values[i]) != 0) throw py::error_already_set();
    }
    std::vector<PyObject*> values;
    for (const py::handle one : first) values.push_back(one.ptr());
    values.insert(values.end(), passed_.values, passed_.values + passed_.by_position);
    passed_.by_position = static_cast<Py_ssize_t>(values.size());
    for (const auto& [name, value] : by_name) values.push_back(value.ptr());
    py::tuple names(by_name);
    passed_.names = names.ptr();
    kept_.insert(kept_.end(), {first, by_name, names, fn_});
    values_ = std::move(values);
    passed_.values = values_.data();
    fn_ = fn_.attr("func");
  }

  py::object fn_;
  Passed passed_;
  std::vector<PyObject*> values_;
  std::vector<py::object> kept_;  // what values_ points to
};

enum class Holder {
  kNone,
  kSequence,  // a tuple or a list
  kDict,
  kFields,  // a dataclass
  kObject,  // another object whose attributes are all that it holds
};

inline PyObject* dict_name() {
  static PyObject* const name = interned("__dict__");
  return name;
}

// Whether it has nothing but a dictionary of attributes: its type is of Python, derives from none of C, and has no
// slots.
inline bool has_only_attributes(PyObject* of) {
  static PyObject* const slots = interned("__slots__");
  PyTypeObject* const type = Py_TYPE(of);
  if (type == reinterpret_cast<PyTypeObject*>(namespace_type) || is_partial(of)) return true;
  constexpr auto kPlain = static_cast<Py_ssize_t>(sizeof(PyObject) + 2 * sizeof(void*));  // a dict and weak references
  for (PyTypeObject* base = type; base != &PyBaseObject_Type; base = base->tp_base) {
    if ((base->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return false;
  }
  if (type->tp_itemsize != 0 || type->tp_basicsize > kPlain) return false;
  const py::object named = attribute_of(reinterpret_cast<PyObject*>(type), slots);
  return (!named || (PyTuple_Check(named.ptr()) && PyTuple_GET_SIZE(named.ptr()) == 0)) &&
         attribute_of(of, dict_name());
}

inline bool is_module(PyObject* of) {
  return PyObject_TypeCheck(of, reinterpret_cast<PyTypeObject*>(module_type)) != 0;
}
// Whether its identity is all that counts of an argument. add() has what a module's, and a function's, adds to it.
inline bool is_constant(PyObject* of) {
  return of == Py_None || PyBool_Check(of) || PyLong_Check(of) || PyUnicode_Check(of) || THPDtype_Check(of) ||
         THPDevice_Check(of) || THPLayout_Check(of) || THPMemoryFormat_Check(of);
}
inline bool is_callable_value(PyObject* of) {
  return PyFunction_Check(of) || PyMethod_Check(of) || PyCFunction_Check(of) || PyType_Check(of) || is_module(of);
}

inline PyObject* fields_name() {
  static PyObject* const name = interned("__dataclass_fields__");
  return name;
}

inline Holder holder_of(PyObject* of) {
  if (PyTuple_Check(of) || PyList_Check(of)) return Holder::kSequence;
  if (PyDict_Check(of)) return Holder::kDict;
  if (is_constant(of) || PyFloat_Check(of) || THPVariable_Check(of) || is_callable_value(of)) return Holder::kNone;
  if (attribute_of(reinterpret_cast<PyObject*>(Py_TYPE(of)), fields_name())) return Holder::kFields;
  return has_only_attributes(of) ? Holder::kObject : Holder::kNone;
}

// Names and values of the attributes, as pairs.
inline py::list attributes_of(PyObject* of) {
  py::list all;
  if (is_partial(of)) {
    for (const char* const name : {"func", "args", "keywords"}) {
      all.append(py::make_tuple(name, py::handle(of).attr(name)));
    }
  }
  const py::object fields = attribute_of(reinterpret_cast<PyObject*>(Py_TYPE(of)), fields_name());
  for (const py::handle name : fields ? py::list(fields) : py::list()) {
    if (const py::object value = attribute_of(of, name.ptr())) all.append(py::make_tuple(name, value));
  }
  const py::object others = attribute_of(of, dict_name());
  if (!others) return all;
  const auto pairs = py::reinterpret_steal<py::list>(PyDict_Items(others.ptr()));
  for (const py::handle pair : pairs) {
    if (!fields || !fields.contains(py::handle(PyTuple_GET_ITEM(pair.ptr(), 0)))) all.append(pair);
  }
  return all;
}

// Calls visit(name, part) for what a holder holds, in an order that is always the same. The name is null in a sequence.
// `visit` may run Python code.
template <class Visit>
void for_each_part(PyObject* of, Holder holder, const Visit& visit) {
  if (holder == Holder::kSequence) {
    const auto parts = py::reinterpret_steal<py::tuple>(PySequence_Tuple(of));
    if (!parts) throw py::error_already_set();
    for (const py::handle part : parts) visit(nullptr, part.ptr());
    return;
  }
  const auto pairs =
      holder == Holder::kDict ? py::reinterpret_steal<py::object>(PyMapping_Items(of)) : py::object(attributes_of(of));
  if (!pairs) throw py::error_already_set();
  for (const py::handle pair : pairs) visit(PyTuple_GET_ITEM(pair.ptr(), 0), PyTuple_GET_ITEM(pair.ptr(), 1));
}

constexpr int kMaxDepth = 100;  // a list may contain itself
inline void check_depth(int depth) {
  if (depth > kMaxDepth) throw py::value_error("graphcache: a key or an argument is nested too deeply");
}

// The same with change(leaf) for each leaf, which is what is not in a container of the first four kinds. A container of
// leaves that stay as they are is the same object, and any other one is a copy.
template <class Change>
py::object changed(PyObject* of, const Change& change, int depth = 0) {
  const Holder holder = holder_of(of);
  if (holder == Holder::kNone || holder == Holder::kObject) return change(of);
  check_depth(depth);
  struct Part {
    py::object name, before, now;
  };
  std::vector<Part> parts;
  bool differs = false;
  for_each_part(of, holder, [&](PyObject* name, PyObject* part) {
    const auto borrow = [](PyObject* one) { return py::reinterpret_borrow<py::object>(one); };
    parts.push_back({borrow(name), borrow(part), changed(part, change, depth + 1)});
    differs = differs || parts.back().now.ptr() != part;
  });
  if (!differs) return py::reinterpret_borrow<py::object>(of);
  if (PyTuple_Check(of)) {
    py::tuple all(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) all[i] = std::move(parts[i].now);
    if (PyTuple_CheckExact(of)) return all;
    const py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(of)));
    return py::hasattr(type, "_make") ? type.attr("_make")(all) : type(all);
  }
  py::object copy = py::handle(copy_of)(py::handle(of));
  const auto set = [&](PyObject* name, PyObject* value) { return PyObject_GenericSetAttr(copy.ptr(), name, value); };
  const auto check = [](int failed) {
    if (failed != 0) throw py::error_already_set();
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    PyObject *const name = parts[i].name.ptr(), *const now = parts[i].now.ptr();
    check(holder == Holder::kSequence ? PySequence_SetItem(copy.ptr(), static_cast<Py_ssize_t>(i), now)
          : holder == Holder::kDict   ? PyObject_SetItem(copy.ptr(), name, now)
                                      : set(name, now));
  }
  if (PyList_CheckExact(of) || PyDict_CheckExact(of) || holder == Holder::kFields) return copy;
  for (const py::handle pair : attributes_of(of)) {  // that are items as well, as in Hugging Face's ModelOutput
    for (const Part& part : parts) {
      if (part.before.ptr() == PyTuple_GET_ITEM(pair.ptr(), 1))
        check(set(PyTuple_GET_ITEM(pair.ptr(), 0), part.now.ptr()));
    }
  }
  return copy;
}

// Calls visit(leaf) in the order of changed().
template <class Visit>
void for_each_leaf(PyObject* of, const Visit& visit, int depth = 0) {
  const Holder holder = holder_of(of);
  if (holder == Holder::kNone || holder == Holder::kObject) return visit(of);
  check_depth(depth);
  for_each_part(of, holder, [&](PyObject*, PyObject* part) { for_each_leaf(part, visit, depth + 1); });
}

}  // namespace gnu::visibility("hidden")]]torch_keys
}  // namespace graphcache
