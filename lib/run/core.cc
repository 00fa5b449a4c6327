#include "run/core.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "cuda/compat.h"
#include "cuda/driver.h"
#include "cuda/this_thread.h"
#include "graph/fields.h"
#include "graphcache/status.h"
#include "policy/mechanisms.h"

namespace graphcache {
namespace {

// Whether a variable of the environment switches something on.
bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  const auto is_value = [&](const char* text) { return absl::EqualsIgnoreCase(value, text); };
  constexpr const char* kNo[] = {"", "0", "no", "off", "false"};
  return value != nullptr && std::none_of(std::begin(kNo), std::end(kNo), is_value);
}

// Fills in verify_every from the environment. Returns an error if the options are invalid.
absl::Status check(Options& options) {
  if (options.device == kMinusOne) {
    return absl::InvalidArgumentError("cache_for(-1): there is no such device; devices are counted from 0");
  }
  if (options.device < 0 && options.device != Options::kCurrentDevice) {
    return absl::InvalidArgumentError(absl::StrCat("Options::device is ", options.device, ": there is no such device"));
  }
  const std::pair<const char*, int> counts[] = {{"max_executables", options.max_executables},
                                                {"capture_after", options.capture_after},
                                                {"max_templates", options.max_templates},
                                                {"verify_every", options.verify_every}};
  for (const auto& [name, count] : counts) {
    if (count >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("Options::", name, " is ", count, ": it must not be negative"));
  }
  if (std::find(options.listeners.begin(), options.listeners.end(), nullptr) != options.listeners.end()) {
    return absl::InvalidArgumentError("Options::listeners contains a null pointer");
  }
  if ((options.instantiate_flags & ~static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority)) != 0) {
    return absl::InvalidArgumentError(
        "Options::instantiate_flags may contain only cudaGraphInstantiateFlagUseNodePriority");
  }
  if (is_set("GRAPHCACHE_VERIFY") && options.verify_every == 0) {
    const absl::string_view wanted = std::getenv("GRAPHCACHE_VERIFY");
    int every = 0;
    if (wanted.find_first_not_of("0123456789") != wanted.npos || !absl::SimpleAtoi(wanted, &every)) {
      return absl::InvalidArgumentError(absl::StrCat("the environment variable GRAPHCACHE_VERIFY is '", wanted,
                                                     "': it must be a whole number from 0 to 2147483647"));
    }
    options.verify_every = every;
  }
  return absl::OkStatus();
}

// Replaces Options::kCurrentDevice by the stream's device, and counts the devices. Returns an error if there is no such
// device.
absl::Status find_device(cudaStream_t stream, int* device, int* count) {
  LastErrorGuard last_error;
  CallResult done{"cudaGetDeviceCount", cudaGetDeviceCount(count)};
  if (done.error == cudaSuccess && *device == Options::kCurrentDevice) {
    if (is_of_current_device(stream)) {
      done = {"cudaGetDevice", cudaGetDevice(device)};
    } else if (absl::Status unfit = Core::check_capture(stream); !unfit.ok()) {  // The query would break a capture.
      return unfit;
    } else {
      done = stream_device(stream, device);
    }
  }
  if (done.error != cudaSuccess) return cuda_failure(done.call, done.error);
  if (*device >= 0 && *device < *count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Options::device is ", *device, ", of ", *count, " devices"));
}

absl::Status find_or_make_context(int device, std::uint64_t* id) {
  if (const Driver& old = driver(); old.missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("the driver does not have ", old.missing,
                                                      ", which is part of CUDA 12.0: it is for CUDA ",
                                                      old.version / 1000, ".", old.version % 1000 / 10));
  }
  const LastErrorGuard last_error;
  CallResult found = find_context(device, id);
  if (found.error == cudaErrorContextIsDestroyed) {  // Since cudaDeviceReset there was no call that makes one.
    const DeviceGuard current(device);
    RelaxedCaptureMode relaxed;
    found = {"cudaFree", cudaFree(nullptr)};
    if (found.error == cudaSuccess) found = find_context(device, id);
  }
  return found.error == cudaSuccess ? absl::OkStatus() : cuda_failure(found.call, found.error);
}

}  // namespace

