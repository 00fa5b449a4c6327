// Containers for checks of the library's own state. Their memory does not come from operator new, because tests count
// its calls and make them fail.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <new>
#include <unordered_map>
#include <utility>

namespace graphcache {

template <class T>
struct AsideAllocator {
  using value_type = T;
  AsideAllocator() = default;
  template <class U>
  AsideAllocator(const AsideAllocator<U>&) {}
  T* allocate(std::size_t count) {
    void* const memory = std::malloc(count * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  template <class U>
  bool operator==(const AsideAllocator<U>&) const {
    return true;
  }
};

template <class K, class V>
using AsideMap = std::unordered_map<K, V, std::hash<K>, std::equal_to<K>, AsideAllocator<std::pair<const K, V>>>;

}  // namespace graphcache
