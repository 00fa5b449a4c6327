// The class behind graphcache_torch.Cache. For module.cc.
#pragma once

#include <graphcache/graphcache.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graphcache_torch.h"
#include "interpreter.h"
#include "keys.h"

namespace py = pybind11;

namespace {  // For pybind11's visibility: module.cc alone includes this.

using graphcache::Key;
using graphcache::Keyer;
using graphcache::Outcome;
using namespace graphcache::torch_keys;

// The Python class Cache. Its members are used only with the interpreter's lock; runs do not hold that lock.
class PyCache {
 public:
  PyCache(int max_executables, const std::optional<std::size_t>& max_device_bytes, int max_templates, int capture_after,
          const std::string& share, const std::string& pools, const std::optional<int>& device, bool copy_inputs,
          bool inline_in_foreign_capture, const std::string& on_capture_failure, bool diagnose,
          const py::iterable& listeners)
      : copies_inputs_(copy_inputs) {
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
    options.inline_in_foreign_capture = inline_in_foreign_capture;
    options.diagnose = diagnose;
    using graphcache::OnCaptureFailure;
    options.on_capture_failure = choice<OnCaptureFailure>(
        "on_capture_failure", on_capture_failure,
        {{"run_directly", OnCaptureFailure::kRunDirectly}, {"return_error", OnCaptureFailure::kReturnError}});
    using graphcache::Share;
    options.share = choice<Share>(
        "share", share, {{"never", Share::kNever}, {"when_full", Share::kWhenFull}, {"always", Share::kAlways}});
    for (const py::handle listener : listeners) {
      if (PyCallable_Check(listener.ptr()) == 0) throw py::type_error("graphcache: a listener must be callable");
      listeners_.push_back(std::make_shared<PyListener>(py::reinterpret_borrow<py::object>(listener)));
      options.listeners.push_back(listeners_.back());
    }
    options.device = device.value_or(c10::cuda::current_device());
    if (options.device < 0 || options.device >= c10::cuda::device_count()) {
      throw py::value_error("graphcache: there is no device " + std::to_string(options.device));
    }
    using Pools = graphcache::TorchCache::Pools;
    const auto kind = choice<Pools>("pools", pools, {{"shared", Pools::kShared}, {"one_per_key", Pools::kOnePerKey}});
    {
      // It may wait for another thread's capture, which needs the interpreter's lock.
      const WithoutGil nogil;
      torch_ = std::make_unique<graphcache::TorchCache>(std::move(options), kind);
    }
    if (absl::Status status = torch_->cache().status(); !status.ok()) {
      destroy();
      raise(status);
    }
  }
  ~PyCache() {
    if (!is_of_this_process() || !has_interpreter()) {
      // CUDA's objects are of another process, or threads that use them have been stopped: they end with the process.
      static_cast<void>(torch_.release());
      static_cast<void>(new std::shared_ptr<Records>(records_));
      return;
    }
    destroy();
  }
  PyCache(const PyCache&) = delete;
  PyCache& operator=(const PyCache&) = delete;

  py::object run(const py::handle& key, const Applied& call) {
    // A run inside a capture becomes part of it, and has no graph of its own.
    const bool is_inside = graphcache::torch_detail::capturing != nullptr;
    Whole whole = is_inside ? of_inner_run(key, call) : identify(key, call);
    make_buffers(whole);
    const InFlight in_flight(whole.movement);
    py::object returned;
    What may_move = What::kAll;
    const absl::StatusOr<Outcome> outcome = [&] {
      const WithoutGil nogil;
      const Inputs inputs(this, whole);
      const Call fn{this, whole, key, call.fn(), call.passed(), &returned, &may_move};
      return whole.moves() ? torch().run(*whole.key, *whole.list, fn) : torch().run(*whole.key, fn);
    }();
    if (!outcome.ok()) raise(outcome.status());
    const bool is_call = *outcome == Outcome::kEager || *outcome == Outcome::kInlined;
    const py::object result = is_call ? returned : result_of(*whole.key, call.passed(), whole.movement.get());
    if (is_call && whole.moves() && torch().leaves_tensors(*whole.key)) lower(&may_move, What::kNothing);
    if (may_move != What::kAll) limit(whole, may_move);
    return result;
  }

  py::object run_graph(const py::object& key, const py::object& make) {
    Arguments none(device());
    const Key whole = make_key(key, make, Passed(), &none);
    py::object returned;
    const absl::StatusOr<Outcome> outcome = [&] {
      const WithoutGil nogil;
      return torch().run_graph(whole, Make{this, whole, make, &returned});
    }();
    if (!outcome.ok()) raise(outcome.status());
    return *outcome == Outcome::kEager ? returned : result_of(whole, Passed(), nullptr);
  }

