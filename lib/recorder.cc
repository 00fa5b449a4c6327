#include "graphcache/recorder.h"

#include <utility>

#include "graph/recording.h"

namespace graphcache {

void Recorder::launch_views(const void* kernel, const LaunchShape& shape, const detail::ArgView* args,
                            std::size_t count) {
  recording_->or_fail([&] { recording_->launch(name_of(stream_), kernel, /*of_library=*/false, shape, args, count); });
}

void Recorder::memcpy(Arg<void*> dst, Arg<const void*> src, Arg<std::size_t> bytes, cudaMemcpyKind kind) {
  recording_->or_fail([&] { recording_->memcpy(name_of(stream_), dst.view(), src.view(), bytes.view(), kind); });
}

void Recorder::memset(Arg<void*> dst, Arg<int> value, Arg<std::size_t> bytes) {
  recording_->or_fail([&] { recording_->memset(name_of(stream_), dst.view(), value.view(), bytes.view()); });
}

void detail::note_order_to_stop(Recorder& recorder) { recorder.recording_->stop(); }

void Recorder::write(void* device, std::size_t bytes, const detail::ArgView& value) {
  recording_->or_fail([&] { recording_->write(name_of(stream_), device, bytes, value); });
}

void Recorder::keep_memory(std::shared_ptr<const void> owner, std::size_t bytes) {
  recording_->or_fail([&] { recording_->keep(std::move(owner), bytes); });
}

}  // namespace graphcache
