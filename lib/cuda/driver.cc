#include "cuda/driver.h"

#include "cuda/compat.h"
#include "cuda/errors.h"

namespace graphcache {

void* Driver::find(const char* name, unsigned since) {
  void* const function = driver_function(name, since);
  if (function == nullptr && since == kOldestVersion && missing == nullptr) missing = name;
  return function;
}

const Driver& driver() {
  static const Driver driver = [] {
    LastErrorGuard last_error;
    Driver found;
    if (cudaDriverGetVersion(&found.version) != cudaSuccess) found.version = 0;
    return found;
  }();
  return driver;
}

CUcontext current_context() {
  CUcontext context = nullptr;
  return driver().current_context(&context) == cudaSuccess ? context : nullptr;
}

bool has_context() {
  if (current_context() != nullptr) return true;
  const LastErrorGuard last_error;
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) cudaSetDevice(device);
  return current_context() != nullptr;
}

CallResult find_context(int device, std::uint64_t* id) {
  const DeviceGuard current(device);
  *id = UINT64_MAX - static_cast<std::uint64_t>(device);
  if (current.result().error != cudaSuccess || !has_context()) return current.result();
  unsigned long long found = 0;
  const CallResult done{"cuCtxGetId", driver().context_id(nullptr, &found)};
  if (done.error == cudaSuccess) *id = found;
  return done;
}

}  // namespace graphcache
