// Access to the internals of an Index.
#pragma once

#include <utility>

#include "store/index.h"

namespace graphcache {

struct IndexPeer {
  static std::size_t buckets(const Index& index) { return index.table_.buckets(); }
  // Calls f(entry) for every entry, including erased ones that still exist: cold, recorded, live and erased ones, each
  // in order of use.
  template <class F>
  static void for_each(const Index& index, F&& f) {
    for (const Index::Order& order : index.orders_) for_each(order, f);
    for_each(index.erased_, f);
  }

 private:
  template <class F>
  static void for_each(const Index::Order& order, F&& f) {
    for (Entry* entry = order.newest; entry != nullptr;) f(std::exchange(entry, entry->older));
  }
};

}  // namespace graphcache
