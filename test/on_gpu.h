// Which runtime a test program is linked with. Suites for both are compiled once.
#pragma once

namespace graphcache::test {

extern const bool kOnGpu;  // else hostrt

}  // namespace graphcache::test
