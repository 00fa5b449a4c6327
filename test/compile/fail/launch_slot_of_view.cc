// expect: graphcache: an argument after the twelfth of launch.* is a slot
#include <graphcache/graphcache.h>

struct View {
  View(float* data);  // NOLINT(google-explicit-constructor)
  View(const View& other);
  ~View();
};

void store(int, int, int, int, int, int, int, int, int, int, int, int, View view);

void enqueue(graphcache::Recorder& rec, float* data, graphcache::Slot<float*> slot) {
#ifdef FIXED
  static_cast<void>(slot);
  rec.launch(store, {dim3(1), dim3(32)}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, data);
#else
  static_cast<void>(data);
  rec.launch(store, {dim3(1), dim3(32)}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, slot);
#endif
}
