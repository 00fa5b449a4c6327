// expect: graphcache: argument 2 of launch.* is a reference in the kernel
#include <graphcache/graphcache.h>

#ifdef FIXED
void store(float* data, int value);
#else
void store(float* data, const int& value);
#endif

void enqueue(graphcache::Recorder& rec, float* data) { rec.launch(store, {dim3(1), dim3(32)}, data, 32); }
