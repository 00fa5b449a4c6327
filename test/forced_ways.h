// Ways to serve keys that tests force. They hold for the caches that are made afterwards, until the test ends.
#pragma once

#include <utility>

#include "graphcache/options.h"
#include "policy/mechanisms.h"

namespace graphcache::test {

using Patching = Mechanisms::Patching;

enum class Sharing {
  kAuto,           // Share::kWhenFull.
  kNever,          // Share::kNever, and no graph is read.
  kUpdates,        // Share::kAlways, by updates alone.
  kUpdatesAcross,  // The same, whatever the streams.
  kTable,          // Share::kAlways, by tables from the first key of a class on, whatever the streams.
};

inline void force(Patching patching) { mechanisms_of_new_caches.patching = patching; }

inline void force(Options* options, Sharing sharing) {
  using Tables = Mechanisms::Tables;
  options->share = sharing == Sharing::kAuto    ? Share::kWhenFull
                   : sharing == Sharing::kNever ? Share::kNever
                                                : Share::kAlways;
  mechanisms_of_new_caches.across_streams = sharing == Sharing::kUpdatesAcross || sharing == Sharing::kTable;
  mechanisms_of_new_caches.reads = sharing != Sharing::kNever;
  const bool by_updates = sharing == Sharing::kUpdates || sharing == Sharing::kUpdatesAcross;
  mechanisms_of_new_caches.tables = by_updates                   ? Tables::kNever
                                    : sharing == Sharing::kTable ? Tables::kAlways
                                                                 : Tables::kAuto;
}

// The same, to make a cache at once.
inline Options forced(Patching patching, const Options& options = {}) {
  force(patching);
  return options;
}
inline Options forced(Sharing sharing, Options options = {}) {
  force(&options, sharing);
  return options;
}
inline Options forced(Sharing sharing, int max_executables) {
  return forced(sharing, Options{.max_executables = max_executables});
}

// Options together with what was forced since the last cache was made, to make a cache later.
struct ForcedOptions : Options {
  // NOLINTNEXTLINE(google-explicit-constructor): so that plain options go where these are wanted
  ForcedOptions(const Options& options = {})
      : Options(options), mechanisms(std::exchange(mechanisms_of_new_caches, {})) {}

  const Options& again() const {
    mechanisms_of_new_caches = mechanisms;
    return *this;
  }
  Mechanisms mechanisms;
};

}  // namespace graphcache::test
