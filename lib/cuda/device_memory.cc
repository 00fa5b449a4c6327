#include "cuda/device_memory.h"

#include <algorithm>

#include "cuda/driver.h"

namespace graphcache {

DeviceMemory::~DeviceMemory() {
  trim();
  for (const auto& [device, piece] : scratch_) {
    std::uint64_t context = 0;
    if (is_far(device)) (void)find_context(device, &context);
    if (context == piece.context) free(piece);
  }
}

CallResult DeviceMemory::allocate(Piece* piece) {
  RelaxedCaptureMode relaxed;
  if (piece->of_host) return {"cudaMallocHost", cudaMallocHost(&piece->at, piece->bytes)};
  return {"cudaMalloc", cudaMalloc(&piece->at, piece->bytes)};
}

void DeviceMemory::free(const Piece& piece) { destroy_quietly(piece.at, piece.of_host ? &cudaFreeHost : &cudaFree); }

CallResult DeviceMemory::take(std::size_t bytes, Block* out, bool of_host) {
  bytes = taken(bytes);
  Pieces::iterator piece;
  {
    MutexLock lock(mutex_);
    piece = std::find_if(free_.begin(), free_.end(),
                         [&](const Piece& one) { return one.bytes == bytes && one.of_host == of_host; });
    if (piece != free_.end()) {
      taken_.splice(taken_.end(), free_, piece);
    } else {
      piece = taken_.insert(taken_.end(), {.bytes = bytes, .of_host = of_host});
    }
  }
  if (piece->at == nullptr) {
    if (const CallResult done = allocate(&*piece); done.error != cudaSuccess) {
      MutexLock lock(mutex_);
      taken_.erase(piece);
      return done;
    }
  }
  // If this throws, the memory comes back.
  *out = Block(piece->at, [self = shared_from_this(), piece](void*) { self->give(piece); });
  return {};
}

void DeviceMemory::give(Pieces::iterator piece) noexcept {
  MutexLock lock(mutex_);
  if (piece->is_lost) {
    taken_.erase(piece);
  } else {
    free_.splice(free_.begin(), taken_, piece);
  }
}

CallResult DeviceMemory::scratch(int device, unsigned char** out) {
  device = std::max(device, kHostMemory);
  MutexLock lock(mutex_);
  Piece& piece = scratch_[device];
  std::uint64_t context = 0;
  CallResult done;
  if (is_far(device)) done = find_context(device, &context);  // It may have been reset.
  if (piece.at == nullptr || piece.context != context) {
    const LastErrorGuard last_error;  // A hit has no guard.
    piece = {.bytes = 2, .of_host = device == kHostMemory};
    const DeviceGuard current(piece.of_host ? device_ : device);
    if (done.error == cudaSuccess) done = current.result();
    if (done.error == cudaSuccess) done = allocate(&piece);
    if (done.error != cudaSuccess) return done;
    piece.context = context;
  }
  *out = static_cast<unsigned char*>(piece.at);
  return {};
}

CallResult DeviceMemory::stream(cudaStream_t* out) {
  MutexLock lock(mutex_);
  CallResult made;
  if (stream_.get() == nullptr) made = make_stream(cudaStreamNonBlocking, &stream_);
  *out = stream_.get();
  return made;
}

// A copy from pageable memory has read it when the call returns, and waits for no work in flight.
CallResult DeviceMemory::copy(void* to, const void* from, std::size_t bytes, Event* end) {
  cudaStream_t stream = nullptr;
  CallResult done = this->stream(&stream);
  if (done.error == cudaSuccess) {
    done = {"cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream)};
  }
  if (done.error == cudaSuccess && end->get() == nullptr) done = {"cudaEventCreateWithFlags", make_event(end)};
  if (done.error == cudaSuccess) done = {"cudaEventRecord", cudaEventRecord(end->get(), stream)};
  return done;
}

void DeviceMemory::trim() {
  Pieces unused;
  {
    MutexLock lock(mutex_);
    unused.swap(free_);
  }
  for (const Piece& piece : unused) free(piece);
}

void DeviceMemory::abandon() {
  MutexLock lock(mutex_);
  late_error = cudaSuccess;
  stream_.release();
  free_.clear();
  std::erase_if(scratch_, [&](const auto& one) { return !is_far(one.first); });
  for (Piece& piece : taken_) piece.is_lost = true;
}

}  // namespace graphcache
