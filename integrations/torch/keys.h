// The keys of runs: what of the key, fn and the arguments counts by value, and what moves. For module.cc.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <graphcache/graphcache.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace graphcache {
namespace [[gnu::visibility("hidden")]] torch_keys {  // As pybind11's.

namespace py = pybind11;

// What a run passes that may change from run to run: the floats among its arguments, and the tensors.
struct Arguments {
  c10::DeviceIndex device;   // of the cache
  bool tensors_move = true;  // whether tensors are in the list, and not in the key
  bool numbers_move = true;  // the same for floats
  graphcache::ValueList list;

  // One that requires gradients is a parameter, as a rule.
  static bool may_move(const at::Tensor& tensor, c10::DeviceIndex device) {
    return !tensor.requires_grad() && tensor.get_device() == device;
  }
  bool take(const at::Tensor& tensor) {
    if (!tensors_move || !may_move(tensor, device) || is_full()) return false;
    add(tensor, &list);
    return true;
  }
  static void add(const at::Tensor& tensor, graphcache::ValueList* to) {
    const c10::Storage& storage = tensor.storage();
    to->add(tensor.data_ptr(), storage.data(), storage.nbytes());
  }
  bool take(double number) {
    if (!numbers_move || is_full()) return false;
    list.add(number);
    return true;
  }
  bool is_full() const { return list.size() == graphcache::ValueList::kMost; }
};

// `arguments` is null for a part of the key itself.
inline void add(Keyer& keyer, PyObject* part, Arguments* arguments, int depth = 0);

// A list of parts of a key, for graphcache_key.
struct Sequence {
  PyObject* items;
  Arguments* arguments;
  int depth;  // number of lists and tuples around it
};
inline void graphcache_key(Keyer& keyer, const Sequence& sequence) {
  constexpr int kMaxDepth = 100;  // a list may contain itself
  if (sequence.depth > kMaxDepth) throw py::value_error("graphcache: a key or an argument is nested too deeply");
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence.items);
  for (Py_ssize_t i = 0; i < size; ++i) {
    add(keyer, PySequence_Fast_GET_ITEM(sequence.items, i), sequence.arguments, sequence.depth + 1);
  }
}
struct TensorPart {
  const at::Tensor& tensor;
  bool moves = false;
};
struct Number {
  double value;
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
  for (const std::int64_t size : tensor.sizes()) keyer.add(size);
  keyer.add(nullptr);
  for (const std::int64_t stride : tensor.strides()) keyer.add(stride);
}

inline std::string name_of_type(PyObject* object) { return Py_TYPE(object)->tp_name; }

inline void add_tensor(Keyer& keyer, const at::Tensor& tensor, Arguments* arguments) {
  if (!tensor.is_cuda()) {
    throw py::type_error(
        "graphcache: a tensor of the CPU cannot be an argument, since a graph would keep the values that it has now: "
        "move it to the GPU, or put its values into the key");
  }
  if (tensor.key_set().has(c10::DispatchKey::Python)) {
    throw py::type_error(
        "graphcache: an argument is a tensor whose class decides what operators do: its memory is not known");
  }
  if (tensor.layout() != c10::kStrided) throw py::type_error("graphcache: an argument is a tensor that is not strided");
  keyer.add(TensorPart{tensor, arguments != nullptr && arguments->take(tensor)});
}

// Adds a part of a key, or an argument of fn.
inline void add(Keyer& keyer, PyObject* part, Arguments* arguments, int depth) {
  if (PyBool_Check(part)) {
    keyer.add(part == Py_True);
  } else if (PyLong_Check(part)) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(part, &overflow);
    if (overflow != 0) throw py::value_error("graphcache: an integer of a key does not fit into 64 bits");
    if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    keyer.add(value);
  } else if (PyUnicode_Check(part)) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(part, &size);
    if (text == nullptr) throw py::error_already_set();
    keyer.add(std::string_view(text, static_cast<std::size_t>(size)));
  } else if (part == Py_None) {
    keyer.add(std::optional<int>());
  } else if (THPVariable_Check(part)) {
    add_tensor(keyer, THPVariable_Unpack(part), arguments);
  } else if (PyTuple_Check(part)) {
    keyer.add(Sequence{part, arguments, depth});
  } else if (PyList_Check(part)) {
    keyer.add(nullptr, Sequence{part, arguments, depth});
  } else if (PyFloat_Check(part) && arguments != nullptr) {
    const double number = PyFloat_AS_DOUBLE(part);
    if (arguments->take(number)) {
      keyer.add(std::optional<std::int64_t>());
    } else {
      keyer.add(Number{number});
    }
  } else if (PyFloat_Check(part)) {
    throw py::type_error(
        "graphcache: a float cannot be part of a key, since each new value would be a new graph: pass it as an "
        "argument, or round it to an integer");
  } else if (THPDtype_Check(part) || THPDevice_Check(part)) {
    keyer.add(std::string(py::str(part)));
  } else {
    throw py::type_error("graphcache: a key or an argument cannot hold a " + name_of_type(part) +
                         ": it takes int, bool, str, None, tensors of the GPU, and tuples or lists of these");
  }
}

