#include "cuda/device_memory.h"

#include <utility>

namespace graphcache {

DeviceMemory::~DeviceMemory() { trim(); }

CallResult DeviceMemory::take(std::size_t bytes, bool of_host, Block* out) {
  Pieces piece = find_free(bytes, of_host);
  if (piece == nullptr) {
    piece = std::make_unique<Piece>();
    piece->bytes = bytes;
    piece->of_host = of_host;
    {
      MutexLock lock(mutex_);
      piece->context = lost_contexts_;
    }
    RelaxedCaptureMode relaxed;
    const cudaError_t error = of_host ? cudaMallocHost(&piece->at, bytes) : cudaMalloc(&piece->at, bytes);
    if (error != cudaSuccess) return {of_host ? "cudaMallocHost" : "cudaMalloc", error};
  }
  Piece* const given = piece.release();
  // If this throws, the memory comes back.
  *out = Block(given->at, [self = shared_from_this(), given](void*) { self->give(Pieces(given)); });
  return {};
}

CallResult DeviceMemory::take_error_word(Block* out) {
  const CallResult done = take(sizeof(int), /*of_host=*/true, out);
  if (done.error == cudaSuccess) *static_cast<int*>(out->get()) = cudaSuccess;
  return done;
}

DeviceMemory::Pieces DeviceMemory::find_free(std::size_t bytes, bool of_host) {
  MutexLock lock(mutex_);
  Pieces* at = &free_;
  while (*at != nullptr && ((*at)->bytes != bytes || (*at)->of_host != of_host)) at = &(*at)->next;
  Pieces found = std::move(*at);
  if (found != nullptr) *at = std::move(found->next);
  return found;
}

void DeviceMemory::give(Pieces piece) noexcept {
  MutexLock lock(mutex_);
  if (piece->context != lost_contexts_) return;
  piece->next = std::move(free_);
  free_ = std::move(piece);
}

CallResult DeviceMemory::stream(cudaStream_t* out) {
  MutexLock lock(mutex_);
  if (stream_.get() == nullptr) {
    if (const CallResult made = make_stream(cudaStreamNonBlocking, &stream_); made.error != cudaSuccess) return made;
  }
  *out = stream_.get();
  return {};
}

// A copy from pageable memory has read it when the call returns, and waits for no work in flight.
CallResult DeviceMemory::copy(void* to, const void* from, std::size_t bytes) {
  cudaStream_t stream = nullptr;
  if (const CallResult made = this->stream(&stream); made.error != cudaSuccess) return made;
  return {"cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream)};
}

CallResult DeviceMemory::mark(Event* end) {
  cudaStream_t stream = nullptr;
  if (const CallResult made = this->stream(&stream); made.error != cudaSuccess) return made;
  if (end->get() == nullptr) {
    if (const cudaError_t error = make_event(end); error != cudaSuccess) return {"cudaEventCreateWithFlags", error};
  }
  return {"cudaEventRecord", cudaEventRecord(end->get(), stream)};
}

CallResult DeviceMemory::wait() const {
  LastErrorGuard last_error;
  RelaxedCaptureMode relaxed;
  const DeviceGuard current(device_);
  if (current.result().error != cudaSuccess) return current.result();
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, 1); error != cudaSuccess) return {"cudaMalloc", error};
  return {"cudaFree", cudaFree(memory)};
}

DeviceMemory::Pieces DeviceMemory::take_all() {
  MutexLock lock(mutex_);
  return std::move(free_);
}

// Ends the list one by one, because the destructor of a long list would call itself as often.
void DeviceMemory::trim() {
  for (Pieces piece = take_all(); piece != nullptr; piece = std::move(piece->next)) {
    destroy_quietly(piece->at, piece->of_host ? &cudaFreeHost : &cudaFree);
  }
}

void DeviceMemory::abandon() {
  {
    MutexLock lock(mutex_);
    ++lost_contexts_;
    late_error_ = cudaSuccess;
    stream_.release();
  }
  for (Pieces piece = take_all(); piece != nullptr; piece = std::move(piece->next)) continue;
}

}  // namespace graphcache
