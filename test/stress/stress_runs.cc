// Runs of the stress test: their `fn`, their outcomes, and the expected memory of the lane.
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/errors.h"
#include "graph/recording.h"
#include "graphcache/graphcache.h"
#include "graphcache/hostrt.h"
#include "kernels.h"
#include "stress_world.h"
#include "support.h"

namespace graphcache::test::stress {

// Memory that a graph keeps. A copy after its release shows.
struct Kept {
  explicit Kept(int the_constant) : constant(the_constant) { ++kept_objects; }
  ~Kept() {
    constant = -1;
    --kept_objects;
  }
  Kept(const Kept&) = delete;
  int constant;
};

// Slots if the key is shared, values if it belongs to the lane.
template <bool kSlots>
struct Lane::Body {
  Lane& lane;
  KeyState& state;
  const Behaviour& behaviour;
  Calls& calls;
  Nested nested = Nested::kNone;
  Memory* memory = nullptr;
  Values values = {};

  absl::Status operator()(Recorder& rec, Slot<int*> p, Slot<int*> q, Slot<int> a, Slot<unsigned> grid,
                          Slot<std::size_t> bytes) const {
    return enqueue(rec, p, q, a, grid, bytes);
  }
  absl::Status operator()(Recorder& rec) const {
    return enqueue(rec, memory->p, memory->q, values.a, dim3(values.grid), values.bytes);
  }

 private:
  template <class P, class A, class G, class B>
  absl::Status enqueue(Recorder& rec, P p, P q, A a, G grid, B bytes) const {
    if (active_recording == nullptr) {
      ++calls.direct;
      ++lane.direct_;
    } else if (++calls.captured == 1 && !calls.inlined) {
      ++state.capturing;
      ++state.captures;
    }
    if (lane.operation_ % 3 == 0) std::this_thread::yield();  // lets others meet what this run holds
    if (behaviour.kind == Behaviour::kBreaks) {
      active_recording != nullptr ? (void)cudaStreamSynchronize(rec.stream()) : lane.synchronize();
    }
    for (std::size_t i = 0; i <= state.recipe.size(); ++i) {
      if (i == behaviour.before) {
        if (behaviour.kind == Behaviour::kReturns) return absl::AbortedError("on purpose");
        if (behaviour.kind == Behaviour::kThrows) throw OnPurpose();
        if (behaviour.kind == Behaviour::kLeaves) {
          (void)launch(do_nothing, dim3(0), dim3(1), rec.stream());
          return absl::OkStatus();
        }
      }
      if (i == 1 || (i == 0 && state.recipe.size() == 0)) {
        if (absl::Status status = lane.run_nested(nested, rec.stream()); !status.ok()) return status;
      }
      if (i == state.recipe.size()) break;
      if (const cudaError_t error = step(rec, state.recipe[i], p, q, a, grid, bytes); error != cudaSuccess) {
        return detail::fn_failure(error);
      }
    }
    return absl::OkStatus();
  }

