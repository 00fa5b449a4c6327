// expect: detail::name_the_template_arguments_of_the_kernel
#include <graphcache/body.h>
#include <graphcache/graphcache.h>

template <class T>
void scale(T* data, int count, T factor);

void enqueue(graphcache::Recorder& rec, const unsigned* condition, float* data) {
#ifdef FIXED
  if_node(rec, condition, [&](graphcache::Body& body) { body.launch(scale<float>, {1, 32}, data, 32, 2.0f); });
#else
  if_node(rec, condition, [&](graphcache::Body& body) { body.launch(scale, {1, 32}, data, 32, 2.0f); });
#endif
}
