// Adam's constants, shared by the kernel and the host reference.
#pragma once

namespace demo {

inline constexpr float kBeta1 = 0.9f;
inline constexpr float kBeta2 = 0.999f;
inline constexpr float kEpsilon = 1e-8f;

}  // namespace demo