  void warm(const py::handle& key, const Applied& call, bool was_called = false) {
    Whole whole = identify(key, call);
    make_buffers(whole);
    const graphcache::Options& options = torch().cache().options();
    py::object returned;
    What may_move = What::kAll;
    const Call fn{this, whole, key, call.fn(), call.passed(), &returned, &may_move};
    if (options.capture_after > 0 && !was_called && !graphcache::torch_detail::is_inside_capture(device()) &&
        !torch().cache().contains(*whole.key)) {
      const c10::cuda::CUDAGuard guard(device());
      const absl::Status status = [&] {
        const WithoutGil nogil;
        return fn();
      }();
      if (!status.ok()) raise(status);
      if (may_move != What::kAll) {
        limit(whole, may_move);
        warm(key, call, /*was_called=*/true);
        return;
      }
    }
    const absl::Status status = [&] {
      const WithoutGil nogil;
      return whole.moves() ? torch().warm(*whole.key, *whole.list, fn) : torch().warm(*whole.key, fn);
    }();
    if (!status.ok()) raise(status);
    if (whole.moves() && torch().leaves_tensors(*whole.key)) lower(&may_move, What::kNothing);
    if (may_move != What::kAll) {
      limit(whole, may_move);
      warm(key, call, /*was_called=*/true);
    }
  }

