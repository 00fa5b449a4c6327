// expect: (detail::a_slot_has_no_value_pass_it_to_rec_launch|Compute before the run; pass the result to params)
#include <graphcache/graphcache.h>

void enqueue(graphcache::Recorder& rec, graphcache::Slot<const float*> from, float* to) {
#ifdef FIXED
  rec.memcpy(to, from, 4);
#else
  rec.memcpy(to, from + 1, 4);
#endif
}
