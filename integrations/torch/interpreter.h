// The interpreter: its lock, calls, errors, and listeners of Python. For module.cc.
#pragma once

#include <cxxabi.h>
#include <graphcache/graphcache.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"

namespace graphcache {
namespace [[gnu::visibility("hidden")]] torch_keys {  // As pybind11's.

// An error behind which fn must not be called again: KeyboardInterrupt, SystemExit or another one that is no Exception,
// or that fn has changed its arguments.
struct OrderToStop : py::error_already_set {
  explicit OrderToStop(const py::error_already_set& error) : py::error_already_set(error) {}
};

}  // namespace gnu::visibility("hidden")]]torch_keys
}  // namespace graphcache

// Such an error ends a run. After any other, a run that has captured fn calls it again, directly.
template <>
struct graphcache::OrdersToStop<> {
  using Types = graphcache::TypeList<graphcache::torch_keys::OrderToStop>;
};

namespace graphcache {
namespace [[gnu::visibility("hidden")]] torch_keys {  // As pybind11's.

// Whether the interpreter still exists, so that its lock can be taken. If not, its objects end with the process.
inline bool has_interpreter() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

// Python ends threads that want its lock while it finalizes, by unwinding them (before 3.14). Their destructors would
// use Python's objects, so such a thread sleeps until the process ends.
template <class F>
auto unless_finalized(const F& f) {
  try {
    return f();
  } catch (const abi::__forced_unwind&) {
    if (has_interpreter()) throw;
    while (true) pause();
  }
}

// Holds the interpreter's lock, or does not hold it.
class WithGil {
 public:
  WithGil() : state_(unless_finalized([] { return PyGILState_Ensure(); })) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    unless_finalized([this] { PyEval_RestoreThread(thread_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

// TorchDynamo, if it is at work around a run, does not see what fn does.
class WithoutDynamo {
 public:
  WithoutDynamo() : previous_(set_frame_evaluation(py::none())) {}
  ~WithoutDynamo() {
    try {
      set_frame_evaluation(previous_);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("graphcache_torch");
    }
  }
  WithoutDynamo(const WithoutDynamo&) = delete;
  WithoutDynamo& operator=(const WithoutDynamo&) = delete;

  static inline PyObject* setter = nullptr;  // Set at module initialization.

 private:
  static py::object set_frame_evaluation(const py::object& to) { return py::handle(setter)(to); }

  const py::object previous_;
};

inline py::object call_python(const py::object& fn, const Passed& passed) {
  const WithoutDynamo scope;
  PyObject* const returned = unless_finalized([&] {
    return PyObject_Vectorcall(fn.ptr(), passed.values, static_cast<std::size_t>(passed.by_position), passed.names);
  });
  if (returned == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(returned);
}

[[noreturn]] inline void raise(const absl::Status& status) {
  const std::string text(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      throw py::value_error(text);
    case absl::StatusCode::kNotFound:
      throw py::key_error(text);
    default:
      throw std::runtime_error(text);
  }
}

// A callable of Python that gets one object for each event, and for each line for people.
class PyListener final : public graphcache::Listener {
 public:
  explicit PyListener(py::object callable) : callable_(std::move(callable)) {}
  ~PyListener() override {
    if (!has_interpreter()) {
      callable_.release();
      return;
    }
    const WithGil gil;
    callable_ = py::object();
  }

  void end(const graphcache::CacheEvent& event) override {
    for (const std::string& line : take_lines()) tell({"message", {}, 0, 0, {}, nullptr, {}, line});
    const absl::string_view error = event.status.message();
    tell({to_string(event.kind),
          event.key.label(),
          event.entry,
          event.graph,
          has_duration(event.kind) ? event.end - event.begin : Seconds::zero(),
          event.outcome ? to_string(*event.outcome) : nullptr,
          {error.data(), error.size()},
          event.text});
  }
  // Any thread may have broken a capture, and hold locks of others: Python gets the line with the next event.
  void message(std::string_view line) override {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  }

  // With the interpreter's lock.
  PyObject* callable() const { return callable_.ptr(); }
  py::object let_go() { return std::exchange(callable_, py::object()); }

 private:
  using Seconds = std::chrono::duration<double>;
  // What Python gets, under these names.
  struct Said {
    const char* kind;
    std::string_view label;
    std::uint64_t entry, graph;
    Seconds seconds;
    const char* outcome;  // or null
    std::string_view error, text;
  };

  std::vector<std::string> take_lines() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }
  void tell(const Said& said) const {
    if (!has_interpreter()) return;
    const WithGil gil;
    const py::object callable = callable_;
    if (!callable) return;
    try {
      using namespace py::literals;
      callable(py::handle(namespace_type)("kind"_a = said.kind, "label"_a = said.label, "entry"_a = said.entry,
                                          "graph"_a = said.graph, "seconds"_a = said.seconds.count(),
                                          "outcome"_a = said.outcome, "error"_a = said.error, "text"_a = said.text));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(callable);
    }
  }

  py::object callable_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

// The one of these that `text` names.
template <class T>
T choice(const char* option, const std::string& text, std::initializer_list<std::pair<const char*, T>> choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names += (names.empty() ? "\"" : ", \"") + std::string(name) + "\"";
  }
  throw py::value_error("graphcache: " + std::string(option) + " is one of " + names);
}

}  // namespace gnu::visibility("hidden")]]torch_keys
}  // namespace graphcache
