// What a run passes to fn, and what it holds: containers, and objects with contents. For keys.h and module.cc.
#pragma once

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace graphcache {
namespace [[gnu::visibility("hidden")]] torch_keys {  // As pybind11's.

namespace py = pybind11;

// Set at module initialization.
inline PyObject* module_type = nullptr;     // torch.nn.Module
inline PyObject* partial_type = nullptr;    // functools.partial
inline PyObject* namespace_type = nullptr;  // types.SimpleNamespace
inline PyObject* placeholder = nullptr;     // functools.Placeholder, or null
inline PyObject* slot_names = nullptr;      // copyreg._slotnames
inline PyObject* copy_of = nullptr;         // copy.copy
inline PyObject* kind_of_fields = nullptr;  // that of a dataclass's fields that are no variables of the class

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

// By its type: its __class__ may say something else.
inline bool is_tensor(PyObject* of) {
  return PyObject_TypeCheck(of, reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}
// The class of another one may decide what operators do.
inline bool is_exact_tensor(PyObject* of) { return THPVariable_CheckExact(of); }

inline bool is_partial(PyObject* of) { return Py_TYPE(of) == reinterpret_cast<PyTypeObject*>(partial_type); }
// Not one that leaves places for the arguments of a call (Python 3.14).
inline bool is_plain_partial(PyObject* of) {
  if (!is_partial(of)) return false;
  const py::tuple first = py::handle(of).attr("args");
  return placeholder == nullptr ||
         std::none_of(first.begin(), first.end(), [](py::handle one) { return one.ptr() == placeholder; });
}

// fn and its arguments without functools.partial, whose arguments are those of the run. So a partial that is made anew
// is no other fn.
class Applied {
 public:
  Applied(PyObject* fn, const Passed& passed) : fn_(py::reinterpret_borrow<py::object>(fn)), passed_(passed) {
    while (is_plain_partial(fn_.ptr())) unwrap();
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
  PyTypeObject* const type = Py_TYPE(of);
  if (type == reinterpret_cast<PyTypeObject*>(namespace_type) || is_partial(of)) return true;
  for (PyTypeObject* base = type; base != &PyBaseObject_Type; base = base->tp_base) {
    if ((base->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return false;
  }
  const auto pointers = Py_ssize_t{type->tp_dictoffset > 0} + Py_ssize_t{type->tp_weaklistoffset > 0};
  const auto plain = static_cast<Py_ssize_t>(sizeof(PyObject)) + pointers * static_cast<Py_ssize_t>(sizeof(void*));
  if (type->tp_itemsize != 0 || type->tp_basicsize != plain) return false;
  const py::object attributes = attribute_of(of, dict_name());
  return attributes && PyDict_Check(attributes.ptr());
}

inline bool is_module(PyObject* of) {
  return PyObject_TypeCheck(of, reinterpret_cast<PyTypeObject*>(module_type)) != 0;
}
// Whether it has a value that nothing changes.
inline bool is_constant(PyObject* of) {
  return of == Py_None || PyBool_Check(of) || PyLong_Check(of) || PyUnicode_Check(of) || THPDtype_Check(of) ||
         THPDevice_Check(of) || THPLayout_Check(of) || THPMemoryFormat_Check(of);
}
// The same of a type that adds nothing to it.
inline bool is_exact_constant(PyObject* of) {
  const bool is_of_subclass = (PyLong_Check(of) && !PyLong_CheckExact(of) && !PyBool_Check(of)) ||
                              (PyUnicode_Check(of) && !PyUnicode_CheckExact(of));
  return is_constant(of) && !is_of_subclass;
}
inline bool is_callable_value(PyObject* of) {
  return PyFunction_Check(of) || PyMethod_Check(of) || PyCFunction_Check(of) || PyType_Check(of) ||
         Py_TYPE(of) == &PyMethodDescr_Type || is_module(of);
}

inline PyObject* fields_name() {
  static PyObject* const name = interned("__dataclass_fields__");
  return name;
}

inline Holder holder_of(PyObject* of) {
  if (PyTuple_Check(of) || PyList_Check(of)) return Holder::kSequence;
  if (PyDict_Check(of)) return Holder::kDict;
  if (is_constant(of) || PyFloat_Check(of) || is_tensor(of) || is_callable_value(of)) return Holder::kNone;
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
  py::list names;
  if (fields) {
    for (const auto& [name, field] : py::reinterpret_borrow<py::dict>(fields)) {
      if (field.attr("_field_type").ptr() == kind_of_fields) names.append(name);
    }
    const py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(of)));
    for (const py::handle name : py::list(py::handle(slot_names)(type))) {
      if (!fields.contains(name)) names.append(name);
    }
  }
  for (const py::handle name : names) {
    if (const py::object value = attribute_of(of, name.ptr())) all.append(py::make_tuple(name, value));
  }
  const py::object others = attribute_of(of, dict_name());
  if (!others || !PyDict_Check(others.ptr())) return all;
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

inline bool may_have_added(PyObject* of, Holder holder) {
  const bool is_plain = PyTuple_CheckExact(of) || PyList_CheckExact(of) || PyDict_CheckExact(of);
  return !is_plain && (holder == Holder::kSequence || holder == Holder::kDict);
}
// Calls visit(name, value) for the attributes that a subclass adds to a tuple, list or dict. Some repeat what it holds,
// as in Hugging Face's ModelOutput.
template <class Visit>
void for_each_added(PyObject* of, Holder holder, const Visit& visit) {
  if (!may_have_added(of, holder)) return;
  for (const py::handle pair : attributes_of(of)) {
    PyObject *const name = PyTuple_GET_ITEM(pair.ptr(), 0), *const value = PyTuple_GET_ITEM(pair.ptr(), 1);
    if (holder != Holder::kDict || PyDict_GetItemWithError(of, name) != value) visit(name, value);
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  }
}

constexpr int kMaxDepth = 100;  // a tuple may be nested as deeply as a program likes
inline void check_depth(int depth) {
  if (depth > kMaxDepth) throw py::value_error("graphcache: a key or an argument is nested too deeply");
}

// Whether its contents may change, and another object may hold it as well.
inline bool is_mutable(PyObject* of, Holder holder) { return holder != Holder::kNone && !PyTuple_Check(of); }

// The same with other parts. change(part, holder) returns what takes the place of a part, or null, and is called for a
// holder before what it holds. The contents of objects (kObject) stay as they are. A container without a change is the
// same object, unless `copies_all`, and any other one is a copy.
template <class Change>
class Changed {
 public:
  explicit Changed(const Change& change, bool copies_all = false) : change_(change), copies_all_(copies_all) {}

  py::object operator()(PyObject* of, int depth = 0) {
    const Holder holder = holder_of(of);
    if (py::object other = change_(of, holder)) return other;
    if (holder == Holder::kNone || holder == Holder::kObject) return borrow(of);
    check_depth(depth);
    if (const auto found = done_.find(of); found != done_.end()) return found->second.second;
    py::object now = with_parts(of, holder, depth);
    if (is_mutable(of, holder)) done_[of] = {borrow(of), now};
    return now;
  }

 private:
  struct Part {
    py::object name, before, now;
    bool differs() const { return before.ptr() != now.ptr(); }
  };
  static py::object borrow(PyObject* one) { return py::reinterpret_borrow<py::object>(one); }

  py::object with_parts(PyObject* of, Holder holder, int depth) {
    std::vector<Part> parts;
    for_each_part(of, holder, [&](PyObject* name, PyObject* part) {
      parts.push_back({borrow(name), borrow(part), (*this)(part, depth + 1)});
    });
    const bool differs = std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.differs(); });
    if (!differs && (!copies_all_ || PyTuple_Check(of))) return borrow(of);
    if (PyTuple_Check(of)) {
      py::tuple all(parts.size());
      for (std::size_t i = 0; i < parts.size(); ++i) all[i] = std::move(parts[i].now);
      if (PyTuple_CheckExact(of)) return all;
      const py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(of)));
      // Not by its own __new__, which may take something else. A tuple of C has one that tuple's cannot replace.
      const bool is_of_python = PyType_HasFeature(Py_TYPE(of), Py_TPFLAGS_HEAPTYPE) != 0;
      const py::handle tuple(reinterpret_cast<PyObject*>(&PyTuple_Type));
      const bool is_plain = is_of_python && !py::hasattr(type, "n_sequence_fields");
      const py::object made = is_plain ? tuple.attr("__new__")(type, all) : type(all);
      for (const py::handle pair : attributes_of(of)) set_added(made, pair, parts);
      return made;
    }
    py::object copy = py::handle(copy_of)(py::handle(of));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      PyObject *const name = parts[i].name.ptr(), *const now = parts[i].now.ptr();
      if (!parts[i].differs()) continue;
      check(holder == Holder::kSequence ? PySequence_SetItem(copy.ptr(), static_cast<Py_ssize_t>(i), now)
            : holder == Holder::kDict   ? PyObject_SetItem(copy.ptr(), name, now)
                                        : PyObject_GenericSetAttr(copy.ptr(), name, now));
    }
    if (PyList_CheckExact(of) || PyDict_CheckExact(of) || holder == Holder::kFields) return copy;
    for (const py::handle pair : attributes_of(of)) set_added(copy, pair, parts);
    return copy;
  }
  static void check(int failed) {
    if (failed != 0) throw py::error_already_set();
  }
  // Sets an attribute that a subclass has added: to what a part has become, if it repeats that. Only tuples are made
  // without the others.
  static void set_added(const py::object& copy, const py::handle& pair, const std::vector<Part>& parts) {
    PyObject* const before = PyTuple_GET_ITEM(pair.ptr(), 1);
    PyObject* now = before;
    for (const Part& part : parts) {
      if (part.before.ptr() == before) now = part.now.ptr();
    }
    if (now == before && !PyTuple_Check(copy.ptr())) return;
    check(PyObject_GenericSetAttr(copy.ptr(), PyTuple_GET_ITEM(pair.ptr(), 0), now));
  }

  const Change& change_;
  const bool copies_all_;
  std::unordered_map<PyObject*, std::pair<py::object, py::object>> done_;  // each holder, and what it has become
};

