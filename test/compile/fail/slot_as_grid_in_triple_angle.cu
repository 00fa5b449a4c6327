// expect: detail::a_slot_has_no_value_pass_it_to_rec_launch
#include <graphcache/graphcache.h>

__global__ void scale(float* data, int count, float factor) {
  for (int i = 0; i < count; ++i) data[i] *= factor;
}

void enqueue(graphcache::Recorder& rec, graphcache::Slot<unsigned> blocks, float* data) {
#ifdef FIXED
  rec.launch(scale, {blocks, 32}, data, 32, 2.0f);
#else
  scale<<<blocks, 32, 0, rec.stream()>>>(data, 32, 2.0f);
#endif
}