// Calls `visit` with each value that a function has in its closure or as a default.
template <class Visit>
void for_each_closed_over(PyObject* fn, const Visit& visit) {
  if (PyMethod_Check(fn)) fn = PyMethod_GET_FUNCTION(fn);
  if (!PyFunction_Check(fn)) return;
  for (PyObject* const values : {PyFunction_GET_CLOSURE(fn), PyFunction_GET_DEFAULTS(fn)}) {
    if (values == nullptr) continue;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); ++i) {
      PyObject* value = PyTuple_GET_ITEM(values, i);
      if (PyCell_Check(value)) value = PyCell_GET(value);
      if (value != nullptr) visit(value);  // an empty cell has none
    }
  }
}

// Whether its memory describes the tensor completely.
inline bool is_plain_tensor(PyObject* value) {
  if (!THPVariable_Check(value)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return tensor.is_cuda() && tensor.layout() == c10::kStrided && !tensor.key_set().has(c10::DispatchKey::Python);
}

inline PyObject* module_type = nullptr;  // torch.nn.Module; set at module initialization
inline PyObject* training = nullptr;     // "training".

// Adds an object by its identity, and a module's mode.
inline void add_object(Keyer& keyer, PyObject* object) {
  keyer.add(static_cast<const void*>(object));
  if (!PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(module_type))) return;
  const auto mode = py::reinterpret_steal<py::object>(PyObject_GetAttr(object, training));
  if (!mode) throw py::error_already_set();
  keyer.add(mode.ptr() == Py_True);
}