  // What Cache does with the key of such a run.
  template <class Do>
  auto with_key(const py::handle& key, const Applied& call, const Do& f) {
    const Key whole = *identify(key, call, false).key;
    graphcache::Cache& cache = torch().cache();
    const WithoutGil nogil;
    return f(cache, whole);
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
    for (const auto& listener : listeners_) {
      if (listener->callable() == nullptr) continue;
      if (const int stop = visit(listener->callable(), with); stop != 0) return stop;
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
    for (const auto& listener : listeners_) gone.push_back(listener->let_go());
  }

 private:
  void destroy() {
    const WithoutGil nogil;  // it may wait for the device, or take the interpreter's lock
    torch_.reset();
  }

  struct Record;
  // Of runs that differ in nothing but addresses and floats. All of these belong to the key, until one changes. From
  // then on they are values, except tensors that fn does not let move.
  struct Movement {
    enum class What { kUnknown, kAll, kNumbers, kNothing } what = What::kUnknown;
    std::vector<std::uint64_t> words;  // what the first run passed, or once something moves, the last one
    std::shared_ptr<const graphcache::ValueList> list;  // these, once something moves
    std::shared_ptr<const Key> key;                     // of the first run
    std::shared_ptr<const Key> moving;                  // the key as if everything moved
    std::shared_ptr<const Key> place;                   // the same in every life
    const char* why_direct = nullptr;                   // why a graph would be wrong, if it would
    bool has_numbers = false;                           // whether floats are among what moves
    // Weak references to the objects that count by identity, if they can have any. When one ends, another one may get
    // its address, and has another movement, with keys of another life.
    std::vector<py::object> watched;
    bool is_over = false;
    std::uint64_t life = 0;
    int runs = 0;                  // in flight; guarded by the interpreter's lock
    std::unique_ptr<Record> late;  // of a graph that was dropped meanwhile, perhaps behind its launch
  };
  using What = Movement::What;
  class InFlight {
   public:
    explicit InFlight(std::shared_ptr<Movement> movement) : movement_(std::move(movement)) {
      if (movement_ != nullptr) ++movement_->runs;
    }
    ~InFlight() {
      if (movement_ != nullptr && --movement_->runs == 0) const auto late = std::move(movement_->late);
    }
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;

   private:
    const std::shared_ptr<Movement> movement_;
  };
  static void lower(What* what, What to) { *what = std::max(*what, to); }
  static constexpr std::size_t kMostMovements = 10000;  // keys that never come back must not pile up
  // What a graph reads in place of arguments that are copied.
  using Buffers = std::shared_ptr<const std::vector<at::Tensor>>;
  // How what a run passes counts.
  struct Whole {
    std::shared_ptr<const Key> key;
    std::shared_ptr<const graphcache::ValueList> list;  // what moves
    std::shared_ptr<Movement> movement;                 // null in a run inside another one's capture
    std::vector<at::Tensor> inputs = {};                // arguments that are copied
    std::vector<std::size_t> firsts = {};               // Arguments::firsts
    Buffers buffers = nullptr;                          // where to
    bool tensors_move = false;
    bool moves() const { return list != nullptr && list->size() != 0; }
  };
  // What is known of runs with one key and one fn.
  struct Known {
    ArgumentKinds kinds;
    std::shared_ptr<Movement> movement;
    std::vector<std::size_t> firsts;  // Arguments::firsts
  };
  static constexpr std::size_t kMostKnown = 64;  // the others build their keys

  Whole identify(const py::handle& key, const Applied& call, bool is_run = true) {
    const Passed& passed = call.passed();
    Keyer keyer;
    begin_key(keyer, key, call.fn());
    const Key without_arguments = std::move(keyer).finish();
    bool are_equal = false;
    Whole whole;
    const auto known = known_.find(without_arguments);
    const bool is_new = known == known_.end();
    const std::vector<Known> none;
    for (const Known& one : is_new ? none : known->second) {
      if (one.movement->is_over) continue;
      if (!one.kinds.are(passed, one.movement->words, &are_equal)) continue;
      if (!are_equal && (whole.list = one.kinds.values_of(passed)) == nullptr) continue;
      if (copies_inputs_) {
        whole.inputs = one.kinds.inputs_of(passed);
        if (Arguments::firsts_of(whole.inputs) != one.firsts) continue;
        whole.firsts = one.firsts;
      }
      whole.movement = one.movement;
      break;
    }
    if (whole.movement == nullptr) {
      const std::size_t most = kMostMovements + 2 * records_->size();
      if (movements_.size() > most || known_.size() > most) forget_movements_without_graphs();
      Arguments all = arguments(What::kAll);
      Identities identities;
      const auto place = std::make_shared<const Key>(make_key(key, call.fn(), passed, &all));
      const Identities::Objects objects = identities.take();
      const auto begin = reinterpret_cast<const std::uint64_t*>(all.list.data());
      const std::vector<std::uint64_t> words(begin, begin + all.list.size());
      const Arguments like(device(), all.tensors, all.numbers_move);
      whole.list = std::make_shared<const graphcache::ValueList>(std::move(all.list));
      whole.inputs = std::move(all.copied);
      whole.firsts = std::move(all.firsts);
      const auto found = movements_.find(*place);
      const std::shared_ptr<Movement> past = found != movements_.end() ? found->second : nullptr;
      if (is_run && (is_new || (past != nullptr && past->is_over))) note_fn(key, call.fn());
      if (past != nullptr && !past->is_over) {
        whole.movement = past;
      } else {
        whole.movement = std::make_shared<Movement>();
        whole.movement->place = place;
        whole.movement->life = past != nullptr ? ++lives_ : first_life_;
        whole.movement->words = words;
        whole.movement->why_direct = all.why_direct;
        whole.movement->has_numbers = all.has_numbers;
        const std::uint64_t life = whole.movement->life;
        whole.movement->moving = key_with(arguments(What::kAll), key, call, life).key;
        whole.movement->key =
            words.empty() ? whole.movement->moving : key_with(arguments(What::kNothing), key, call, life).key;
        if (is_run) {
          watch(whole.movement, objects);
          movements_[*place] = whole.movement;
          if (past != nullptr) {
            erase(past->key);
            erase(past->moving);
          }
        }
      }
      are_equal = whole.movement->words == words;
      Known one{ArgumentKinds(passed, like), whole.movement, whole.firsts};
      if (is_run) {
        std::vector<Known>& of_fn = known_[without_arguments];  // Python code may have run meanwhile.
        of_fn.erase(std::remove_if(of_fn.begin(), of_fn.end(), [](const Known& of) { return of.movement->is_over; }),
                    of_fn.end());
        if (one.kinds.are_known() && of_fn.size() < kMostKnown) of_fn.push_back(std::move(one));
      }
    }
    Movement& movement = *whole.movement;
    if (movement.why_direct != nullptr) {
      whole.key = movement.what == What::kUnknown ? movement.key : movement.moving;
      whole.list = nullptr;
      return whole;
    }
    if (movement.what == What::kNumbers || movement.what == What::kNothing) {
      Whole rest = key_with(arguments(movement.what), key, call, movement.life);
      rest.movement = std::move(whole.movement);
      return rest;
    }
    if (movement.what == What::kUnknown && are_equal) {
      whole.key = movement.key;
      whole.list = nullptr;
      return whole;
    }
    whole.key = movement.moving;
    whole.tensors_move = arguments(What::kAll).tensors == Arguments::Tensors::kMove;
    if (are_equal) {
      whole.list = movement.list;
    } else if (is_run) {
      const auto begin = reinterpret_cast<const std::uint64_t*>(whole.list->data());
      movement.words.assign(begin, begin + whole.list->size());
      movement.list = whole.list;
      if (std::exchange(movement.what, What::kAll) == What::kUnknown) {
        erase(movement.key);
      }
    }
    return whole;
  }
  // `values` are empty.
  Whole key_with(Arguments values, const py::handle& key, const Applied& call, std::uint64_t life = 0) const {
    auto whole = std::make_shared<const Key>(make_key(key, call.fn(), call.passed(), &values, life));
    return {std::move(whole), std::make_shared<const graphcache::ValueList>(std::move(values.list)), nullptr,
            std::move(values.copied), std::move(values.firsts)};
  }
  Whole of_inner_run(const py::handle& key, const Applied& call) const {
    return key_with(Arguments(device()), key, call);
  }
  // How arguments count. With a pool for each key, a result of an earlier run may lie where the graph has temporaries,
  // so tensors stay.
  Arguments arguments(What what) const {
    using Tensors = Arguments::Tensors;
    const bool may_move = what == What::kAll && torch().has_one_pool();
    return Arguments(device(),
                     copies_inputs_ ? Tensors::kCopied
                     : may_move     ? Tensors::kMove
                                    : Tensors::kStay,
                     what != What::kNothing && torch().has_one_pool());
  }
  // From now on no more than this moves.
  void limit(const Whole& whole, What what) {
    whole.movement->what = what;
    erase(whole.key);
  }
  void erase(const std::shared_ptr<const Key>& key) {
    const WithoutGil nogil;
    torch().cache().erase(*key);
  }
  // The movement is over when one of these objects ends.
  static void watch(const std::shared_ptr<Movement>& movement, const Identities::Objects& objects) {
    using Of = std::weak_ptr<Movement>;
    static PyMethodDef end = {"end",
                              [](PyObject* of, PyObject*) {
                                if (const auto over = static_cast<Of*>(PyCapsule_GetPointer(of, nullptr))->lock()) {
                                  over->is_over = true;
                                }
                                return py::none().release().ptr();
                              },
                              METH_O, nullptr};
    const py::capsule of(new Of(movement), [](void* one) { delete static_cast<Of*>(one); });
    const auto call = py::reinterpret_steal<py::object>(PyCFunction_New(&end, of.ptr()));
    if (!call) throw py::error_already_set();
    for (const auto& entry : objects) {
      auto reference = py::reinterpret_steal<py::object>(PyWeakref_NewRef(entry.first, call.ptr()));
      if (reference) {
        movement->watched.push_back(std::move(reference));
      } else {
        PyErr_Clear();
      }
    }
  }
  void forget_movements() {
    first_life_ = ++lives_;  // nothing watches the objects of the others any more
    // Behind what they are in, because the end of an object may run Python code.
    const auto movements = std::exchange(movements_, {});
    const auto known = std::exchange(known_, {});
    const auto fns = std::exchange(fns_, {});
  }
  void forget_movements_without_graphs() {
    forget_movements();
    for (const auto& [key, records] : *records_) {
      if (const auto& movement = records.back()->movement) movements_.emplace(*movement->place, movement);
    }
  }

  // Warns of a program that makes its fn anew, so that it counts as another one each time.
  void note_fn(const py::handle& key, const py::handle& fn) {
    constexpr int kMany = 128;
    PyObject* code = code_of(fn.ptr());
    if (!PyCode_Check(code)) code = reinterpret_cast<PyObject*>(Py_TYPE(code));
    Keyer keyer;
    add_simple(keyer, key.ptr());
    keyer.add(static_cast<const void*>(code));
    if (++fns_[std::move(keyer).finish()] != kMany) return;
    const std::string text = "graphcache: " + std::string(py::str(fn)) + " is the " + std::to_string(kMany) +
                             "th function of one key with this code. Each counts as another one, by what it has closed "
                             "over or by its identity: pass that as arguments";
    if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) != 0) throw py::error_already_set();
  }

