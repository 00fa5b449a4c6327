// expect: graphcache: objects of fn's type may call different functions
#include <graphcache/graphcache.h>

#include <functional>
#include <memory>
#include <utility>

// A wrapper of any callable, as absl::AnyInvocable and std::move_only_function are.
class Erased {
 public:
  template <class Fn>
  explicit Erased(Fn fn) : fn_(std::make_shared<std::function<void(cudaStream_t)>>(std::move(fn))) {}
  void operator()(cudaStream_t stream) const { (*fn_)(stream); }
#ifdef FIXED
  const std::function<void(cudaStream_t)>& graphcache_callee() const { return *fn_; }
#endif

 private:
  std::shared_ptr<std::function<void(cudaStream_t)>> fn_;
};

void run(graphcache::Cache& cache, cudaStream_t stream, const Erased& erased) {
  static_cast<void>(cache.run(graphcache::key("erased"), stream, erased));
}