Core::Core(Options given)
    : invalid(check(given)),
      asked(given),
      enabled(invalid.ok() && given.max_executables > 0 && !is_set("GRAPHCACHE_DISABLE")),
      logs_to_stderr(is_set("GRAPHCACHE_LOG")),
      store({.share = given.share,
             .max_executables = static_cast<std::size_t>(std::max(given.max_executables, 0)),
             .max_device_bytes = given.max_device_bytes,
             .mechanisms = mechanisms_of_new_caches},
            static_cast<std::size_t>(std::max(given.max_templates, 0)), hits->epoch) {
  options.diagnose = given.diagnose || is_set("GRAPHCACHE_DIAGNOSE");
  hits->hits_skipped = ~(audience->hits_mask() << std::countl_zero(audience->hits_mask() | 1));
}

Core::~Core() {
  clear();
  // What it has on its device is destroyed when the capture that it ends in is over.
  if (active_recording != nullptr && device != nullptr) active_recording->keep_until_over(std::move(leaving_));
}

// So a process can make caches and then fork.
absl::Status Core::begin(cudaStream_t stream) {
  if (is_begun_.load(std::memory_order_acquire)) return absl::OkStatus();
  if (!invalid.ok()) return invalid;
  std::string undiagnosed;
  const absl::Cleanup tell = [&] {  // Without the lock, as listeners may ask for status().
    if (!undiagnosed.empty()) log(undiagnosed);
  };
  MutexLock lock(mutex_);
  if (is_begun_) return absl::OkStatus();
  if (is_fatal(cuda_error(not_begun_))) return copy_of(not_begun_);
  int of_device = options.device, devices = 0;
  not_begun_ = has_begun() ? absl::OkStatus() : find_device(stream, &of_device, &devices);
  // Other streams may do.
  if (const cudaError_t of_stream = cuda_error(not_begun_);
      of_stream == cudaErrorInvalidResourceHandle || is_capture_error(of_stream)) {
    return std::exchange(not_begun_, absl::OkStatus());
  }
  std::uint64_t context = 0;
  if (not_begun_.ok()) not_begun_ = find_or_make_context(of_device, &context);
  if (!not_begun_.ok()) return copy_of(not_begun_);
  const bool is_same = has_begun() && context == device->graveyard.context();
  const cudaError_t fatal = cuda_error(fatal_);
  // A context that was destroyed may be followed by another one.
  if (lost_ && is_same && is_fatal(fatal) && fatal != cudaErrorContextIsDestroyed) return copy_of(fatal_);
  if (!has_begun()) {
    options.device = of_device;
    device = std::make_shared<Device>(options, devices, audience);
    leaving_.assign(1, device);
    if (enabled && options.diagnose) {
      std::string why;
      diagnoser = find_diagnoser(&why);
      // The component may be unusable, for example because of a profiler.
      if (diagnoser == nullptr) undiagnosed = absl::StrCat("graphcache: captures are not diagnosed: ", why);
    }
  }
  if (!is_same) known_streams.clear();
  device->begin(context);
  fatal_ = absl::OkStatus();
  lost_ = false;
  has_begun_ = true;
  is_begun_ = true;
  // Whether no option requires other work before a hit.
  const bool is_usual =
      enabled && !options.inline_in_foreign_capture && options.verify_every == 0 && !audience->wants_launches();
  if (is_usual) hits->late_error = &device->memory->late_error;
  return absl::OkStatus();
}

