// The extension of the Python package graphcache_torch. Its functions are described by the docstrings at the end.
#include <cxxabi.h>
#include <graphcache/graphcache.h>
#include <graphcache/version.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graphcache_torch.h"
#include "keys.h"

namespace py = pybind11;

namespace {

using graphcache::Key;
using graphcache::Keyer;
using graphcache::Outcome;
using namespace graphcache::torch_keys;

// What fn raised is an order to stop: KeyboardInterrupt, SystemExit, or another error that is no Exception.
struct OrderToStop : py::error_already_set {
  explicit OrderToStop(const py::error_already_set& error) : py::error_already_set(error) {}
};

}  // namespace

// Such an error ends a run. After any other, a run that has captured fn calls it again, directly.
template <>
struct graphcache::OrdersToStop<> {
  using Types = graphcache::TypeList<OrderToStop>;
};

namespace {

// Whether the interpreter still exists, so that its lock can be taken. If not, its objects end with the process.
bool has_interpreter() {
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

py::object call_python(const py::object& fn, const py::args& arguments) {
  PyObject* const returned = unless_finalized([&] { return PyObject_CallObject(fn.ptr(), arguments.ptr()); });
  if (returned == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(returned);
}

[[noreturn]] void raise(const absl::Status& status) {
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

// The Python class Cache. Its members are used only with the interpreter's lock; runs do not hold that lock.
class PyCache {
 public:
  PyCache(int max_executables, const std::optional<std::size_t>& max_device_bytes, int max_templates, int capture_after,
          const std::string& share, const std::string& pools, const std::optional<int>& device) {
    if (c10::cuda::device_count() == 0) {
      throw std::runtime_error(
          "graphcache: PyTorch finds no CUDA device: is this a build of PyTorch with CUDA, and is there a driver?");
    }
    py::module_::import("torch.cuda").attr("init")();  // PyTorch initialises CUDA at its first call in Python
    graphcache::Options options;
    options.max_executables = max_executables;
    options.listeners = {std::make_shared<graphcache::History>()};  // For advise().
    options.max_device_bytes = max_device_bytes.value_or(SIZE_MAX);
    options.max_templates = max_templates;
    options.capture_after = capture_after;
    using graphcache::Share;
    options.share = share == "never"       ? Share::kNever
                    : share == "when_full" ? Share::kWhenFull
                    : share == "always"
                        ? Share::kAlways
                        : throw py::value_error("graphcache: share is \"never\", \"when_full\" or \"always\"");
    options.device = device.value_or(c10::cuda::current_device());
    if (options.device < 0 || options.device >= c10::cuda::device_count()) {
      throw py::value_error("graphcache: there is no device " + std::to_string(options.device));
    }
    using Pools = graphcache::TorchCache::Pools;
    const Pools kind = pools == "shared" ? Pools::kShared
                       : pools == "one_per_key"
                           ? Pools::kOnePerKey
                           : throw py::value_error("graphcache: pools is \"shared\" or \"one_per_key\"");
    {
      // It may wait for another thread's capture, which needs the interpreter's lock.
      const WithoutGil nogil;
      torch_ = std::make_unique<graphcache::TorchCache>(std::move(options), kind);
    }
    if (absl::Status status = torch_->cache().status(); !status.ok()) raise(status);
  }
  ~PyCache() {
    if (!is_of_this_process() || !has_interpreter()) {
      // CUDA's objects are of another process, or threads that use them have been stopped: they end with the process.
      static_cast<void>(torch_.release());
      static_cast<void>(new std::shared_ptr<Records>(records_));
      return;
    }
    const WithoutGil nogil;  // destruction may wait for the device or take the interpreter's lock
    torch_.reset();
  }
  PyCache(const PyCache&) = delete;
  PyCache& operator=(const PyCache&) = delete;

  py::object run(const py::object& key, const py::object& fn, const py::args& arguments) {
    // A run inside a capture becomes part of it, and has no graph of its own.
    const bool is_inside = graphcache::torch_detail::capturing != nullptr;
    const Whole whole = is_inside ? key_with(What::kNothing, key, fn, arguments) : identify(key, fn, arguments);
    py::object returned;
    What may_move = What::kAll;
    const absl::StatusOr<Outcome> outcome = [&] {
      const WithoutGil nogil;
      const Call call{this, whole, fn, arguments, &returned, &may_move};
      return whole.moves() ? torch().run(*whole.key, *whole.list, call) : torch().run(*whole.key, call);
    }();
    if (!outcome.ok()) raise(outcome.status());
    const bool is_call = *outcome == Outcome::kEager || *outcome == Outcome::kInlined;
    const py::object result = is_call ? returned : result_of(*whole.key);
    if (is_call && whole.tensors_move && torch().leaves_tensors(*whole.key)) lower(&may_move, What::kNumbers);
    if (may_move != What::kAll) limit(whole, may_move);
    return result;
  }

  py::object run_graph(const py::object& key, const py::object& make) {
    Arguments none{device(), true, true, {}};
    const Key whole = make_key(key, make, py::args(), &none);
    py::object returned;
    const absl::StatusOr<Outcome> outcome = [&] {
      const WithoutGil nogil;
      return torch().run_graph(whole, Make{this, whole, make, &returned});
    }();
    if (!outcome.ok()) raise(outcome.status());
    return returned ? returned : result_of(whole);
  }

  void warm(const py::object& key, const py::object& fn, const py::args& arguments) {
    const Whole whole = identify(key, fn, arguments);
    const graphcache::Options& options = torch().cache().options();
    const auto device = static_cast<c10::DeviceIndex>(options.device);
    if (options.capture_after > 0 && !graphcache::torch_detail::is_inside_capture(device) &&
        !torch().cache().contains(*whole.key)) {
      const c10::cuda::CUDAGuard guard(device);
      const py::object unused = call_python(fn, arguments);
    }
    py::object returned;
    What may_move = What::kAll;
    const absl::Status status = [&] {
      const WithoutGil nogil;
      const Call call{this, whole, fn, arguments, &returned, &may_move};
      return whole.moves() ? torch().warm(*whole.key, *whole.list, call) : torch().warm(*whole.key, call);
    }();
    if (!status.ok()) raise(status);
    if (whole.tensors_move && torch().leaves_tensors(*whole.key)) lower(&may_move, What::kNumbers);
    if (may_move != What::kAll) {
      limit(whole, may_move);
      warm(key, fn, arguments);
    }
  }

  bool contains(const py::object& key, const py::object& fn, const py::args& arguments) {
    return torch().cache().contains(key_of(key, fn, arguments));
  }
  bool erase(const py::object& key, const py::object& fn, const py::args& arguments) {
    const Key whole = key_of(key, fn, arguments);
    const WithoutGil nogil;
    return torch().cache().erase(whole);
  }
  bool pin(const py::object& key, const py::object& fn, const py::args& arguments) {
    const Key whole = key_of(key, fn, arguments);
    const WithoutGil nogil;
    return torch().cache().pin(whole);
  }
  bool unpin(const py::object& key, const py::object& fn, const py::args& arguments) {
    const Key whole = key_of(key, fn, arguments);
    const WithoutGil nogil;
    return torch().cache().unpin(whole);
  }
  std::string explain(const py::object& key, const py::object& fn, const py::args& arguments) {
    const Key whole = key_of(key, fn, arguments);
    const WithoutGil nogil;
    return graphcache::explain(torch().cache(), whole);
  }
  // At the end of `with`, which a child process may reach as well.
  void exit() {
    if (is_of_this_process()) clear();
  }
  void clear() {
    forget_movements();
    const WithoutGil nogil;
    torch().cache().clear();
  }
  void register_generator(const at::Generator& generator) {
    const WithoutGil nogil;
    torch().register_generator(generator);
  }

  py::dict stats() const {
    const graphcache::Stats stats = torch().cache().stats();
    py::dict all;
    for (int i = 0; i < graphcache::kOutcomeCount; ++i) {
      all[graphcache::to_string(static_cast<Outcome>(i))] = stats.outcomes[static_cast<std::size_t>(i)];
    }
    all["failed"] = stats.failed;
    all["captures"] = stats.captures;
    all["capture_failures"] = stats.capture_failures;
    all["instantiations"] = stats.instantiations;
    all["updates"] = stats.updates;
    all["set_switches"] = stats.set_switches;
    all["evictions"] = stats.evictions;
    all["forgotten"] = stats.forgotten;
    all["live_executables"] = stats.live_executables;
    all["live_templates"] = stats.live_templates;
    all["families"] = stats.families;
    all["estimated_device_bytes"] = stats.estimated_device_bytes;
    using Seconds = std::chrono::duration<double>;
    all["capture_seconds"] = Seconds(stats.capture_time).count();
    all["instantiate_seconds"] = Seconds(stats.instantiate_time).count();
    all["update_seconds"] = Seconds(stats.update_time).count();
    all["first_launch_seconds"] = Seconds(stats.first_launch_time).count();
    all["hit_rate"] = stats.hit_rate();
    all["graph_rate"] = stats.graph_rate();
    return all;
  }
  std::string report() const { return graphcache::to_string(torch().cache().stats()); }
  std::string repr() const {
    if (!is_of_this_process()) return "<graphcache_torch.Cache of another process>";
    const graphcache::Stats stats = torch().cache().stats();
    return "<graphcache_torch.Cache of device " + std::to_string(torch().cache().options().device) + ": " +
           std::to_string(stats.live_templates) + " graphs, " + std::to_string(stats.live_executables) +
           " executables>";
  }
  py::list advise() const {
    const std::vector<graphcache::Finding> findings = [&] {
      const WithoutGil nogil;
      return graphcache::advise(torch().cache());
    }();
    py::list all;
    for (const graphcache::Finding& finding : findings) {
      all.append(py::make_tuple(graphcache::to_string(finding.kind), finding.label, finding.text, finding.cure));
    }
    return all;
  }

  // Visits the objects that the cache keeps, for the garbage collector.
  int traverse(visitproc visit, void* with) const {
    for (const auto& [key, records] : *records_) {
      for (const Record* record : records) {
        for (PyObject* const object : {record->kept.ptr(), record->result.ptr()}) {
          if (object == nullptr) continue;
          if (const int stop = visit(object, with); stop != 0) return stop;
        }
      }
    }
    return 0;
  }
  void let_go() {
    std::vector<py::object> gone;
    for (const auto& [key, records] : *records_) {
      for (Record* record : records) {
        gone.push_back(std::move(record->kept));
        gone.push_back(std::move(record->result));
      }
    }
  }

 private:
  // How what a run passes counts.
  struct Whole {
    std::shared_ptr<const Key> key;
    std::shared_ptr<const graphcache::ValueList> list;  // what moves
    std::shared_ptr<const Key> moving;                  // the key as if everything moved
    bool tensors_move = false;
    bool moves() const { return list != nullptr && list->size() != 0; }
  };
  // Of runs that differ in nothing but addresses and floats. All of these belong to the key, until one changes. From
  // then on they are values, except tensors that fn does not let move.
  struct Movement {
    enum class What { kUnknown, kAll, kNumbers, kNothing } what = What::kUnknown;
    std::vector<std::uint64_t> words;  // what the first run passed, or once something moves, the last one
    std::shared_ptr<const graphcache::ValueList> list;  // these, once something moves
    std::shared_ptr<const Key> key;                     // of the first run
    std::shared_ptr<const Key> moving;                  // the key as if everything moved
  };
  using What = Movement::What;
  static void lower(What* what, What to) { *what = std::max(*what, to); }
  static constexpr std::size_t kMostMovements = 10000;  // keys that never come back must not pile up
  // What is known of runs with one key and one fn.
  struct Known {
    ArgumentKinds kinds;
    std::shared_ptr<Movement> movement;
  };
  static constexpr std::size_t kMostKnown = 64;  // the others build their keys

  Whole identify(const py::object& key, const py::object& fn, const py::args& arguments, bool is_run = true) {
    Keyer keyer;
    begin_key(keyer, key, fn);
    const Key without_arguments = std::move(keyer).finish();
    const std::vector<Known>& known = known_[without_arguments];
    bool are_equal = false;
    std::shared_ptr<Movement> movement;
    std::shared_ptr<const graphcache::ValueList> list;
    for (const Known& one : known) {
      if (!one.kinds.are(arguments, one.movement->words, &are_equal)) continue;
      if (!are_equal && (list = one.kinds.values_of(arguments)) == nullptr) continue;
      movement = one.movement;
      break;
    }
    if (movement == nullptr) {
      Arguments all = all_arguments();
      Key moving = make_key(key, fn, arguments, &all);
      const auto begin = reinterpret_cast<const std::uint64_t*>(all.list.data());
      const std::vector<std::uint64_t> words(begin, begin + all.list.size());
      list = std::make_shared<const graphcache::ValueList>(std::move(all.list));
      if (const auto found = movements_.find(moving); found != movements_.end()) {
        movement = found->second;
      } else {
        movement = std::make_shared<Movement>();
        movement->words = words;
        movement->moving = std::make_shared<const Key>(moving);
        movement->key = words.empty() ? movement->moving : key_with(What::kNothing, key, fn, arguments).key;
        if (is_run) movements_[moving] = movement;
      }
      are_equal = movement->words == words;
      if (movements_.size() > kMostMovements || known_.size() > kMostMovements) forget_movements();
      std::vector<Known>& of_fn = known_[without_arguments];  // Python code may have run meanwhile.
      ArgumentKinds kinds(arguments, all_arguments());
      if (is_run && kinds.are_known() && of_fn.size() < kMostKnown) of_fn.push_back({std::move(kinds), movement});
    }
    if (movement->what == What::kNumbers || movement->what == What::kNothing) {
      Whole rest = key_with(movement->what, key, fn, arguments);
      rest.moving = movement->moving;
      return rest;
    }
    if (movement->what == What::kUnknown && are_equal) return {movement->key, nullptr, movement->moving, false};
    const bool tensors_move = torch().has_one_pool();
    if (are_equal) return {movement->moving, movement->list, movement->moving, tensors_move};
    const Whole whole{movement->moving, list, movement->moving, tensors_move};
    if (!is_run) return whole;
    const auto begin = reinterpret_cast<const std::uint64_t*>(list->data());
    movement->words.assign(begin, begin + list->size());
    movement->list = std::move(list);
    if (std::exchange(movement->what, What::kAll) == What::kUnknown) {
      const std::shared_ptr<const Key> first = std::move(movement->key);
      const WithoutGil nogil;
      torch().cache().erase(*first);
    }
    return whole;
  }
  Whole key_with(What what, const py::object& key, const py::object& fn, const py::args& arguments) const {
    Arguments values{device(), false, what == What::kNumbers, {}};
    auto whole = std::make_shared<const Key>(make_key(key, fn, arguments, &values));
    return {std::move(whole), std::make_shared<const graphcache::ValueList>(std::move(values.list)), nullptr, false};
  }
  Key key_of(const py::object& key, const py::object& fn, const py::args& arguments) {
    return *identify(key, fn, arguments, false).key;
  }
  // From now on no more than this moves.
  void limit(const Whole& whole, What what) {
    if (const auto found = movements_.find(*whole.moving); found != movements_.end()) found->second->what = what;
    const WithoutGil nogil;
    torch().cache().erase(*whole.key);
  }
  void forget_movements() {
    // Behind what they are in, because the end of an object may run Python code.
    const auto movements = std::exchange(movements_, {});
    const auto known = std::exchange(known_, {});
  }
  // With a pool for each key, a result of an earlier run may lie where the graph has temporaries, so tensors stay.
  Arguments all_arguments() const { return {device(), torch().has_one_pool(), true, {}}; }
  c10::DeviceIndex device() const { return static_cast<c10::DeviceIndex>(torch().cache().options().device); }

  // What a key's graph uses, and what its runs return. Objects that the key contains by identity are kept alive, so
  // that their addresses are not reused.
  struct Record {
    py::object kept;
    py::object result;
  };
  // The records of each key's graphs, the oldest first. A graph keeps its record, and is destroyed last.
  using Records = std::unordered_map<Key, std::vector<Record*>, graphcache::torch_detail::HashOfKey>;

  // A record that a graph keeps. Called with the interpreter's lock; released without it, perhaps after the cache's
  // object is gone (~TorchCache).
  std::shared_ptr<void> record_of(const Key& key, py::object kept, py::object result) {
    auto* const record = new Record{std::move(kept), std::move(result)};
    (*records_)[key].push_back(record);
    return {record, [key, records = records_](Record* gone) {
              if (!has_interpreter()) return;
              const WithGil gil;
              const auto found = records->find(key);
              std::vector<Record*>& of_key = found->second;
              of_key.erase(std::remove(of_key.begin(), of_key.end(), gone), of_key.end());
              if (of_key.empty()) records->erase(found);
              delete gone;  // last, because that may run Python code
            }};
  }
  py::object result_of(const Key& key) const {
    const auto found = records_->find(key);
    if (found == records_->end()) throw std::runtime_error("graphcache: another thread erased the key during its run");
    return found->second.back()->result;
  }

  bool is_of_this_process() const { return torch_->is_of_this_process(); }
  graphcache::TorchCache& torch() const {
    if (!is_of_this_process()) raise(graphcache::torch_detail::State::of_another_process());
    return *torch_;
  }

  // The fn of run and warm. They share this type, because an entry belongs to a type. Called without the interpreter's
  // lock.
  struct Call {
    PyCache* cache;
    const Whole& whole;
    const py::object& fn;
    const py::args& arguments;
    py::object* returned;
    What* may_move;  // lowered to what fn lets move

    void operator()() const { call_with(nullptr); }
    void operator()(const graphcache::ListedValues& values) const { call_with(&values); }

   private:
    // Calls fn as it would be called with these values, if there are any.
    void call_with(const graphcache::ListedValues* values) const {
      const WithGil gil;
      try {
        call(values);
      } catch (const py::error_already_set& error) {
        if (error.matches(PyExc_Exception)) throw;
        throw OrderToStop(error);
      }
    }
    void call(const graphcache::ListedValues* values) const {
      const bool is_captured = cache->torch_->captures_call();  // else directly, or as a part of another run's capture
      py::list kept;                                            // fn may change its closure
      if (is_captured) {
        kept.append(fn);
        keep_arguments(arguments, kept);
        for_each_closed_over(fn.ptr(), [&](PyObject* one) { kept.append(py::reinterpret_borrow<py::object>(one)); });
      }
      std::size_t number = 0;
      const bool is_again = values != nullptr && cache->torch_->captures_call_again();
      const std::size_t uses = is_again ? 0 : uses_of(arguments);
      *returned = call_python(fn, is_again ? py::args(with_values(arguments, *values, &number)) : arguments);
      // A tensor that fn keeps elsewhere would be that of this call for ever.
      if (!is_again && whole.tensors_move && uses_of(arguments) > uses) lower(may_move, What::kNumbers);
      if (is_captured || whole.moves()) *returned = cache->as_results(*returned, whole, may_move);
      if (is_captured) cache->torch_->keep(cache->record_of(*whole.key, std::move(kept), *returned));
    }
    // The number of references to the memory of the tensors among these.
    static std::size_t uses_of(const py::handle& of) {
      std::size_t uses = 0;
      if (PyTuple_Check(of.ptr()) || PyList_Check(of.ptr())) {
        for (const py::handle one : of) uses += uses_of(one);
      } else if (THPVariable_Check(of.ptr())) {
        uses = THPVariable_Unpack(of.ptr()).storage().use_count();
      }
      return uses;
    }
    // The arguments with these values, the first of which is number `number`: other objects for the tensors, without
    // their memory. As in Arguments.
    py::object with_values(const py::handle& of, const graphcache::ListedValues& values, std::size_t* number) const {
      const bool is_full = *number == whole.list->size();
      if (PyTuple_Check(of.ptr()) || PyList_Check(of.ptr())) {
        py::list all;
        for (const py::handle one : of) all.append(with_values(one, values, number));
        return PyTuple_Check(of.ptr()) ? py::object(py::tuple(all)) : py::object(all);
      }
      if (PyFloat_Check(of.ptr()) && !is_full) return py::float_(values.number((*number)++));
      if (!THPVariable_Check(of.ptr()) || !whole.tensors_move || is_full) return py::reinterpret_borrow<py::object>(of);
      const at::Tensor& tensor = THPVariable_Unpack(of.ptr());
      if (!Arguments::may_move(tensor, cache->device())) return py::reinterpret_borrow<py::object>(of);
      const auto offset = static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
      auto* const begin = static_cast<char*>(values.pointer((*number)++)) - offset;
      const c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                                 at::DataPtr(begin, tensor.device()));
      at::Tensor other = at::empty({0}, tensor.options());
      other.set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
      other._set_conj(tensor.is_conj());
      other._set_neg(tensor.is_neg());
      return py::cast(other);
    }
    // Keeps what belongs to the key.
    void keep_arguments(const py::handle& of, py::list& kept) const {
      if (!whole.tensors_move) {
        kept.append(of);
      } else if (PyTuple_Check(of.ptr()) || PyList_Check(of.ptr())) {
        for (const py::handle one : of) keep_arguments(one, kept);
      } else if (THPVariable_Check(of.ptr())) {
        const bool moves = Arguments::may_move(THPVariable_Unpack(of.ptr()), cache->device());
        if (!moves || whole.list->size() == graphcache::ValueList::kMost) kept.append(of);
      }
    }
  };

  // The make of run_graph: a graph, or a tuple of a graph and what runs return.
  struct Make {
    PyCache* cache;
    const Key& key;
    const py::object& make;
    py::object* returned;

    std::shared_ptr<at::cuda::CUDAGraph> operator()() const {
      const WithGil gil;
      const py::object made = call_python(make, py::args());
      const bool is_pair = py::isinstance<py::tuple>(made) && py::len(made) == 2;
      const py::object graph = is_pair ? py::object(made[py::int_(0)]) : made;
      auto& captured = graph.cast<at::cuda::CUDAGraph&>();
      *returned = is_pair ? py::object(made[py::int_(1)]) : py::none();
      return {cache->record_of(key, py::make_tuple(graph, make), *returned), &captured};
    }
  };

  // What fn has returned, with copies of the tensors that the capture has allocated, in memory where no other key has
  // temporaries. Tensors that are not found, such as those in attributes, are noticed by check_what_is_left().
  // Tensors that fn was given must not move if it returns them, or a view: a replay would return that of the capture.
  // Nor if what it returns has a backward(), which reads them.
  py::object as_results(py::object returned, const Whole& whole, What* may_move) {
    const auto is_given = [&](const void* storage) {
      if (!whole.moves()) return false;
      const auto memory = whole.list->memory();
      return std::any_of(memory.begin(), memory.end(), [&](const auto& one) {
        const auto offset = reinterpret_cast<std::uintptr_t>(storage) - reinterpret_cast<std::uintptr_t>(one.begin);
        return offset < one.bytes;
      });
    };
    const auto copy = py::cpp_function([&](const at::Tensor& tensor) {
      if (!tensor.is_cuda() || !tensor.has_storage()) return tensor;
      const bool is_new = torch_->is_of_capture(tensor);
      const at::Tensor result = is_new && torch_->begin_results() ? tensor.clone() : tensor;
      if (whole.tensors_move && (tensor.requires_grad() || is_given(result.storage().data())))
        lower(may_move, What::kNumbers);
      return result;
    });
    if (!returned.is_none()) {
      const py::module_ trees = py::module_::import("torch.utils._pytree");
      returned = trees.attr("tree_map_only")(py::module_::import("torch").attr("Tensor"), copy, returned);
      // A float may be one that it was given.
      for (const py::handle leaf : whole.moves() ? py::list(trees.attr("tree_leaves")(returned)) : py::list()) {
        if (PyFloat_Check(leaf.ptr())) lower(may_move, What::kNothing);
      }
    }
    return returned;
  }

  std::shared_ptr<Records> records_ = std::make_shared<Records>();
  std::unordered_map<Key, std::shared_ptr<Movement>, graphcache::torch_detail::HashOfKey> movements_;  // by all that
                                                                                                       // does not move
  std::unordered_map<Key, std::vector<Known>, graphcache::torch_detail::HashOfKey> known_;
  std::unique_ptr<graphcache::TorchCache> torch_;
};

// Whether the object has its PyCache yet.
bool is_constructed(PyObject* self) {
  return reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().holder_constructed();
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

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "CUDA graphs for PyTorch, cached by launch configuration.";
  m.attr("__version__") = graphcache::kVersion;
  module_type = py::object(py::module_::import("torch.nn").attr("Module")).release().ptr();
  training = PyUnicode_InternFromString("training");

  py::class_<PyCache>(m, "Cache", py::custom_type_setup(collect_cycles), R"(A cache of CUDA graphs of one device.

    cache = graphcache_torch.Cache()
    out = cache.run(("decode", batch), step, tokens, positions)

The first run of a key calls step(tokens, positions), and the second one captures it (capture_after=1). Later runs
replay it, with one call, and return the same tensors, with new contents. The key is what decides which work is done:
int, bool, str, None, and tuples of these. The arguments are part of it, a tensor by its shape, strides and type, and by
its memory until a run has another one. From then on its address is patched, and so are floats. So
are fn's code, what fn has closed over, and PyTorch's modes (grad, inference, autocast). Objects count by identity,
modules also by their training flag; attributes and globals that fn reads do not count. What fn computes on the CPU is
not repeated.

Runs are on the current stream. By default the keys share the memory of their temporaries, so all runs of a cache are on
one stream. pools="one_per_key" gives each key its own. Each run of a key writes its results anew.)")
      .def(py::init<int, const std::optional<std::size_t>&, int, int, const std::string&, const std::string&,
                    const std::optional<int>&>(),
           py::kw_only(), py::arg("max_executables") = 64, py::arg("max_device_bytes") = py::none(),
           py::arg("max_templates") = 512, py::arg("capture_after") = 1, py::arg("share") = "when_full",
           py::arg("pools") = "shared", py::arg("device") = py::none())
      .def("run", &PyCache::run, py::arg("key"), py::arg("fn"),
           "Runs fn(*arguments): by replay if the key has a graph, else directly or by capturing it. Returns what "
           "fn returned. What fn raises is raised.")
      .def("run_graph", &PyCache::run_graph, py::arg("key"), py::arg("make"),
           "Replays a graph that PyTorch has captured. make() is called where the cache has no graph for the key, and "
           "returns a torch.cuda.CUDAGraph(keep_graph=True), or a tuple of it and what the runs of the key return. The "
           "cache keeps both.")
      .def("warm", &PyCache::warm, py::arg("key"), py::arg("fn"),
           "Captures and instantiates, and waits for the upload. Where capture_after is not 0, a key without a graph "
           "runs directly before.")
      .def("contains", &PyCache::contains, py::arg("key"), py::arg("fn") = py::none(),
           "Whether a run with these arguments would replay.")
      .def("erase", &PyCache::erase, py::arg("key"), py::arg("fn") = py::none(),
           "Forgets the graph of a run with these arguments; False if there is none.")
      .def("pin", &PyCache::pin, py::arg("key"), py::arg("fn") = py::none(), "Keeps the graph from being evicted.")
      .def("unpin", &PyCache::unpin, py::arg("key"), py::arg("fn") = py::none())
      .def("explain", &PyCache::explain, py::arg("key"), py::arg("fn") = py::none(),
           "Why runs with these arguments do what they do, in sentences.")
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
}
