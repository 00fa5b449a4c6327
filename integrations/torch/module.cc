// The extension of the Python package graphcache_torch. Its functions are described by the docstrings at the end.
#include <graphcache/version.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>

#include "py_cache.h"

namespace {

// Whether the object has its PyCache yet. The garbage collector of older Pythons may meet it without its layout.
bool is_constructed(PyObject* self) {
  auto* const made = reinterpret_cast<py::detail::instance*>(self);
  const bool has_layout = made->simple_layout || made->nonsimple.values_and_holders != nullptr;
  return has_layout && made->get_value_and_holder().holder_constructed();
}

py::object run_verb(PyCache& cache, const py::handle& key, const Applied& call) { return cache.run(key, call); }
py::object warm_verb(PyCache& cache, const py::handle& key, const Applied& call) {
  cache.warm(key, call);
  return py::none();
}
template <auto Verb>
py::object verb_of_cache(PyCache& cache, const py::handle& key, const Applied& call) {
  return py::cast(cache.with_key(key, call, [](auto& of, const Key& whole) { return (of.*Verb)(whole); }));
}
py::object explain_verb(PyCache& cache, const py::handle& key, const Applied& call) {
  return py::cast(cache.with_key(key, call, [](auto& of, const Key& whole) { return graphcache::explain(of, whole); }));
}

PyCache& cache_of(PyObject* self) {
  if (!is_constructed(self)) throw py::type_error("graphcache: Cache.__init__ was not called");
  return *reinterpret_cast<PyCache*>(reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().value_ptr());
}

// A method that takes a key, fn, and the arguments of fn. pybind11 would make a tuple and a dictionary of these.
template <auto Do>
PyObject* verb(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  try {
    if (count < 2) throw py::type_error("graphcache: the first two arguments are a key and fn, by position");
    const Applied call(values[1], Passed{values + 2, count - 2, names});
    return Do(cache_of(self), values[0], call).release().ptr();
  } catch (const py::builtin_exception& error) {
    error.set_error();
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

// Collects the cycle of a model that keeps a cache which keeps methods of the model.
void collect_cycles(PyHeapTypeObject* heap_type) {
  PyTypeObject* const type = &heap_type->ht_type;
  type->tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!is_constructed(self)) return 0;
    return py::cast<PyCache&>(py::handle(self)).traverse(visit, arg);
  };
  type->tp_clear = [](PyObject* self) {
    if (is_constructed(self)) py::cast<PyCache&>(py::handle(self)).let_go();
    return 0;
  };
}

using Verb = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
PyMethodDef method(const char* name, Verb verb, const char* text) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(verb)), METH_FASTCALL | METH_KEYWORDS, text};
}
PyMethodDef methods[] = {
    method("run", verb<&run_verb>,
           "run($self, key, fn, /, *args, **kwargs)\n--\n\n"
           "Runs fn(*args, **kwargs): by replay if the key has a graph, else directly or by capturing it. Returns what "
           "fn returned. What fn raises is raised."),
    method("warm", verb<&warm_verb>,
           "warm($self, key, fn, /, *args, **kwargs)\n--\n\n"
           "Captures and instantiates, and waits for the upload. Where capture_after is not 0, a key without a graph "
           "runs directly before."),
    method("contains", verb<&verb_of_cache<&graphcache::Cache::contains>>,
           "contains($self, key, fn, /, *args, **kwargs)\n--\n\n"
           "Whether a run with these arguments would replay."),
    method("erase", verb<&verb_of_cache<&graphcache::Cache::erase>>,
           "erase($self, key, fn, /, *args, **kwargs)\n--\n\n"
           "Forgets the graph of a run with these arguments; False if there is none."),
    method("pin", verb<&verb_of_cache<&graphcache::Cache::pin>>,
           "pin($self, key, fn, /, *args, **kwargs)\n--\n\nKeeps the graph from being evicted."),
    method("unpin", verb<&verb_of_cache<&graphcache::Cache::unpin>>,
           "unpin($self, key, fn, /, *args, **kwargs)\n--\n\nLets the graph be evicted again."),
    method("explain", verb<&explain_verb>,
           "explain($self, key, fn, /, *args, **kwargs)\n--\n\n"
           "Why runs with these arguments do what they do, in sentences."),
};

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "CUDA graphs for PyTorch, cached by launch configuration.";
  m.attr("__version__") = graphcache::kVersion;
  const auto take = [](const char* module, const char* name) {
    return py::object(py::module_::import(module).attr(name)).release().ptr();
  };
  module_type = take("torch.nn", "Module");
  partial_type = take("functools", "partial");
  namespace_type = take("types", "SimpleNamespace");
  slot_names = take("copyreg", "_slotnames");
  if (py::hasattr(py::module_::import("functools"), "Placeholder")) placeholder = take("functools", "Placeholder");
  copy_of = take("copy", "copy");
  kind_of_fields = take("dataclasses", "_FIELD");
  WithoutDynamo::setter = take("torch._C._dynamo.eval_frame", "set_eval_frame");

  py::class_<PyCache> cache(m, "Cache", py::custom_type_setup(collect_cycles), R"(A cache of CUDA graphs of one device.

    cache = graphcache_torch.Cache()
    out = cache.run(("decode", batch), step, tokens, positions)

The first run of a key calls step(tokens, positions), and the second one captures it (capture_after=1). Later runs
replay it, with one call, and return the same tensors, with new contents. The key is what decides which work is done:
int, bool, str, None, and tuples of these. The arguments are part of it, a tensor by its shape, strides and type, and by
its memory until a run has another one. From then on its address is patched, and so are floats. Lists, dicts,
dataclasses and objects count by what they hold. fn's code is part of the key as well, what fn has closed over, and
PyTorch's modes (grad, inference, autocast). Modules count by identity and their training flag; globals that fn reads do
not count. What fn computes on the CPU is not repeated.

Runs are on the current stream. By default the keys share the memory of their temporaries, so all runs of a cache are on
one stream. pools="one_per_key" gives each key its own. Each run of a key writes its results anew.)");
  cache
      .def(py::init<int, const std::optional<std::size_t>&, int, int, const std::string&, const std::string&,
                    const std::optional<int>&, bool, bool, const std::string&, bool, const py::iterable&>(),
           py::kw_only(), py::arg("max_executables") = 64, py::arg("max_device_bytes") = py::none(),
           py::arg("max_templates") = 512, py::arg("capture_after") = 1, py::arg("share") = "when_full",
           py::arg("pools") = "shared", py::arg("device") = py::none(), py::arg("copy_inputs") = false,
           py::arg("inline_in_foreign_capture") = false, py::arg("on_capture_failure") = "run_directly",
           py::arg("diagnose") = false, py::arg("listeners") = py::tuple())
      .def("run_graph", &PyCache::run_graph, py::arg("key"), py::arg("make"),
           "Replays a graph that PyTorch has captured. make() is called where the cache has no graph for the key, and "
           "returns a torch.cuda.CUDAGraph(keep_graph=True), or a tuple of it and what the runs of the key return. The "
           "cache keeps both.")
      .def("clear", &PyCache::clear, "Forgets every key. Waits for the device.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](PyCache& self, const py::args&) { self.exit(); })
      .def("__repr__", &PyCache::repr)
      .def("__reduce__",
           [](const PyCache&) -> py::object {
             throw py::type_error(
                 "graphcache: a cache cannot be copied or pickled, since its graphs are of one process");
           })
      .def("register_generator", &PyCache::register_generator, py::arg("generator"),
           "For a torch.Generator besides the device's default one, before fn draws from it.")
      .def("stats", &PyCache::stats, "Counters, as a dictionary: runs by outcome, captures, evictions, ...")
      .def("report", &PyCache::report, "The counters as text.")
      .def("advise", &PyCache::advise, "What could be better: tuples of kind, label, what was seen, and the cure.");
  for (PyMethodDef& each : methods) {
    auto* const type = reinterpret_cast<PyTypeObject*>(cache.ptr());
    cache.attr(each.ml_name) = py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &each));
  }
}