absl::Status Core::check_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &capturing);
  if (error != cudaSuccess) {
    return cuda_failure("the stream of the run, which must exist and be of the cache's context, cudaStreamIsCapturing",
                        error, ": ", advice(error));
  }
  if (capturing == cudaStreamCaptureStatusNone) return absl::OkStatus();
  return cuda_failure(
      "the stream is already capturing, for another thread's run or for other code "
      "(Options::inline_in_foreign_capture)",
      cudaErrorStreamCaptureUnsupported);
}

absl::Status Core::status() const {
  if (!invalid.ok()) return invalid;
  if (is_begun_ && !lost_) return absl::OkStatus();
  MutexLock lock(mutex_);
  return copy_of(fatal_.ok() ? not_begun_ : fatal_);
}

absl::Status Core::check_context() const {
  if (!has_begun()) return absl::OkStatus();  // It has no device yet.
  std::uint64_t context = 0;
  const CallResult found = find_context(options.device, &context);
  if (found.error != cudaSuccess) return cuda_failure(found.call, found.error);
  if (context == device->graveyard.context()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the CUDA context that the cache began in is not the current one: cudaDeviceReset or cuCtxDestroy has ended it, "
      "or cuCtxSetCurrent has made another one current. Cache::clear() lets the cache begin anew");
}

// Allocates nothing, because it is called while a run ends.
bool Core::is_here() const {
  if (!has_begun() || lost_) return true;
  const LastErrorGuard last_error;
  std::uint64_t context = 0;
  const cudaError_t error = find_context(options.device, &context).error;
  return error == cudaSuccess ? context == device->graveyard.context() : !is_fatal(error);
}

absl::Status Core::failed(const Key& key, absl::Status why, bool was_told) {
  absl::Status named = with_key(why, key);
  const bool is_fatal_here = has_begun() && is_fatal(cuda_error(why));
  // The first, second, fourth, eighth ... failure, so that a program that fails all the time fills no disk.
  const bool is_due = std::has_single_bit(store.count(&Stats::failed));
  if ((is_fatal_here && !lost_) || (is_due && !was_told)) log(key, message_of(why), "a run failed: ");
  if (is_fatal_here) lose(with_text(why, absl::StrCat("since an earlier error: ", named.message())));
  return named;
}

// After a fatal error all handles are dropped, none is destroyed (fact 32), and every later run returns that error.
void Core::lose(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    fatal_.Update(why);
    lost_ = true;
  }
  device->abandon();
  drop_all();
}

void Core::log(std::string_view text, bool to_stderr) const noexcept {
  if (logs_to_stderr || to_stderr) std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  audience->message(text);
}

void Core::log(const Key& key, std::string_view what, std::string_view before, bool to_stderr) const noexcept try {
  if (!logs_to_stderr && !to_stderr && audience->empty()) return;
  log(line_of(absl::UnknownError(std::string(before).append(what)), key), to_stderr);
} catch (const std::bad_alloc&) {
}

void Core::bury_executable(Entry& entry, Loss why) {
  Recorded& of = recorded(entry);
  if (of.executable != nullptr && of.graph.empty()) of.graph = std::move(of.executable->base());
  device->graveyard.add(std::move(of.grave), take_executable(entry), {}, {}, {}, {of.content, why});
}

void Core::bury(Recorded& of, Loss why, bool set_aside) {
  device->graveyard.add(std::move(of.grave), std::move(of.executable), std::move(of.graph), std::move(of.kept),
                        of.stream, {of.content, why, /*drops_graph=*/true}, set_aside);
}

void Core::bury_template(Entry& entry, Loss why, bool set_aside) {
  entry.exec = nullptr;
  bury(recorded(entry), why, set_aside);
  entry.graphs.reset();
}

void Core::give_up(Entry& entry, Loss why, bool and_template, absl::Status error) {
  const bool has_executable = executable_of(entry) != nullptr;
  store.lose(&entry, why, has_executable, and_template, std::move(error));
  if (has_executable) bury_executable(entry, why);
  if (and_template && entry.graphs != nullptr) bury_template(entry, why);
}

