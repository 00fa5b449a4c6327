#include "run/impl.h"

namespace graphcache {

absl::StatusOr<GraphInfo> Cache::Impl::graph(const Key&) { return absl::UnimplementedError(""); }
absl::StatusOr<GraphInfo> Cache::Impl::graph(std::uint64_t) { return absl::UnimplementedError(""); }

}  // namespace graphcache
