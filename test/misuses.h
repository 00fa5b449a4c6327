// What hostrt calls a misuse (lib/hostrt/misuse.h) fails the test in which it happens.
#pragma once

namespace graphcache::test {

// For tests that misuse the runtime on purpose: they set it. It is false when a test begins.
inline bool misuses_on_purpose = false;

}  // namespace graphcache::test
