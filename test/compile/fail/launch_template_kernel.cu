// expect: detail::name_the_template_arguments_of_the_kernel
#include <graphcache/graphcache.h>

template <class T>
__global__ void scale(T* data, int count, T factor) {
  for (int i = 0; i < count; ++i) data[i] *= factor;
}

void enqueue(graphcache::Recorder& rec, graphcache::Slot<float> factor, float* data) {
#ifdef FIXED
  rec.launch(scale<float>, {1, 32}, data, 32, factor);
#else
  rec.launch(scale, {1, 32}, data, 32, factor);
#endif
}
