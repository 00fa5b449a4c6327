// Executables that wait for their destruction.
//
// Destroying an executable inside a capture may break the capture (fact 6), so it happens only while this thread is not
// capturing. An executable whose last launch is in flight may be destroyed: the driver frees it on completion (fact
// 17).
#pragma once

#include <absl/base/thread_annotations.h>

#include <memory>
#include <vector>

#include "mutex.h"
#include "program.h"

namespace graphcache {

// Thread-safe.
class Retire {
 public:
  ~Retire() { collect(); }
  void add(std::unique_ptr<Executable> executable) ABSL_LOCKS_EXCLUDED(mutex_);
  // Destroys what waits, unless this thread is capturing. Called without locks that runs wait for.
  void collect() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<Executable>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace graphcache
