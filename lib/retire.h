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

// One for the process, so that what a cache leaves behind inside a capture is destroyed by whichever cache runs next.
// Thread-safe.
class Retire {
 public:
  static Retire& of_process();

  void add(std::unique_ptr<Executable> executable) ABSL_LOCKS_EXCLUDED(mutex_);
  // After a fatal error: drops the handles of what waits.
  void abandon() ABSL_LOCKS_EXCLUDED(mutex_);
  // Destroys what waits, unless this thread is capturing. Called without locks that runs wait for.
  void collect() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::vector<std::unique_ptr<Executable>> take() ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  std::vector<std::unique_ptr<Executable>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace graphcache
