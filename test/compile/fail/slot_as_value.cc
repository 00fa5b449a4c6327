// expect: (detail::a_slot_has_no_value_pass_it_to_rec_launch|Pass the slot to rec.launch)
#include <graphcache/params.h>

void scale(float factor);

// What <<<>>> would do with a slot: capture its present value in the graph.
void enqueue(graphcache::Slot<float> slot, float value) {
#ifdef FIXED
  static_cast<void>(slot);
  scale(value);
#else
  static_cast<void>(value);
  scale(slot);
#endif
}
