#include "graphcache/recorder.h"

#include "recording.h"

namespace graphcache {

void Recorder::launch_views(const void* kernel, const LaunchShape& shape, const detail::ArgView* args,
                            std::size_t count) {
  recording_->launch(stream_, kernel, shape, args, count);
}

void Recorder::memcpy(Arg<void*> dst, Arg<const void*> src, Arg<std::size_t> bytes, cudaMemcpyKind kind) {
  recording_->memcpy(stream_, dst.view(), src.view(), bytes.view(), kind);
}

void Recorder::memset(Arg<void*> dst, Arg<int> value, Arg<std::size_t> bytes) {
  recording_->memset(stream_, dst.view(), value.view(), bytes.view());
}

}  // namespace graphcache
