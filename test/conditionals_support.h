// What the suites of conditional nodes share: a number whose value tells which steps were done, in which order.
#pragma once

#include <gtest/gtest.h>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

// What the kernel blend does to a number.
inline int blended(int number, int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(number) + static_cast<unsigned>(b));
}

inline Options direct() {
  Options options;
  options.max_executables = 0;
  return options;
}

class ConditionalsTest : public StreamTest {
 protected:
  // number = a * number + b. Of a recorder, or of a body.
  template <class R>
  void step(R& rec, int a, int b) {
    rec.launch(blend, {1, 1}, number.get(), 1, a, b);
  }
  // Of the runs so far, whatever they were.
  void begin(int value = 1, unsigned first = 0, unsigned second = 0) {
    number.write({value});
    condition.write({first});
    other.write({second});
  }

  Cache cache;
  DeviceBuffer<int> number{1};
  DeviceBuffer<unsigned> condition{1}, other{1};
};

}  // namespace graphcache::test
