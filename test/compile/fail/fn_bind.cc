// expect: graphcache: objects of fn's type may call different functions
#include <graphcache/graphcache.h>

#include <functional>

void enqueue(int count, cudaStream_t stream);

void run(graphcache::Cache& cache, cudaStream_t stream) {
#ifdef FIXED
  const auto fn = [](cudaStream_t on) { enqueue(3, on); };
#else
  const auto fn = std::bind(&enqueue, 3, std::placeholders::_1);
#endif
  static_cast<void>(cache.run(graphcache::key("bind"), stream, fn));
}
