// Runs whose values are not found yet: `fn` is recorded again, and the recordings are compared (found_values.h).
#include <absl/cleanup/cleanup.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "graph/describe.h"
#include "graph/outside.h"
#include "run/run.h"

namespace graphcache {

// A number for the kinds of memory that the values point to. 0 if all of it is memory of the cache's device.
std::uint64_t Run::memory_of_values() const {
  if (call_.list != nullptr) return 0;
  // The entry that was found by an identity without kinds of memory has pointers to the device's memory only.
  const Executable* const executable = entry_ != nullptr && entry_->site == call_.site ? this->executable() : nullptr;
  std::uint64_t kinds = 0;
  for (std::size_t i = 0; i < call_.places().size(); ++i) {
    const detail::ValuePlace& place = call_.places()[i];
    if (!place.is_pointer) continue;
    const unsigned char* const value = call_.values + place.offset;
    if (executable != nullptr && std::memcmp(value, executable->values() + place.offset, sizeof(void*)) == 0) continue;
    const std::uint64_t kind = memory_kind(read_as<std::uint64_t>(value), core_.options.device);
    if (kind != 0) kinds = detail::mix(kinds + ((i + 1) << 32), kind);  // Never 0: a kind is small.
  }
  return kinds;
}

// Whether a graph that the entry has, if it has one, can do the work of the run's values.
bool Run::covers_values() const {
  if (!call_.gets_values() || entry_->graphs == nullptr) return true;
  const Content& content = *own().content;
  // An entry of many identities has lists of several sizes.
  if (content.values.size() != call_.values_size) return false;
  return call_.values_size == 0 || std::memcmp(content.values.data(), call_.values, call_.values_size) == 0 ||
         (own().values != nullptr && own().values->cover(content, call_.values));
}

// Finds in the recording what follows which value, and makes slots of it. Sets the signature, unless the graph cannot
// be read. Returns an error if the context is lost or a listener refuses.
absl::Status Run::learn(Recorded* made) {
  Content &before = *own().content, &now = *made->content;
  if (!own().signature) own().signature = describe(own().readable(), &before);
  const std::optional<Signature>& signature = made->signature = describe(made->graph, &now);
  if (made->values == nullptr) return absl::OkStatus();
  const auto pairs_with = [&](const std::optional<Signature>& other) {
    return signature && other && without_fixed_copies(*signature) == without_fixed_copies(*other);
  };
  // Recordings on two streams may differ in priorities.
  const bool is_alike = pairs_with(own().signature) || (signature && own().signature && own().recorded_on != stream_);
  if (!is_alike || !are_comparable(before, now)) {
    made->values->restart();
    return absl::OkStatus();
  }
  std::array<Captured, 2> recordings;
  absl::Status ends;  // The run: an error that is fatal to the context, or a listener's.
  // Over other contents than the recordings of earlier runs, which may still be there.
  const auto byte = static_cast<unsigned char>(0xa5 + 0x1f * core_.store.count(&Stats::value_captures, 0));
  made->values->learn(before, now, [&](const Content& values_of) -> const Content* {
    const bool is_earlier = &values_of == &before;
    // Else `fn` does not expect values whose memory may be gone.
    if (!ends.ok() || (is_earlier && call_.list == nullptr)) return nullptr;
    core_.store.count(&Stats::value_captures);
    Captured& again = recordings[is_earlier ? 1 : 0];
    detail::Call call = call_;
    call.values = values_of.values.data();
    again = capture_again(call, {OtherPlace::kFar, byte});
    ends = again.is_refused ? again.fn : take_fatal_error(again);
    const bool is_usable = ends.ok() && again.capture.ok() && again.fn.ok() &&
                           pairs_with(describe(again.graph, &again.content)) && are_comparable(now, again.content);
    return is_usable ? &again.content : nullptr;
  });
  if (!ends.ok()) return ends;
  made->values->bind(&now);
  return absl::OkStatus();
}

// Updates the entry's executable to another graph, which takes what the entry has. Returns whether that was possible.
bool Run::update_to(Recorded& made) {
  const bool is_alike = made.signature && made.signature == own().signature && !made.content->is_alone;
  // Once the values are found, and if that is over, the policy chooses the executable. Until then it is a plain one.
  const bool is_for_now = !made.content->is_settled && !own().content->is_settled;
  if (!is_alike || executable() == nullptr || !is_for_now) return false;
  LastErrorGuard last_error;
  Operation update(core_, EventKind::kUpdate, *entry_, &Stats::update_time, made.content->id);
  absl::Cleanup threw = [this] { core_.give_up(*entry_, Loss::kFailed); };
  const BroughtOver brought = executable()->bring_over(made.graph, made.content, call_);
  if (brought.updated) core_.store.count(&Stats::updates);
  update.done(brought.result);
  std::move(threw).Cancel();
  if (brought.result.error != cudaSuccess) {
    core_.give_up(*entry_, Loss::kValues);
    if (!brought.refusal.empty()) not_updated(brought);
    return false;
  }
  made.executable = take_executable(*entry_);
  made.grave = std::move(own().grave);
  made.stream = own().stream;
  made.unverified = own().unverified;
  core_.bury_template(*entry_, Loss::kValues);
  return true;
}

}  // namespace graphcache
