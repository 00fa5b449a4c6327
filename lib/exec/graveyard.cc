#include "exec/graveyard.h"

#include <iterator>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "graph/recording.h"

namespace graphcache {
namespace {

// Whether the context with this id is lost. A context that a cache has given up, and begins in again, has a new flag.
std::shared_ptr<std::atomic<bool>> flag_of(std::uint64_t context) {
  static Mutex mutex;
  static auto& flags = *new std::map<std::uint64_t, std::weak_ptr<std::atomic<bool>>>;
  MutexLock lock(mutex);
  std::weak_ptr<std::atomic<bool>>& known = flags[context];
  std::shared_ptr<std::atomic<bool>> flag = known.lock();
  if (flag == nullptr || *flag) known = flag = std::make_shared<std::atomic<bool>>(false);
  return flag;
}

}  // namespace

void Graveyard::add(std::list<Grave> place, std::unique_ptr<Executable> executable, Template graph,
                    std::shared_ptr<Objects> kept, LaunchStream stream, Epitaph epitaph, bool set_aside) noexcept {
  if (audience_->empty()) epitaph = {};
  // Listeners hear of a graph's end even if an executable still has it as its base.
  if (executable == nullptr && graph.empty() && !epitaph.drops_graph) return;
  if (executable != nullptr) stream = executable->stream();
  if (executable == nullptr && graph.empty()) stream = {};  // There is nothing to wait for.
  try {
    if (place.empty()) place.emplace_back();
  } catch (const std::bad_alloc&) {
    return;  // The graph is then destroyed at once, without a report.
  }
  Grave& of = place.front();
  of.epitaph = std::move(epitaph);
  of.audience = audience_;
  of.graph = std::move(graph);
  of.kept = std::move(kept);
  of.executable = std::move(executable);
  of.stream = stream;
  MutexLock lock(mutex_);
  of.lost = lost_;
  std::list<Grave>& others = set_aside ? aside_ : waiting_;
  others.splice(others.end(), place);
}

void Graveyard::keep_until_done(Objects& formers, const LaunchStream& stream) noexcept try {
  std::list<Grave> place(1);
  Grave& grave = place.front();
  grave.kept = std::make_shared<Objects>();
  grave.kept->swap(formers);
  grave.stream = stream;
  MutexLock lock(mutex_);
  grave.lost = lost_;
  waiting_.splice(waiting_.end(), place);
} catch (const std::bad_alloc&) {
}

void Graveyard::limit(const LaunchStream& stream) {
  std::list<Grave> awaited;
  {
    MutexLock lock(mutex_);
    std::size_t executables = 0;
    for (auto grave = waiting_.end(); grave != waiting_.begin() && awaited.empty();) {
      --grave;
      const bool is_of_stream = grave->executable != nullptr && grave->stream.is(stream);
      if (is_of_stream && ++executables > kMaxExecutables) awaited.splice(awaited.end(), waiting_, grave);
    }
  }
  if (awaited.empty()) return;
  (void)is_done(awaited.front(), stream, /*waits=*/true);
  put_back(std::move(awaited));
}

bool Graveyard::is_done(Grave& grave, const LaunchStream& stream, bool waits) {
  if (grave.stream.handle == nullptr || grave.is_dropped()) return true;
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  if (grave.fence.get() != nullptr) {
    return (cudaStreamQuery(grave.fence.get()) == cudaSuccess || waits) &&
           cudaStreamSynchronize(grave.fence.get()) == cudaSuccess;
  }
  if (grave.done.get() == nullptr) {
    if (!grave.stream.is(stream)) return false;
    Event event;
    if (make_event(&event) != cudaSuccess || cudaEventRecord(event.get(), stream.handle) != cudaSuccess) return false;
    grave.done = std::move(event);
  }
  return cudaEventQuery(grave.done.get()) == cudaSuccess ||
         (waits && cudaEventSynchronize(grave.done.get()) == cudaSuccess);
}

bool Graveyard::fence(Grave& grave) {
  if (grave.stream.handle == nullptr || grave.has_mark() || grave.is_dropped()) return true;
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  const DeviceGuard current(device_);
  if (current.result().error != cudaSuccess) return false;
  OwnedStream stream;
  const bool done = make_stream(cudaStreamNonBlocking, &stream).error == cudaSuccess &&
                    grave.executable->upload(stream.get()).error == cudaSuccess;
  if (done) grave.fence = std::move(stream);
  return done;
}

// Allocates nothing, because it is called while a run ends.
void Graveyard::collect(LaunchStream stream) {
  if (active_recording != nullptr) return;
  std::list<Grave> waiting;
  {
    MutexLock lock(mutex_);
    if (!is_abandoned()) waiting.swap(waiting_);
  }
  if (waiting.empty()) return;
  (void)stream.find_id();
  int destroyed = 0;
  // A stream whose work is not complete: later work on it is not complete either.
  LaunchStream busy;
  for (auto grave = waiting.begin(); grave != waiting.end();) {
    const bool later = grave->has_mark() && grave->stream.is(busy);
    // Each gets its mark at the first run on its stream, however much that one destroys.
    const bool is_over = !later && (destroyed < kMaxDestroyed || !grave->has_mark()) && is_done(*grave, stream);
    const bool done = is_over && destroyed < kMaxDestroyed;
    if (!done && grave->has_mark()) busy = grave->stream;
    destroyed += done && (grave->executable != nullptr || !grave->graph.empty()) ? 1 : 0;
    grave = done ? waiting.erase(grave) : std::next(grave);
  }
  // Their state is unknown. If too many wait, the oldest do not wait for their stream any longer.
  std::size_t executables = 0, graphs = 0;
  bool fences = true;
  for (auto grave = waiting.end(); grave != waiting.begin();) {
    --grave;
    if (grave->has_mark()) continue;
    if (grave->executable == nullptr) {
      if (!grave->graph.empty() && ++graphs > kMaxGraphs) grave = waiting.erase(grave);
    } else if (++executables > kMaxExecutables && fences) {
      // If one fails, this run tries no others.
      fences = fence(*grave);
    }
  }
  put_back(std::move(waiting));
}

CallResult Graveyard::collect_all(bool waits, bool is_patient) {
  std::list<Grave> waiting;
  {
    MutexLock lock(mutex_);
    if (waits) waiting_.splice(waiting_.end(), aside_);
    if (active_recording != nullptr) return {};  // Later runs will destroy them.
    waiting.swap(waiting_);
    if (is_abandoned()) return {};  // Drops what waits.
  }
  bool all_over = false;
  if (waits && !waiting.empty()) {
    const CallResult waited = wait();
    if (is_fatal(waited.error)) {
      put_back(std::move(waiting));
      return waited;
    }
    all_over = waited.error == cudaSuccess;
  }
  for (Grave& grave : waiting) {
    if (!all_over && grave.executable != nullptr) (void)fence(grave);
  }
  for (int pass = 0; pass < (is_patient ? kPasses : 1) && !waiting.empty(); ++pass) {
    if (pass > 0) std::this_thread::sleep_for(kPatience);
    for (auto grave = waiting.begin(); grave != waiting.end();) {
      const bool done =
          all_over || (grave->executable == nullptr && !grave->graph.empty()) || is_done(*grave, LaunchStream(), waits);
      grave = done ? waiting.erase(grave) : std::next(grave);
    }
  }
  put_back(std::move(waiting));
  return {};
}

CallResult Graveyard::wait() const {
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  const DeviceGuard current(device_);
  if (current.result().error != cudaSuccess) return current.result();
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, 1); error != cudaSuccess) return {"cudaMalloc", error};
  return {"cudaFree", cudaFree(memory)};
}

