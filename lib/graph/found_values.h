// Where the values of a key's runs are in its graph (values.h), as found by comparing recordings.
#pragma once

#include <absl/types/span.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
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
  explicit FoundValues(absl::Span<const detail::ValuePlace> places) : places_(places), changes_(places.size()) {}

  // Whether a graph with this content, if its slots are those that bind() made, can do what a recording of these values
  // would: each value that differs from the content's is found.
  bool cover(const Content& content, const unsigned char* values) const;

  // Compares a recording with the one before. Returns whether some words have changed that nothing explains. Then
  // settle() must follow.
  bool learn(const Content& before, const Content& now);
  // `again` is another recording of the values of `now`, or null if there is none: words that differ between equal
  // values are noise, and follow no value.
  void settle(const Content& now, const Content* again);
  // The recordings cannot be compared: their nodes differ, or could not be read. What was known is void. After a few
  // of these, nothing more is learned.
  void restart();

  // Makes slots of the words of the last recording that follow values.
  void bind(Content* content) const;

  std::vector<ValueInfo> infos(const Content& content) const;

 private:
  static constexpr int kMostRestarts = 3;

  // A word of a node's parameters that has changed.
  struct Word {
    std::uint32_t node, offset, size;
    ValueSet follows = 0;     // The values that it may hold, each in the same way in all recordings.
    ValueSet suspects = 0;    // If it follows none: values that it seems to depend on. Noise has neither.
    ValueSet may_depend = 0;  // While it is odd: the values to suspect.
    bool is_odd = false;      // Whether it has changed and nothing explains it, so that settle() decides.
  };

  ValueSet changed(const Content& before, const Content& now) const;
  // How the value gets into the word, as the last recording shows: as it is, converted, or as an address in the same
  // allocation. Nothing if it is not there.
  std::optional<Binding> binding(std::size_t value, const Word& word, const Content& content) const;
  ValueSet explain(const Word& word, const Content& before, const Content& now, ValueSet among) const;
  void add_words(std::uint32_t node, const Content& before, const Content& now, ValueSet fresh);
  void add_odd_bytes(Word word, const Content& before, const Content& now);
  void count();
  bool has_given_up() const { return restarts_ > kMostRestarts; }
  ValueSet derived() const;
  static std::string text_of(const Word& word, const Content& content);

  absl::Span<const detail::ValuePlace> places_;
  std::vector<int> changes_;   // Of each value, as far as they were compared.
  std::vector<Word> words_;    // In the order of nodes and offsets.
  ValueSet found_ = 0;         // The values that may be patched.
  bool is_ambiguous_ = false;  // Whether a word may hold several values.
  ValueSet changed_ = 0;       // In the last recording.
  bool is_clean_ = true;       // Whether no derived word has changed in it.
  int restarts_ = 0;
};

// Whether words of two recordings can be compared: they have the same nodes, kernels and launch shapes.
bool are_comparable(const Content& before, const Content& now);

// Writes what follows these values into the parameters of a node, given as in Content::bytes.
void write_values(const Content& content, const unsigned char* values, std::uint32_t index, unsigned char* bytes);

}  // namespace graphcache
