#include "graphcache/recorder.h"

#include <new>

#include "cuda/errors.h"
#include "graph/capture.h"

namespace graphcache {
namespace {

// A recorder throws nothing: memory that ran out is a failure of the call, like others.
template <class F>
void or_fail(detail::Recording& recording, F&& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
    recording.fail(out_of_memory());
  }
}

}  // namespace

void Recorder::launch_views(const void* kernel, const LaunchShape& shape, const detail::ArgView* args,
                            std::size_t count) {
  or_fail(*recording_, [&] { recording_->launch(stream_, kernel, shape, args, count); });
}

void Recorder::memcpy(Arg<void*> dst, Arg<const void*> src, Arg<std::size_t> bytes, cudaMemcpyKind kind) {
  or_fail(*recording_, [&] { recording_->memcpy(stream_, dst.view(), src.view(), bytes.view(), kind); });
}

void Recorder::memset(Arg<void*> dst, Arg<int> value, Arg<std::size_t> bytes) {
  or_fail(*recording_, [&] { recording_->memset(stream_, dst.view(), value.view(), bytes.view()); });
}

const void* Recorder::on_device(const detail::ArgView& value) {
  const void* at = nullptr;
  or_fail(*recording_, [&] { at = recording_->on_device(stream_, value); });
  return at;
}

}  // namespace graphcache
