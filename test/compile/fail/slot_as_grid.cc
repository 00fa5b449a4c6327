// expect: (detail::a_slot_has_no_value_pass_it_to_rec_launch|rec.launch\(kernel, \{slot, block\}, args...\))
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

// Stands for <<<>>>, which converts its first argument to dim3.
void configure(dim3 grid);

void enqueue(graphcache::Recorder& rec, graphcache::Slot<unsigned> blocks, float* data) {
#ifdef FIXED
  rec.launch(scale, {blocks, 32}, data, 32, 2.0f);
#else
  static_cast<void>(rec);
  static_cast<void>(data);
  configure(blocks);
#endif
}