// What walk() goes into.
enum class Into {
  kContainers,
  kAll,  // also objects, names, and what for_each_added() has
};
template <class Visit>
class Walk {
 public:
  Walk(const Visit& visit, Into into) : visit_(visit), is_all_(into == Into::kAll) {}

  void operator()(PyObject* of, int depth = 0) {
    const Holder holder = holder_of(of);
    if (is_mutable(of, holder) && !seen_.emplace(of, py::reinterpret_borrow<py::object>(of)).second) return;
    visit_(of, holder);
    if (holder == Holder::kNone || (holder == Holder::kObject && !is_all_)) return;
    check_depth(depth);
    const auto part = [&](PyObject* name, PyObject* value) {
      if (is_all_ && name != nullptr) (*this)(name, depth + 1);
      (*this)(value, depth + 1);
    };
    for_each_part(of, holder, part);
    if (is_all_) for_each_added(of, holder, part);
  }

 private:
  const Visit& visit_;
  const bool is_all_;
  std::unordered_map<PyObject*, py::object> seen_;
};
// Calls visit(part, holder) for each part of what is passed, a holder before what it holds, and each holder once.
template <class Visit>
void walk(const Passed& passed, Into into, const Visit& visit) {
  Walk walk_one(visit, into);
  for (PyObject* const one : passed) walk_one(one);
}

}  // namespace gnu::visibility("hidden")]]torch_keys
}  // namespace graphcache
