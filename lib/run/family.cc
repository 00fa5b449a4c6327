#include "run/family.h"

#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <utility>

namespace graphcache {

Family* Families::join(const Signature& signature, std::uint64_t stream, std::uint64_t row_class,
                       std::uint64_t beyond) {
  const auto at = of_signature_.try_emplace(signature).first;
  std::vector<std::unique_ptr<Family>>& families = at->second;
  absl::Cleanup threw = [&] {
    if (families.empty()) of_signature_.erase(at);
  };
  auto found = std::find_if(families.begin(), families.end(),
                            [&](const auto& family) { return family->stream == stream && family->id > beyond; });
  if (found == families.end()) {
    auto family = std::make_unique<Family>();
    family->classes[row_class];
    found = families.insert(found, std::move(family));
    (*found)->id = ++last_id_;
    (*found)->signature = &at->first;
    (*found)->stream = stream;
    ++size_;
  }
  Family& family = **found;
  ++family.classes[row_class].members;
  std::move(threw).Cancel();
  ++family.members;
  return &family;
}

void Families::leave(Family* family, std::uint64_t row_class) {
  const auto of_class = family->classes.find(row_class);
  if (--of_class->second.members == 0) family->classes.erase(of_class);
  if (--family->members != 0) return;
  const auto at = of_signature_.find(*family->signature);
  std::vector<std::unique_ptr<Family>>& families = at->second;
  families.erase(std::find_if(families.begin(), families.end(), [&](const auto& one) { return one.get() == family; }));
  if (families.empty()) of_signature_.erase(at);
  --size_;
}

}  // namespace graphcache
