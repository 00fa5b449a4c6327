"""Small deliberate defects, and the suites that are to notice them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Defect:
    name: str
    file: str
    old: str  # stands in the file once
    new: str
    suites: tuple  # of test/, in the order in which they are run
    sanitizer: str = ""  # that they are built with


DEFECTS = [
    Defect("a look-up without the cache's lock", "lib/cache.cc",
           "Entry* Cache::Impl::claim(const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {\n  MutexLock lock(mutex_);",
           "Entry* Cache::Impl::claim(const Request& request) ABSL_NO_THREAD_SAFETY_ANALYSIS {\n"
           "  static Mutex other;\n  MutexLock lock(other);",
           ("threads",), "thread"),
    Defect("a run that does not lock its entry", "lib/mutex.h",
           "    if (state_.load(std::memory_order_acquire) != kFree) return false;\n", "",
           ("threads", "stress")),
    Defect("waiting runs are not woken", "lib/cache.cc", "  unlocked_.notify_all();\n", "", ("threads", "stress")),
    Defect("a node whose value changed is not patched", "lib/program.cc",
           "    if (!update_fields(node, call.values)) continue;\n",
           "    if (!update_fields(node, call.values) || &node == &slots_.nodes.back()) continue;\n",
           ("cache", "stress")),
    Defect("the shadow of a patched node is not kept", "lib/program.cc",
           "      std::memcpy(target, value, binding.size);\n      changed = true;",
           "      changed = true;", ("cache", "stress")),
    Defect("an update's error is ignored", "lib/program.cc",
           "  if (error != cudaSuccess) {\n    brought->refusal",
           "  if (error != cudaSuccess && error != cudaErrorGraphExecUpdateFailure) {\n    brought->refusal",
           ("sharing", "faults_runs")),
    Defect("a failed launch counts as a hit", "lib/cache.cc",
           "error != cudaSuccess) {\n    return replay_failed(entry, {\"cudaGraphLaunch\", error}",
           "error == cudaErrorInvalidValue) {\n    return replay_failed(entry, {\"cudaGraphLaunch\", error}",
           ("faults_runs",)),
    Defect("after a failed patch the executable is used on", "lib/cache.cc",
           "    demote(entry.get());\n    // A graph that cannot be instantiated",
           "    if (result.call == kInstantiate || launched) demote(entry.get());\n"
           "    // A graph that cannot be instantiated",
           ("faults_runs", "stress")),
    Defect("a used entry does not move to the front", "lib/index.h",
           "if (Order& order = order_of(entry); order.newest != entry) move_to_front(order, entry);",
           "if (Order& order = order_of(entry); order.newest->older != entry && order.newest != entry) "
           "move_to_front(order, entry);",
           ("index",)),
    Defect("a demoted entry forgets its place in the order of use", "lib/index.cc",
           "  if (!entry->erased) insert_by_use(order_of(entry), entry);", "  if (!entry->erased) link(order_of(entry), entry);",
           ("index",)),
    Defect("the victim is the one used last", "lib/index.cc",
           "  for (Entry* entry = orders_[static_cast<std::size_t>(standing)].oldest; entry != nullptr; entry = entry->newer) {\n"
           "    if ((family",
           "  for (Entry* entry = orders_[static_cast<std::size_t>(standing)].newest; entry != nullptr; entry = entry->older) {\n"
           "    if ((family",
           ("index",)),
    Defect("a pinned entry may be evicted", "lib/index.cc", "&& !entry->pinned && lock_if_idle(entry)) return entry;",
           "&& lock_if_idle(entry)) return entry;", ("index",)),
    Defect("the base is destroyed before its executable", "lib/program.cc",
           "  executable->base_ = std::move(base);\n  base = {};\n",
           "  executable->base_ = std::move(base);\n  base = {};\n  executable->base_.graph = Graph();\n",
           ("cache", "stress")),
    Defect("instantiation without the relaxed capture mode", "lib/obtain.cc",
           "  RelaxedCaptureMode relaxed;\n  return Executable::instantiate(", "  return Executable::instantiate(",
           ("threads_waits", "cache")),
    Defect("destruction without the relaxed capture mode", "lib/graph.h",
           "  RelaxedCaptureMode relaxed;\n  destroy(handle);", "  destroy(handle);", ("threads_waits", "cache")),
    Defect("two sites share an entry", "lib/index.h",
           "    while (entry != nullptr && !(entry->site == site)) entry = entry->next_of_key;\n", "", ("index",)),
    Defect("the cluster size is not part of the signature", "lib/signature.cc",
           "    if (!*is_set) return true;", "    if (!*is_set || id == kClusterDimension) return true;", ("sharing_families",)),
    Defect("an entry erased during a direct run stays", "lib/cache.cc",
           "      if (entry->erased) gone = sweep();\n", "", ("failures",)),
    Defect("an executable too many is allowed", "lib/obtain.cc",
           "index_.live() - but < static_cast<std::size_t>(options_.max_executables)",
           "index_.live() - but <= static_cast<std::size_t>(options_.max_executables)", ("cache_budget", "policy")),
    Defect("device memory is not counted", "lib/index.cc", "  plus(live_bytes_, entry->device_bytes);\n", "",
           ("index",)),
    Defect("rent is never counted", "lib/obtain.cc",
           "entry->rent = for_rent ? entry->rent + difference.cost : 0;", "entry->rent = 0;", ("policy",)),
    Defect("the lender keeps its standing", "lib/obtain.cc",
           "  index_.set_standing(lender, Standing::kDemoted);\n  index_.set_standing(entry, Standing::kLive);\n",
           "  index_.set_standing(entry, Standing::kLive);\n", ("sharing",)),
    Defect("an entry in use is deleted", "lib/index.cc",
           "    if (!lock_if_idle(entry)) continue;\n", "",
           ("threads", "stress")),
    Defect("the last error of a failed call stays behind", "lib/cache.cc",
           "  } else if (result.latches && cudaPeekAtLastError() == result.error) {\n    cudaGetLastError();\n  }",
           "  }", ("faults_runs",)),
    Defect("a broken capture is not ended", "lib/recording.cc", "    if (!ended_) end();\n", "", ("cache_fn",)),
    Defect("work of a broken capture is not done", "lib/cache.cc",
           "    return run_eagerly(entry, EagerReason::kCaptureFailed, request);",
           "    return Outcome::kEager;", ("cache_fn", "faults_runs")),
    Defect("after a fatal error handles are destroyed", "lib/impl.cc",
           "      if (entry.executable != nullptr) entry.executable->abandon();\n", "", ("faults_runs",)),
]