// Returns whether there were any. Allocates nothing if nobody listens, because it is called while a run ends.
bool Core::bury_gone(bool set_aside) {
  Entry* const gone = store.take_gone();
  if (gone == nullptr) return false;
  for (Entry* entry = gone; entry != nullptr; entry = entry->older) {
    const auto runs = entry->counts();
    audience->mark({.kind = EventKind::kErase, .key = entry->key, .entry = entry->number(), .runs = &runs});
    if (entry->graphs != nullptr) bury_template(*entry, Loss::kErased, set_aside);
  }
  store.recycle(gone);
  return true;
}

void Core::tidy_up(const LaunchStream& stream) {
  if (lost_) return;
  while (Entry* const surplus = store.drop_surplus()) {
    bury_template(*surplus, Loss::kTemplates);
    unlock(surplus);
  }
  bury_gone();
  device->graveyard.collect(stream);
}

CallResult Core::collect_all() {
  bury_gone();
  return device->graveyard.collect_all(/*waits=*/true);
}

void Core::trim() {
  const Key none;
  const Audience::Span span(*audience, {.kind = EventKind::kFree, .key = none});
  device->memory->trim();
}

std::size_t Core::erase(absl::Span<const Key> keys) {
  const detail::NotCancelled not_cancelled;
  constexpr std::size_t kAtOnce = 64;  // Limit for each time the store's lock is held.
  std::size_t found = 0;
  for (std::size_t i = 0; i < keys.size(); i += kAtOnce) {
    found += store.erase(keys.subspan(i, kAtOnce));
    bury_gone();
  }
  store.wake();  // A run that was just ending may not have seen that its entry was erased.
  bury_gone();
  if (!has_begun() || !is_here()) return found;
  device->graveyard.collect_all(/*waits=*/false, /*is_patient=*/true);
  return found;
}

// Behind it the program may reset the device, so that the next run finds another context.
void Core::clear() {
  const detail::NotCancelled not_cancelled;
  {
    MutexLock lock(mutex_);
    is_begun_ = false;
    not_begun_ = absl::OkStatus();
    hits->late_error = &detail::Hits::kUnusual;  // So hits look whether the cache has begun.
  }
  const bool is_here = this->is_here();
  if (!is_here) device->abandon();
  drop_all();
  // For direct runs, which leave nothing that would be waited for.
  if (has_begun() && is_here && !lost_ && active_recording == nullptr) (void)device->graveyard.wait();
}

// The store's lock is not fair: runs get it while this thread sleeps.
void Core::drop_all() {
  constexpr std::chrono::microseconds kPause(20);
  for (std::size_t next = 0; store.erase_some(&next);) {
    bury_gone(/*set_aside=*/true);
    std::this_thread::sleep_for(kPause);
  }
  bury_gone(/*set_aside=*/true);
  if (!has_begun()) return;
  if (const CallResult lost = collect_all(); lost.error != cudaSuccess) {
    return lose(cuda_failure(lost.call, lost.error));
  }
  if (!lost_ && active_recording == nullptr) trim();
}

absl::StatusOr<GraphInfo> Core::graph(std::uint64_t number) {
  if (absl::Status lost = status(); !lost.ok()) return lost;
  GraphInfo info;
  Entry* locked = nullptr;
  if (absl::Status status = store.claim(number, &locked, &info.family); !status.ok()) return status;
  const Held entry(locked, {*this});
  info.entry = number;
  info.label = std::string(entry->key.label());
  const LastErrorGuard last_error;
  DeviceGuard current(options.device);
  absl::Status unfit = current.status();
  if (unfit.ok()) unfit = check_context();
  if (!unfit.ok()) return with_key(unfit, entry->key);
  const Recorded& of = recorded(*entry);
  if (!read_graph_info(of.readable(), *of.content, &info)) {
    return with_key(absl::InternalError("CUDA could not report the graph's nodes"), entry->key);
  }
  return info;
}

}  // namespace graphcache
