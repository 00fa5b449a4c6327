// expect: graphcache: argument 2 of launch.* is a slot: its type must be trivially copyable
#include <graphcache/graphcache.h>

#include <utility>

void store(float* data, std::pair<int, float> pair);

void enqueue(graphcache::Recorder& rec, float* data, graphcache::Slot<std::pair<int, float>> slot) {
#ifdef FIXED
  static_cast<void>(slot);
  rec.launch(store, {dim3(1), dim3(32)}, data, std::pair<int, float>(1, 2.0f));
#else
  rec.launch(store, {dim3(1), dim3(32)}, data, slot);
#endif
}
