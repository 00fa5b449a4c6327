// expect: graphcache: launch.* takes grid and block in braces: body.launch\(kernel, \{grid, block\}, args...\)
#include <graphcache/body.h>
#include <graphcache/graphcache.h>

void scale(float* data, int count, float factor);

void enqueue(graphcache::Recorder& rec, const unsigned* condition, float* data, dim3 grid, dim3 block) {
#ifdef FIXED
  if_node(rec, condition, [&](graphcache::Body& body) { body.launch(scale, {grid, block}, data, 32, 2.0f); });
#else
  if_node(rec, condition, [&](graphcache::Body& body) { body.launch(scale, grid, block, data, 32, 2.0f); });
#endif
}