  template <class P, class A, class G, class B>
  cudaError_t step(Recorder& rec, const Step& step, P p, P q, A a, G grid, B bytes) const {
    const LaunchShape shape(dim3(step.grid), dim3(kBlock));
    switch (step.kind) {
      case Step::kBlend:
        rec.launch(blend, shape, p, kSize, step.factor, a);
        break;
      case Step::kBlendOtherwise:
        rec.launch(blend_otherwise, shape, p, kSize, step.factor, a);
        break;
      case Step::kBlendIn:
        rec.launch(blend_in, shape, p, q, kSize, step.factor);
        break;
      case Step::kSet:
        rec.memset(q, a, bytes);
        break;
      case Step::kCopy:
        rec.memcpy(q, p, bytes);
        break;
      case Step::kGrid:
        rec.launch(blend, {grid, dim3(kBlock)}, q, kSize, step.factor, step.constant);
        break;
      case Step::kNothing:
        rec.launch(do_nothing, shape);
        break;
      case Step::kKept: {
        auto kept = std::make_shared<Kept>(step.constant);
        rec.keep(std::shared_ptr<const void>(kept, &kept->constant));
        rec.memcpy(q, &kept->constant, sizeof(int));
        break;
      }
      case Step::kFork: {
        cudaError_t error = cudaEventRecord(lane.fork_, rec.stream());
        if (error == cudaSuccess) error = cudaStreamWaitEvent(lane.side_, lane.fork_, 0);
        if (error != cudaSuccess) return error;
        rec.on(lane.side_).launch(blend, shape, q, kSize, step.factor, a);
        error = cudaEventRecord(lane.join_, lane.side_);
        return error != cudaSuccess ? error : cudaStreamWaitEvent(rec.stream(), lane.join_, 0);
      }
    }
    return cudaSuccess;
  }
};

absl::StatusOr<Outcome> Lane::call(KeyState& state, cudaStream_t stream, const Values& values,
                                   const Behaviour& behaviour) {
  Calls calls;
  return checked(state, behaviour, calls, [&] {
    return world_.cache.run(state.key, stream, params(+memory_->p, +memory_->q, values.a, values.grid, values.bytes),
                            Body<true>{*this, state, behaviour, calls});
  });
}

absl::StatusOr<Outcome> Lane::call_own(KeyState& state, cudaStream_t stream, const Values& values, Memory* memory,
                                       const Behaviour& behaviour, Nested nested) {
  Calls calls;
  return checked(state, behaviour, calls, [&] {
    return world_.cache.run(state.key, stream, Body<false>{*this, state, behaviour, calls, nested, memory, values});
  });
}

// One run: compares its outcome with the calls of `fn` and the knowledge of the key.
template <class Run>
absl::StatusOr<Outcome> Lane::checked(KeyState& state, const Behaviour& behaviour, Calls& calls, Run&& run) {
  const bool inside = active_recording != nullptr;
  doing_ += " " + state.key.to_string();
  const std::uint64_t forgotten = std::max(state.forgotten.load(), world_.cleared.load());
  calls.inlined = inside;
  const absl::Cleanup over = [&] {
    if (calls.captured == 0 || inside) return;
    raise(state.captured, ++world_.clock);
    --state.capturing;
  };
  absl::StatusOr<Outcome> outcome = absl::AbortedError("on purpose");
  bool thrown = false;
  try {
    outcome = run();
  } catch (const OnPurpose&) {
    thrown = true;
  }
  if (!inside) captures_begun += static_cast<std::uint64_t>(calls.captured);
  if (!outcome.ok()) {
    ++failed;
    const absl::Status& status = outcome.status();
    if (calls.captured > 1 || calls.direct > 1) fail("fn was called too often by a run that failed");
    const bool wanted = behaviour.kind == Behaviour::kReturns || behaviour.kind == Behaviour::kThrows ||
                        behaviour.kind == Behaviour::kLeaves;
    const bool called = calls.captured + calls.direct != 0;
    const bool in_broken_capture = inside && is_capture_error(cuda_error(status));
    if (!world_.plan.injects && !(wanted && called) && !in_broken_capture) fail("a run failed: " + status.ToString());
    const bool typed = cuda_error(status) != cudaSuccess || absl::IsAborted(status);
    if (!typed || (!thrown && !mentions(status, std::string(state.key.label())))) {
      fail("an error does not say what failed: " + status.ToString());
    }
    return outcome;
  }
  ++outcomes[static_cast<std::size_t>(*outcome)];
  doing_ += std::string(" ") + to_string(*outcome);
  const auto wrong = [&](const char* what) { fail(std::string("a run ") + to_string(*outcome) + ", and " + what); };
  switch (*outcome) {
    case Outcome::kReplayed:
    case Outcome::kPatched:
    case Outcome::kSwitched:
    case Outcome::kRestored:
      if (calls.captured + calls.direct != 0) wrong("fn was called");
      if (!may_be_recorded(state, forgotten)) wrong("the key was not recorded since it was forgotten");
      break;
    case Outcome::kUpdated:
    case Outcome::kInstantiated:
      if (calls.captured != 1 || calls.direct != 0) wrong("fn was not called once, under capture");
      break;
    case Outcome::kEager:
      if (calls.captured > 1 || calls.direct != 1) wrong("fn was not called once directly");
      break;
    case Outcome::kInlined:
      if (!inside || calls.direct != 0 || calls.captured > 1) wrong("it was in no capture");
      break;
  }
  if (inside != (*outcome == Outcome::kInlined)) wrong("it was not inlined");
  return outcome;
}

absl::Status Lane::run_nested(Nested nested, cudaStream_t stream) {
  static constexpr Behaviour kGood;
  const auto number = static_cast<std::size_t>(number_);
  switch (nested) {
    case Nested::kNone:
      return absl::OkStatus();
    case Nested::kInlined:
      return call_own(*world_.own[number * kOwnKeys + 1], stream, {1, 2, 8}, memory_, kGood, Nested::kNone).status();
    case Nested::kWithParams:
      return call(*world_.shared[0], stream, {3, 2, 8}, kGood).status();
    case Nested::kElsewhere:
      return call_own(*world_.apart[number], side_, {4, 1, 16}, apart_, kGood, Nested::kNone).status();
  }
  return absl::OkStatus();
}

void Lane::warm(Random& random) {
  KeyState& state = *world_.shared[static_cast<std::size_t>(random.below(world_.plan.shared_keys))];
  const Values values = random_values(random);
  const Behaviour behaviour = random_behaviour(random, world_.plan);
  Calls calls;
  const absl::Cleanup over = [&] {
    captures_begun += static_cast<std::uint64_t>(calls.captured);
    if (calls.direct != 0 || calls.captured > 1) fail("warm called fn too often");
    direct_ = 0;
    if (calls.captured == 0) return;
    raise(state.captured, ++world_.clock);
    --state.capturing;
  };
  absl::Status status = absl::AbortedError("on purpose");
  try {
    status =
        world_.cache.warm(state.key, stream_, params(+memory_->p, +memory_->q, values.a, values.grid, values.bytes),
                          Body<true>{*this, state, behaviour, calls});
  } catch (const OnPurpose&) {
  }
  if (status.ok()) return compare("after a warm");
  ++failed;
  const bool wanted = behaviour.kind != Behaviour::kGood || values.bytes == 0 ||
                      world_.plan.options.capture_mode == cudaStreamCaptureModeGlobal;
  if (!world_.plan.injects && !wanted) fail("a warm failed: " + status.ToString());
  compare("after a warm that failed");
}

// Applies the operation to the model, and compares.
void Lane::settle(const absl::StatusOr<Outcome>& result, const std::vector<Part>& parts, const Behaviour& behaviour) {
  const int direct = std::exchange(direct_, 0);
  if (result.ok()) {
    for (const Part& part : parts) {
      for (const Step& step : *part.recipe) apply(step, part.values, &(this->*part.expected));
    }
    if (!world_.plan.is_late() || operation_ % 4 == 0) compare("after a run");
    return;
  }
  // The cache launched none of the work, but what `fn` enqueued directly before it failed was done. With injected
  // failures it may have ended at any step; a run that `fn` made continues then.
  if (direct != 0) {
    synchronize();
    if (!world_.plan.injects && parts.size() == 1) {
      for (std::size_t i = 0; i < behaviour.before; ++i) apply((*parts[0].recipe)[i], parts[0].values, &expected_);
    } else {
      take_some_of(parts, 0);
    }
  }
  compare(("after a run that failed (" + result.status().ToString() + ")").c_str());
}

// If the memory is the result of the first steps of each part, sets the model to it and returns true.
bool Lane::take_some_of(const std::vector<Part>& parts, std::size_t from) {
  if (from == parts.size()) {
    return std::memcmp(&expected_, memory_, sizeof(Memory)) == 0 &&
           std::memcmp(&expected_apart_, apart_, sizeof(Memory)) == 0;
  }
  const Part& part = parts[from];
  const Memory before = this->*part.expected;
  Memory reached = before;
  for (std::size_t i = 0;; ++i) {
    this->*part.expected = reached;
    if (take_some_of(parts, from + 1)) return true;
    if (i == part.recipe->size()) break;
    apply((*part.recipe)[i], part.values, &reached);
  }
  this->*part.expected = before;
  return false;
}

void Lane::synchronize() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // this must break no capture
  while (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
  }
  for (const cudaStream_t stream : {stream_, static_cast<cudaStream_t>(side_)}) {
    cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess && !world_.dying)
      fail(std::string("a stream cannot be waited for: ") + cudaGetErrorName(error));
    if (error != cudaSuccess) cudaGetLastError();
  }
  while (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
  }
}

void Lane::compare(const char* when) {
  if (world_.plan.is_late()) synchronize();
  const auto text = [](const Memory& memory) {
    std::string values;
    for (const int value : memory.p) values += std::to_string(value) + " ";
    values += "| ";
    for (const int value : memory.q) values += std::to_string(value) + " ";
    return values;
  };
  if (world_.dying) return;  // work was dropped
  if (std::memcmp(&expected_, memory_, sizeof(Memory)) != 0) {
    fail(std::string(when) + " memory holds " + text(*memory_) + ", wanted " + text(expected_));
  }
  if (std::memcmp(&expected_apart_, apart_, sizeof(Memory)) != 0) {
    fail(std::string(when) + " memory apart holds " + text(*apart_) + ", wanted " + text(expected_apart_));
  }
}

}  // namespace graphcache::test::stress
