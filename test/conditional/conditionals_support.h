// Shared by the suites of conditional nodes: a number whose value shows which steps were done, in which order.
#pragma once

#include <gtest/gtest.h>

#include "graphcache/body.h"
#include "graphcache/graphcache.h"
#include "kernels.h"
#include "support.h"

namespace graphcache::test {

// The effect of the kernel blend on a number.
inline int blended(int number, int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) * static_cast<unsigned>(number) + static_cast<unsigned>(b));
}

class ConditionalsTest : public StreamTest {
 protected:
  // number = a * number + b, by a recorder or a body.
  template <class R>
  void step(R& rec, int a, int b) {
    rec.launch(blend, {1, 1}, number.get(), 1, a, b);
  }
  // Starts anew, whatever the runs so far were.
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