// Adds numbers and texts by value, tensors by their memory, and everything else by identity.
inline void add_closed_over(Keyer& keyer, PyObject* value) {
  if (is_plain_tensor(value)) {
    keyer.add(TensorPart{THPVariable_Unpack(value)});
  } else if (PyBool_Check(value) || PyUnicode_Check(value)) {
    add(keyer, value, nullptr);
  } else if (PyFloat_Check(value)) {
    keyer.add(Number{PyFloat_AS_DOUBLE(value)});
  } else {
    int overflow = 1;
    const long long number = PyLong_Check(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
    if (overflow == 0) {
      keyer.add(number);
    } else {
      add_object(keyer, value);
    }
  }
}

// Identifies fn: its code and its closure, or the called object, and the PyTorch modes of this thread, which change
// what operators do.
inline void add_fn(Keyer& keyer, PyObject* fn) {
  PyObject* function = fn;
  if (PyMethod_Check(fn)) {
    add_object(keyer, PyMethod_GET_SELF(fn));
    function = PyMethod_GET_FUNCTION(fn);
  }
  if (PyFunction_Check(function)) function = PyFunction_GET_CODE(function);
  add_object(keyer, function);
  const bool autocasts = at::autocast::is_autocast_enabled(at::kCUDA);
  keyer.add(int{at::GradMode::is_enabled()} | int{c10::InferenceMode::is_enabled()} << 1 | int{autocasts} << 2);
  if (autocasts) keyer.add(static_cast<int>(at::autocast::get_autocast_dtype(at::kCUDA)));
  for_each_closed_over(fn, [&](PyObject* value) { add_closed_over(keyer, value); });
}

// Adds all of a run but its arguments.
inline void begin_key(Keyer& keyer, const py::handle& key, const py::handle& fn) {
  add(keyer, key.ptr(), nullptr);
  if (fn.is_none()) return;
  if (PyCallable_Check(fn.ptr()) == 0)
    throw py::type_error("graphcache: fn is a " + name_of_type(fn.ptr()) + ": it must be callable");
  add_fn(keyer, fn.ptr());
}

inline Key make_key(const py::handle& key, const py::handle& fn, const py::args& arguments, Arguments* values) {
  Keyer keyer;
  begin_key(keyer, key, fn);
  if (!fn.is_none()) {
    keyer.add(Sequence{arguments.ptr(), values, 0});
    // What values have another graph for, they have another record for, too.
    if (values->list.size() != 0) keyer.add(values->list.identity());
  } else if (!arguments.empty()) {
    throw py::type_error("graphcache: arguments without fn");
  }
  return std::move(keyer).finish();
}

// The arguments of a run without the addresses and floats that may move. A run with like ones needs no new key.
class ArgumentKinds {
 public:
  // Of arguments in lists and tuples, nothing is known.
  // `all` is empty.
  ArgumentKinds(const py::args& arguments, Arguments all) {
    for (const py::handle one : arguments) {
      Kind& kind = kinds_.emplace_back();
      if (THPVariable_Check(one.ptr())) {
        const at::Tensor& tensor = THPVariable_Unpack(one.ptr());
        kind.what = all.take(tensor) ? Kind::kMoving : Kind::kStaying;
        kind.address = tensor.data_ptr();
        kind.keys = tensor.key_set();
        kind.type = tensor.scalar_type();
        kind.device = tensor.get_device();
        kind.requires_grad = tensor.requires_grad();
        kind.sizes = tensor.sizes().vec();
        kind.strides = tensor.strides().vec();
      } else if (PyFloat_Check(one.ptr()) && all.take(PyFloat_AS_DOUBLE(one.ptr()))) {
        kind.what = Kind::kNumber;
      } else {
        is_known_ = is_known_ && !PyTuple_Check(one.ptr()) && !PyList_Check(one.ptr());
        if (is_known_) kind.object = py::reinterpret_borrow<py::object>(one);
      }
    }
    identity_ = all.list.identity();
  }

  bool are_known() const { return is_known_; }
  // Whether these are like them. Sets whether their values are the same words.
  bool are(const py::args& arguments, const std::vector<std::uint64_t>& words, bool* are_equal) const {
    if (!is_known_ || static_cast<std::size_t>(PyTuple_GET_SIZE(arguments.ptr())) != kinds_.size()) return false;
    *are_equal = true;
    auto note = [&, word = words.begin()](const auto& value) mutable {
      *are_equal = *are_equal && std::memcmp(&*word, &value, sizeof *word) == 0;
      ++word;
    };
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      PyObject* const one = PyTuple_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i));
      const Kind& kind = kinds_[i];
      if (kind.what == Kind::kObject) {
        if (one != kind.object.ptr()) return false;
      } else if (kind.what == Kind::kNumber) {
        if (!PyFloat_Check(one)) return false;
        note(PyFloat_AS_DOUBLE(one));
      } else {
        if (!THPVariable_Check(one)) return false;
        const at::Tensor& tensor = THPVariable_Unpack(one);
        const bool is_it = tensor.key_set() == kind.keys && tensor.scalar_type() == kind.type &&
                           tensor.requires_grad() == kind.requires_grad && tensor.get_device() == kind.device &&
                           tensor.sizes() == kind.sizes && tensor.strides() == kind.strides;
        if (!is_it) return false;
        const void* const address = tensor.data_ptr();
        if (kind.what == Kind::kMoving) {
          note(address);
        } else if (address != kind.address) {
          return false;
        }
      }
    }
    return true;
  }
  // The values of arguments that are like them, or null if their key is another one.
  std::shared_ptr<const graphcache::ValueList> values_of(const py::args& arguments) const {
    auto list = std::make_shared<graphcache::ValueList>();
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      PyObject* const one = PyTuple_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i));
      if (kinds_[i].what == Kind::kMoving) Arguments::add(THPVariable_Unpack(one), list.get());
      if (kinds_[i].what == Kind::kNumber) list->add(PyFloat_AS_DOUBLE(one));
    }
    return list->identity() == identity_ ? list : nullptr;
  }

 private:
  struct Kind {
    enum { kObject, kNumber, kMoving, kStaying } what = kObject;
    py::object object;  // the same one each time
    const void* address = nullptr;
    c10::DispatchKeySet keys;  // with the device's type, the layout, and what is lazy about it
    c10::ScalarType type = c10::ScalarType::Undefined;
    c10::DeviceIndex device = -1;
    bool requires_grad = false;
    std::vector<std::int64_t> sizes, strides;
  };

  std::vector<Kind> kinds_;
  std::uint64_t identity_ = 0;
  bool is_known_ = true;
};

}  // namespace gnu::visibility("hidden")]]torch_keys
}  // namespace graphcache
