// expect: (detail::a_slot_has_no_value_pass_it_to_rec_launch|Compute before the run; pass the result to params)
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, graphcache::Slot<float> half, graphcache::Slot<float> whole, float* data) {
#ifdef FIXED
  static_cast<void>(half);
  rec.launch(scale, {1, 32}, data, 32, whole);
#else
  static_cast<void>(whole);
  rec.launch(scale, {1, 32}, data, 32, half * 2);
#endif
}
