// Where the values of a key's runs are in its graph (values.h), as found by comparing recordings.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/types/span.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/template.h"
#include "graphcache/detail/identity.h"
#include "graphcache/stats.h"

namespace graphcache {

// Bit i stands for value i.
using ValueSet = std::uint64_t;

// Knows one graph at a time: the last recording. Contents that it is given are described (describe.h).
class FoundValues {
 public:
  explicit FoundValues(absl::Span<const detail::ValuePlace> places)
      : places_(places.begin(), places.end()), changes_(places.size()), coarse_changes_(places.size()) {}

  // Whether a graph with this content, if its slots are those that bind() made, can do what a recording of these values
  // would: each value that differs from the content's is found.
  bool cover(const Content& content, const unsigned char* values) const;

  // Compares a recording with the one before. If bytes have changed that nothing explains, `record_again` makes another
  // recording of the same values, or returns null: what differs there is noise, and follows no value.
  // Where that leaves bytes, `record_again` makes a recording of the values before, which differs by what depends on
  // them.
  using RecordAgain = absl::FunctionRef<const Content*(const Content& values_of)>;
  void learn(const Content& before, const Content& now, RecordAgain record_again);
  // The recordings cannot be compared: their nodes differ, or could not be read. What was known is void. After a few
  // of these in a row, nothing more is learned until many recordings in a row could be.
  void restart();

  // Makes slots of the words of the last recording that follow values.
  void bind(Content* content) const;

  std::vector<ValueInfo> infos(const Content& content) const;

 private:
  static constexpr int kMostRestarts = 3, kManyAlike = 16;

  // A word of a node's parameters that has changed. Noise has no values.
  struct Word {
    std::uint32_t node, offset, size;
    ValueSet follows = 0;   // The values that it may hold, each in the same way in all recordings.
    ValueSet suspects = 0;  // If it follows none: values that it seems to depend on,
    ValueSet certain = 0;   // those that it has changed with alone,
    ValueSet idle = 0;      // and those that have once changed alone without it.
  };

  bool has_given_up() const { return restarts_ > kMostRestarts; }
  // How the value gets into the word, as a recording shows: as it is, converted, or as an address in the same
  // allocation. Nothing if it is not there.
  std::optional<Binding> binding(std::size_t value, const Word& word, const Content& content) const;
  ValueSet explain(const Word& word, const Content& before, const Content& now, ValueSet among) const;
  // Words that change for the first time. Those that are known are in order. `odd` gets the bytes that nothing
  // explains.
  void add_words(const Content& before, const Content& now, ValueSet fresh, std::vector<Word>* odd);
  void find(const Content& now);
  ValueSet derived() const;
  static std::string text_of(const Word& word, const Content& content);

  std::vector<detail::ValuePlace> places_;
  // Of each value: 1 once it has changed, and 1 more for each later change with which no derived word has changed. In
  // the second list only changes that also show in fewer bits, if `fn` rounds the value.
  std::vector<int> changes_, coarse_changes_;
  std::vector<Word> words_;                              // In the order of nodes and offsets.
  ValueSet found_ = 0;                                   // The values that may be patched,
  std::vector<std::pair<Binding, Binding>> agreements_;  // as long as these give the same bytes.
  int restarts_ = 0;
  int alike_ = 0;  // Number of recordings that could be compared since it has given up.
};

// Whether words of two recordings can be compared: they have the same nodes, kernels and launch shapes.
bool are_comparable(const Content& before, const Content& now);

}  // namespace graphcache