void Graveyard::put_back(std::list<Grave> waiting) {
  MutexLock lock(mutex_);
  waiting_.splice(waiting_.begin(), waiting);
}

void Graveyard::begin(std::uint64_t context) {
  std::shared_ptr<std::atomic<bool>> lost = flag_of(context);
  MutexLock lock(mutex_);
  context_ = context;
  lost_ = std::move(lost);
}

void Graveyard::abandon() {
  MutexLock lock(mutex_);
  if (lost_ != nullptr) *lost_ = true;
}

// The executable is destroyed before the graph.
Grave::~Grave() {
  if (is_dropped()) {
    if (executable != nullptr) executable->abandon();
    graph.graph.release();
    done.release();
    fence.release();
  }
  if (epitaph.content == nullptr) return;
  const auto destroy = [&](EventKind kind, auto&& f) {
    const Content& of = *epitaph.content;
    const Audience::Span span(*audience,
                              {.kind = kind, .key = of.key, .entry = of.entry, .graph = of.id, .loss = epitaph.loss});
    f();
  };
  if (executable != nullptr) destroy(EventKind::kDestroyExecutable, [&] { executable.reset(); });
  if (epitaph.drops_graph) destroy(EventKind::kDestroyGraph, [&] { graph = {}; });
}

}  // namespace graphcache