  // Buffers for what is copied, which a capture of this run takes if the key's graph has none.
  void make_buffers(Whole& whole) const {
    if (whole.inputs.empty() || whole.movement->why_direct != nullptr) return;
    if (graphcache::torch_detail::is_inside_capture(device())) return;  // of other code, where nothing is launched
    whole.buffers = buffers_of(whole);
    if (whole.buffers != nullptr) return;
    std::vector<at::Tensor> all;
    for (std::size_t i = 0; i < whole.inputs.size(); ++i) {
      const at::Tensor& input = whole.inputs[i];
      const std::size_t first = whole.firsts[i];
      all.push_back(first == i ? at::empty_strided(input.sizes(), input.strides(), input.options()) : all[first]);
    }
    whole.buffers = std::make_shared<const std::vector<at::Tensor>>(std::move(all));
  }
  // Those that the key's graph reads, or those of this run if there is none. Needs no lock of the interpreter.
  Buffers buffers_of(const Whole& whole) const {
    const std::lock_guard lock(records_->mutex);
    const auto found = records_->find(*whole.key);
    return found != records_->end() ? found->second.back()->buffers : whole.buffers;
  }
  // Copies what a run passes to the buffers, before each launch in its scope.
  class Inputs {
   public:
    Inputs(const PyCache* cache, const Whole& whole) {
      if (whole.buffers != nullptr)
        copy_ = [cache, &whole] {
          const Buffers buffers = cache->buffers_of(whole);  // another thread may have captured the key meanwhile
          // The backward() of a graph that this run has captured needs them: PyTorch must not count that as a change.
          const bool has_captured = graphcache::torch_detail::captures_of_run > 0;
          std::vector<at::Tensor> from, to;
          for (std::size_t i = 0; i < whole.inputs.size(); ++i) {
            if (whole.firsts[i] != i) continue;
            from.push_back(whole.inputs[i]);
            to.push_back(has_captured ? (*buffers)[i].variable_data() : (*buffers)[i]);
          }
          const at::NoGradGuard without_gradients;
          if (std::all_of(to.begin(), to.end(), has_foreach)) {
            at::_foreach_copy_(to, from, /*non_blocking=*/true);
            return;
          }
          for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i], /*non_blocking=*/true);
        };
      graphcache::torch_detail::before_launch = copy_ ? &copy_ : nullptr;
    }
    ~Inputs() { graphcache::torch_detail::before_launch = outer_; }
    Inputs(const Inputs&) = delete;
    Inputs& operator=(const Inputs&) = delete;

   private:
    // Whether the kernel of _foreach_copy_ has its type.
    static bool has_foreach(const at::Tensor& tensor) {
      constexpr std::array kTypes = {at::kBool,  at::kByte,   at::kChar,         at::kShort,
                                     at::kInt,   at::kLong,   at::kHalf,         at::kBFloat16,
                                     at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};
      return std::find(kTypes.begin(), kTypes.end(), tensor.scalar_type()) != kTypes.end();
    }

    std::function<void()> copy_;
    const std::function<void()>* const outer_ = graphcache::torch_detail::before_launch;
  };
  c10::DeviceIndex device() const { return static_cast<c10::DeviceIndex>(torch().cache().options().device); }

  // What a key's graph uses, and what its runs return. Objects that the key contains by identity are kept alive, so
  // that their addresses are not reused.
  struct Record {
    std::shared_ptr<Movement> movement;  // null for a graph that the program has made
    py::object kept;
    py::object result;        // with capsules for what fn was given and returns
    bool is_rebuilt = false;  // whether each run makes new containers for it, or returns what it was given
    Buffers buffers = nullptr;
    // Tensors of the result that fn was given, each with its number among given_parts().
    std::vector<std::pair<PyObject*, std::size_t>> given = {};
    // A tensor of the result that the graph writes. The program may change what it is, and may let go of it. One with a
    // backward() is not replaced.
    struct Made {
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> returned;
      at::Tensor like;
      bool has_backward;
      explicit Made(const at::Tensor& tensor)
          : returned(tensor.getIntrusivePtr()), like(tensor.detach()), has_backward(tensor.requires_grad()) {}
      at::Tensor tensor() const { return at::Tensor(returned.lock()); }
      bool is_changed(const at::Tensor& now) const {
        if (has_backward) return false;
        return now.requires_grad() || now.data_ptr() != like.data_ptr() || now.scalar_type() != like.scalar_type() ||
               now.sizes() != like.sizes() || now.strides() != like.strides();
      }
    };
    std::vector<Made> made = {};
  };
  // The records of each key's graphs, the oldest first. A graph keeps its record, and is destroyed last. A thread needs
  // the mutex and the interpreter's lock to change them, and one of the two to read them.
  struct Records : std::unordered_map<Key, std::vector<Record*>> {
    std::mutex mutex;
  };

  // A record that a graph keeps. Called with the interpreter's lock; released without it, perhaps after the cache's
  // object is gone (~TorchCache).
  std::shared_ptr<void> record_of(const Key& key, const std::shared_ptr<Movement>& movement, py::object kept,
                                  const py::object& result, const Passed& passed, const Buffers& buffers,
                                  const std::vector<at::Tensor>& tensors) {
    auto made = std::make_unique<Record>(Record{movement, std::move(kept), {}, false, buffers});
    for (const at::Tensor& tensor : tensors) made->made.emplace_back(tensor);
    // What fn was given is that of each run. The graph must not keep a list, dict or object, as it may be large.
    const std::vector<py::object> given = given_parts(passed);
    const auto mark = [&](PyObject* part, Holder holder) -> py::object {
      if (!is_mutable(part, holder) && !is_tensor(part)) return {};
      made->is_rebuilt = made->is_rebuilt || (holder != Holder::kObject && holder != Holder::kNone);
      const auto is_it = [&](const py::object& one) { return one.ptr() == part; };
      const auto found = std::find_if(given.begin(), given.end(), is_it);
      if (found == given.end()) return {};
      made->is_rebuilt = true;
      if (is_tensor(part)) {
        made->given.emplace_back(part, found - given.begin());
        return {};
      }
      return py::capsule(reinterpret_cast<void*>(found - given.begin() + 1), kArgument);
    };
    made->result = Changed(mark)(result.ptr());
    Record* const record = made.release();
    {
      const std::lock_guard lock(records_->mutex);
      (*records_)[key].push_back(record);
    }
    return {record, [key, records = records_](Record* gone) {
              if (!has_interpreter()) return;
              const WithGil gil;
              {
                const std::lock_guard lock(records->mutex);
                const auto found = records->find(key);
                std::vector<Record*>& of_key = found->second;
                of_key.erase(std::remove(of_key.begin(), of_key.end(), gone), of_key.end());
                if (of_key.empty()) records->erase(found);
              }
              // Last, because that may run Python code.
              std::unique_ptr<Record> dropped(gone);
              if (gone->movement != nullptr && gone->movement->runs > 0) gone->movement->late.swap(dropped);
            }};
  }
  py::object result_of(const Key& key, const Passed& passed, Movement* movement) const {
    const auto found = records_->find(key);
    Record* const of_run = found != records_->end() ? found->second.back()
                           : movement != nullptr    ? movement->late.get()
                                                    : nullptr;
    if (of_run == nullptr) throw std::runtime_error("graphcache: the key was erased during its run");
    Record& record = *of_run;
    renew(&record);
    const py::object result = record.result;
    if (!result) throw std::runtime_error("graphcache: the garbage collector has cleared the cache");
    if (!record.is_rebuilt) return result;
    const std::vector<py::object> given = given_parts(passed);
    const auto unmark = [&](PyObject* part, Holder) -> py::object {
      for (const auto& [tensor, number] : record.given) {
        if (tensor == part) return given.at(number);
      }
      if (PyCapsule_IsValid(part, kArgument) == 0) return {};
      return given.at(reinterpret_cast<std::uintptr_t>(PyCapsule_GetPointer(part, kArgument)) - 1);
    };
    return Changed(unmark, /*copies_all=*/true)(result.ptr());
  }
  // Behind a replay. A tensor that the program has changed in another way than by its contents is replaced. PyTorch
  // then knows that the others have new contents: what an earlier run returned is no longer there for a backward().
  static void renew(Record* record) {
    bool any = false;
    for (const Record::Made& one : record->made) {
      const at::Tensor tensor = one.tensor();
      if (!tensor.defined()) continue;
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
      any = any || one.is_changed(tensor);
    }
    if (!any || !record->result) return;
    const auto change = [&](PyObject* part, Holder) -> py::object {
      if (!is_tensor(part)) return {};
      const at::Tensor& tensor = THPVariable_Unpack(part);
      for (Record::Made& one : record->made) {
        if (!tensor.is_same(one.tensor()) || !one.is_changed(tensor)) continue;
        const at::Tensor renewed = one.like.detach();
        one = Record::Made(renewed);
        return py::cast(renewed);
      }
      return {};
    };
    record->result = Changed(change)(record->result.ptr());
  }
  static constexpr const char* kArgument = "graphcache_torch.argument";
  // The tensors, lists, dicts and objects among the arguments, and in them.
  static std::vector<py::object> given_parts(const Passed& passed) {
    std::vector<py::object> parts;
    walk(passed, Into::kAll, [&](PyObject* part, Holder holder) {
      if (is_mutable(part, holder) || is_tensor(part)) parts.push_back(py::reinterpret_borrow<py::object>(part));
    });
    return parts;
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
    Whole& whole;
    const py::handle key;
    const py::object& fn;
    const Passed& passed;
    py::object* returned;
    What* may_move;  // lowered to what fn lets move

    absl::Status operator()() const { return call_with(nullptr); }
    absl::Status operator()(const graphcache::ListedValues& values) const { return call_with(&values); }

   private:
    // Calls fn as it would be called with these values, if there are any.
    absl::Status call_with(const graphcache::ListedValues* values) const {
      const WithGil gil;
      try {
        return call(values);
      } catch (const py::error_already_set& error) {
        if (error.matches(PyExc_Exception)) throw;
        throw OrderToStop(error);
      }
    }
    absl::Status call(const graphcache::ListedValues* values) const {
      const bool is_captured = cache->torch_->captures_call();  // else directly, or as a part of another run's capture
      if (is_captured && whole.movement->why_direct != nullptr) {
        return absl::FailedPreconditionError(whole.movement->why_direct);
      }
      py::list kept;  // fn may change its closure
      const auto keep = [&](PyObject* one) { kept.append(py::reinterpret_borrow<py::object>(one)); };
      if (is_captured) {
        for_each_of_callable(fn.ptr(), keep);
        for_each_identity(key.ptr(), keep);
        for (PyObject* const one : passed) for_each_identity(one, keep);
      }
      const bool is_again = values != nullptr && cache->torch_->captures_call_again();
      if (is_captured && !is_again && whole.buffers != nullptr) {
        whole.buffers = cache->buffers_of(whole);
        // What an earlier graph's backward() needs is no longer there.
        for (const at::Tensor& one : *whole.buffers) {
          if (!one.is_inference()) one.unsafeGetTensorImpl()->bump_version();
        }
      }
      std::vector<py::object> others;
      std::vector<PyObject*> pointers;
      Passed now = passed;
      if (is_again || (is_captured && whole.buffers != nullptr)) {
        std::size_t number = 0, copied = 0;
        const auto change = [&](PyObject* part, Holder) {
          return is_again ? with_value(part, *values, &number, &copied) : with_buffer(part, &copied);
        };
        Changed changed(change);
        for (PyObject* const one : passed) {
          others.push_back(changed(one));
          pointers.push_back(others.back().ptr());
        }
        now.values = pointers.data();
      }
      if (is_again) {
        *returned = call_python(fn, now);
      } else if (absl::Status status = call_once(now, is_captured); !status.ok()) {
        return status;
      }
      std::vector<at::Tensor> made;
      if (is_captured || whole.moves()) *returned = cache->as_results(*returned, whole, may_move, &made);
      if (is_captured && whole.movement->why_direct != nullptr) {
        return absl::FailedPreconditionError(whole.movement->why_direct);
      }
      if (is_captured) {
        cache->torch_->keep(
            cache->record_of(*whole.key, whole.movement, std::move(kept), *returned, passed, whole.buffers, made));
      }
      return absl::OkStatus();
    }
    // The call whose work counts. A replay repeats nothing else that it does.
    absl::Status call_once(const Passed& now, bool is_captured) const {
      if (whole.movement == nullptr) {
        *returned = call_python(fn, now);
        return absl::OkStatus();
      }
      const std::optional<Key> before = contents_of(now);
      const std::vector<std::size_t> uses = whole.tensors_move ? uses_of(now) : std::vector<std::size_t>();
      const std::uint64_t writes = writes_of(now);
      const char*& why = whole.movement->why_direct;
      const auto check_contents = [&] {
        if (contents_of(now) == before) return;
        why = "fn changes its arguments, which a replay would not do";
        if (!is_captured) return;
        // A second call would change them again.
        PyErr_SetString(PyExc_RuntimeError,
                        "graphcache: fn changes its arguments, and has done so under capture, where nothing is "
                        "computed. A direct run notices it before (capture_after)");
        throw OrderToStop(py::error_already_set());
      };
      try {
        *returned = call_python(fn, now);
      } catch (const py::error_already_set&) {
        check_contents();
        throw;
      }
      check_contents();
      // A tensor that fn keeps elsewhere would be that of this call for ever.
      if (whole.tensors_move && has_more(uses_of(now), uses)) lower(may_move, What::kNumbers);
      if (writes_of(now) == writes) return absl::OkStatus();
      why = "fn writes into an argument that is copied for a graph";
      return is_captured ? absl::FailedPreconditionError(why) : absl::OkStatus();
    }
    // All that a call passes and holds, or nothing if that cannot be said.
    std::optional<Key> contents_of(const Passed& now) const {
      try {
        Keyer keyer;
        Arguments staying(cache->device());
        keyer.add(PassedParts{now, &staying});
        return std::move(keyer).finish();
      } catch (const py::builtin_exception&) {
        return std::nullopt;
      }
    }
    // How often the tensors that are copied were written, as far as PyTorch counts it: not in inference mode.
    std::uint64_t writes_of(const Passed& now) const {
      std::uint64_t writes = 0;
      if (whole.inputs.empty()) return writes;
      walk(now, Into::kContainers, [&](PyObject* part, Holder) {
        if (!is_exact_tensor(part)) return;
        const at::Tensor& tensor = THPVariable_Unpack(part);
        if (!Arguments::may_be_copied(tensor, cache->device()) || tensor.is_inference()) return;
        writes += static_cast<std::uint64_t>(tensor._version());
      });
      return writes;
    }
    // The numbers of references to each tensor among these, to its memory, and to what it is in.
    static std::vector<std::size_t> uses_of(const Passed& now) {
      std::vector<std::size_t> uses;
      const auto add = [&](auto count) { uses.push_back(static_cast<std::size_t>(count)); };
      walk(now, Into::kContainers, [&](PyObject* part, Holder holder) {
        if (is_tensor(part)) {
          const at::Tensor& tensor = THPVariable_Unpack(part);
          add(Py_REFCNT(part));
          add(tensor.use_count());
          add(tensor.storage().use_count());
        } else if (holder != Holder::kNone && holder != Holder::kObject) {
          add(Py_REFCNT(part));
        }
      });
      return uses;
    }
    // Whether any number has grown. Another one may have shrunk.
    static bool has_more(const std::vector<std::size_t>& uses, const std::vector<std::size_t>& before) {
      return !std::equal(uses.begin(), uses.end(), before.begin(), before.end(), std::less_equal<>());
    }
    // The value of this part, the first of which is number `number`: another object for a tensor, without its memory.
    // Null for other parts. As in Arguments.
    py::object with_value(PyObject* part, const graphcache::ListedValues& values, std::size_t* number,
                          std::size_t* copied) const {
      if (*number == whole.list->size()) return with_buffer(part, copied);
      if (is_number(part)) return number_like(part, values.number((*number)++));
      if (!is_exact_tensor(part) || !whole.tensors_move) return with_buffer(part, copied);
      const at::Tensor& tensor = THPVariable_Unpack(part);
      if (!Arguments::may_move(tensor, cache->device())) return {};
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
    // The buffer of this part if it is copied, or null.
    py::object with_buffer(PyObject* part, std::size_t* copied) const {
      const bool is_copied = whole.buffers != nullptr && is_exact_tensor(part) &&
                             Arguments::may_be_copied(THPVariable_Unpack(part), cache->device());
      return is_copied ? py::cast(whole.buffers->at((*copied)++)) : py::object();
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
      const py::object made = call_python(make, Passed());
      const bool is_pair = py::isinstance<py::tuple>(made) && py::len(made) == 2;
      const py::object graph = is_pair ? py::object(made[py::int_(0)]) : made;
      auto& captured = graph.cast<at::cuda::CUDAGraph&>();
      *returned = is_pair ? py::object(made[py::int_(1)]) : py::none();
      return {cache->record_of(key, nullptr, py::make_tuple(graph, make), *returned, Passed(), nullptr, {}), &captured};
    }
  };

  // Whether a backward() of this run may need the tensor: it is an error if a replay counts as a change of that.
  static bool may_be_saved(const at::Tensor& tensor) {
    return !tensor.is_inference() && (tensor.use_count() > 1 || !tensor.unsafeGetTensorImpl()->unique_version());
  }

  // What fn has returned, with copies of the tensors that the capture has allocated, in memory where no other key has
  // temporaries. Tensors that are not found, such as those in attributes, are noticed by check_what_is_left().
  // Tensors that fn was given must not move if it returns them, or a view: a replay would return that of the capture.
  // Nor if what it returns has a backward(), which reads them.
  // One tensor becomes one result. `made` are those whose contents replays change, for PyTorch as well.
  py::object as_results(py::object returned, const Whole& whole, What* may_move, std::vector<at::Tensor>* made) {
    const auto is_given = [&](const void* storage) {
      if (!whole.moves()) return false;
      const auto memory = whole.list->memory();
      return std::any_of(memory.begin(), memory.end(), [&](const auto& one) {
        const auto offset = reinterpret_cast<std::uintptr_t>(storage) - reinterpret_cast<std::uintptr_t>(one.begin);
        return offset < one.bytes;
      });
    };
    const auto is_buffer = [&](const at::Tensor& tensor) {
      if (whole.buffers == nullptr) return false;
      const auto shares = [&](const at::Tensor& one) { return one.storage().data() == tensor.storage().data(); };
      return std::any_of(whole.buffers->begin(), whole.buffers->end(), shares);
    };
    struct Result {
      at::Tensor of, tensor;
    };
    std::unordered_map<const c10::TensorImpl*, Result> results;  // by what they are of
    const auto copy = [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda() || !tensor.has_storage()) return tensor;
      const auto found = results.find(tensor.unsafeGetTensorImpl());
      if (found != results.end()) return found->second.tensor;
      // The next run writes a buffer before it replays.
      const bool must_copy = torch_->captures_call() && is_buffer(tensor);
      const bool may_copy = must_copy || torch_->is_of_capture(tensor);
      const bool is_shared = may_copy && may_be_saved(tensor);
      const bool is_copied =
          may_copy && (torch_->begin_results() || must_copy || (is_shared && !tensor.requires_grad()));
      const at::Tensor result = is_copied ? tensor.clone() : tensor;
      if (whole.tensors_move && (tensor.requires_grad() || is_given(result.storage().data()))) {
        lower(may_move, What::kNumbers);
      }
      if (is_copied || (may_copy && !is_shared)) made->push_back(result);
      results[tensor.unsafeGetTensorImpl()] = {tensor, result};
      return result;
    };
    const auto change = [&](PyObject* part, Holder holder) -> py::object {
      const bool is_leaf = holder == Holder::kNone || holder == Holder::kObject;
      const bool is_fixed =
          is_tensor(part) ? THPVariable_Unpack(part).is_cuda() : is_constant(part) || PyType_Check(part);
      // It may be a number that it was given, or made of one.
      if (is_leaf && !is_fixed && whole.moves() && whole.movement->has_numbers) lower(may_move, What::kNothing);
      if (whole.movement != nullptr) {
        const bool is_used_up = PyIter_Check(part) || PyCoro_CheckExact(part) || PyAsyncGen_CheckExact(part);
        if (is_used_up) whole.movement->why_direct = "fn returns an iterator or a coroutine, which serves once";
        if (is_tensor(part) && (!is_exact_tensor(part) || THPVariable_Unpack(part).is_nested())) {
          whole.movement->why_direct = "fn returns a tensor of a class of its own, which a graph would not make";
        }
        if (whole.movement->why_direct != nullptr) return py::reinterpret_borrow<py::object>(part);
      }
      if (is_tensor(part)) return py::cast(copy(THPVariable_Unpack(part)));
      if (is_constant(part) || PyFloat_Check(part) || !is_leaf) return {};
      // What else PyTorch takes for a container.
      return py::module_::import("torch.utils._pytree")
          .attr("tree_map_only")(py::module_::import("torch").attr("Tensor"), py::cpp_function(copy), py::handle(part));
    };
    try {
      return Changed(change)(returned.ptr());
    } catch (const py::value_error&) {  // of check_depth()
      if (whole.movement == nullptr) throw;
      whole.movement->why_direct = "what fn returns contains itself, or is nested too deeply";
      return returned;
    }
  }

  std::shared_ptr<Records> records_ = std::make_shared<Records>();
  std::unordered_map<Key, std::shared_ptr<Movement>> movements_;  // each by all that does not move
  std::unordered_map<Key, std::vector<Known>> known_;
  std::uint64_t lives_ = 0, first_life_ = 0;  // the last life, and that of a movement at addresses that are new
  std::unordered_map<Key, int> fns_;          // how many there are of one code
  std::vector<std::shared_ptr<PyListener>> listeners_;
  const bool copies_inputs_;
  std::unique_ptr<graphcache::TorchCache> torch_;
};

}  // namespace
