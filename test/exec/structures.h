// Structures of many sizes and alignments, and classes, as arguments of kernels, for structures_test.cc. nvcc compiles
// the kernels from structures_kernels.cu for a GPU, the C++ compiler from structures_kernels_host.cc for hostrt.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_KERNEL __global__
#define GRAPHCACHE_TEST_BOTH_SIDES __host__ __device__
#else
#define GRAPHCACHE_TEST_KERNEL
#define GRAPHCACHE_TEST_BOTH_SIDES
#endif

namespace graphcache::test {

template <unsigned kSize, unsigned kAlignment = 1>
struct alignas(kAlignment) Bytes {
  unsigned char v[kSize];
};

// Parameters: kLead bytes, unless that is 0; a structure T; the byte after it; and where to write these bytes.
template <unsigned kLead, class T>
using StructureKernel = std::conditional_t<kLead == 0, void (*)(T, unsigned char, unsigned char*),
                                           void (*)(Bytes<kLead>, T, unsigned char, unsigned char*)>;

// Defined for the structures below. A function, because the stubs that nvcc makes of templates are local to their
// object file.
template <unsigned kLead, class T>
StructureKernel<kLead, T> structure_kernel();

// X(size, alignment, lead of one kernel, lead of another, size of the value before it in params()). Offsets have every
// residue modulo 8 that the alignment allows.
// clang-format off
#define GRAPHCACHE_TEST_STRUCTURES(X) \
  X(1, 1, 1, 12, 1) \
  X(2, 1, 2, 13, 2) X(2, 2, 2, 12, 3) \
  X(3, 1, 4, 3, 4) \
  X(4, 1, 7, 20, 5) X(4, 2, 0, 14, 7) X(4, 4, 4, 0, 8) \
  X(5, 1, 14, 28, 12) \
  X(6, 1, 0, 13, 13) X(6, 2, 4, 13, 20) \
  X(7, 1, 8, 1, 28) \
  X(8, 1, 1, 12, 33) X(8, 2, 20, 1, 6) X(8, 4, 12, 8, 31) X(8, 8, 0, 8, 1) \
  X(12, 1, 2, 13, 2) X(12, 2, 28, 8, 3) X(12, 4, 20, 13, 4) \
  X(16, 1, 4, 3, 5) X(16, 2, 2, 12, 7) X(16, 4, 28, 2, 8) X(16, 8, 13, 20, 12) X(16, 16, 0, 13, 13) \
  X(20, 1, 7, 20, 20) X(20, 2, 0, 14, 28) X(20, 4, 4, 0, 33) \
  X(24, 1, 14, 28, 6) X(24, 2, 4, 13, 31) X(24, 4, 12, 8, 1) X(24, 8, 28, 4, 2) \
  X(28, 1, 0, 13, 3) X(28, 2, 20, 1, 4) X(28, 4, 20, 13, 5) \
  X(31, 1, 8, 1, 7) \
  X(32, 1, 1, 12, 8) X(32, 2, 28, 8, 12) X(32, 4, 28, 2, 13) X(32, 8, 0, 8, 20) X(32, 16, 28, 8, 28) \
  X(33, 1, 2, 13, 33) \
  X(36, 1, 4, 3, 6) X(36, 2, 2, 12, 31) X(36, 4, 4, 0, 1) \
  X(40, 1, 7, 20, 2) X(40, 2, 0, 14, 3) X(40, 4, 12, 8, 4) X(40, 8, 13, 20, 5) \
  X(48, 1, 14, 28, 7) X(48, 2, 4, 13, 8) X(48, 4, 20, 13, 12) X(48, 8, 28, 4, 13) X(48, 16, 0, 13, 20) \
  X(60, 1, 0, 13, 28) X(60, 2, 20, 1, 33) X(60, 4, 28, 2, 6) \
  X(64, 1, 8, 1, 31) X(64, 2, 28, 8, 1) X(64, 4, 4, 0, 2) X(64, 8, 0, 8, 3) X(64, 16, 28, 8, 4) \
  X(65, 1, 7, 12, 5) \
  X(100, 1, 2, 13, 7) X(100, 2, 2, 12, 8) X(100, 4, 12, 8, 12) \
  X(127, 1, 1, 3, 13) \
  X(128, 1, 7, 20, 20) X(128, 2, 0, 14, 28) X(128, 4, 20, 13, 33) X(128, 8, 13, 20, 6) X(128, 16, 0, 13, 31) \
  X(250, 1, 14, 28, 1) X(250, 2, 4, 13, 2) \
  X(500, 1, 0, 13, 3) X(500, 2, 20, 1, 4) X(500, 4, 28, 2, 5) \
  X(1000, 1, 8, 1, 7) X(1000, 2, 28, 8, 8) X(1000, 4, 4, 0, 12) X(1000, 8, 28, 4, 13) \
  X(2000, 1, 1, 12, 20) X(2000, 2, 2, 12, 28) X(2000, 4, 12, 8, 33) X(2000, 8, 0, 8, 6) X(2000, 16, 28, 8, 31) \
  X(3996, 1, 2, 13, 1) X(3996, 2, 0, 14, 2) X(3996, 4, 20, 13, 3) \
  X(4000, 1, 4, 3, 4) X(4000, 2, 4, 13, 5) X(4000, 4, 28, 2, 7) X(4000, 8, 13, 20, 8) X(4000, 16, 0, 13, 12)
// clang-format on

// ---- Classes that are not trivially copyable, which <<<>>> takes as well ----

// Counts how often it was copied and how many objects there are, as a view that registers itself does.
struct View {
  explicit View(float* memory, int* alive_objects) : data(memory), alive(alive_objects) { ++*alive; }
  View(const View& other) : data(other.data), copies(other.copies + 1), alive(other.alive) { ++*alive; }
  View& operator=(const View&) = delete;
  ~View() { --*alive; }

  float* data;
  int copies = 0;
  int* alive;  // Of the host.
};

// Can be moved, not copied, and has no default constructor.
struct Ticket {
  explicit Ticket(int n) : number(n) {}
  Ticket(Ticket&& other) noexcept : number(std::exchange(other.number, -1)), moves(other.moves + 1) {}

  int number;
  int moves = 0;
};

// Every `stride`-th element, plus a number.
class StridedIterator {
 public:
  StridedIterator(const float* first, int stride, float plus) : first_(first), stride_(stride), plus_(plus) {}
  StridedIterator(const StridedIterator& other) : first_(other.first_), stride_(other.stride_), plus_(other.plus_) {}
  StridedIterator& operator=(const StridedIterator& other) = default;
  GRAPHCACHE_TEST_BOTH_SIDES float operator[](int i) const { return first_[i * stride_] + plus_; }

 private:
  const float* first_;
  int stride_;
  float plus_;
};

// The parameter's type of a kernel decides which constructor makes it of an argument.
struct Rounded {
  Rounded(float v) : value(static_cast<int>(v)) {}  // NOLINT(google-explicit-constructor)
  explicit Rounded(double v) : value(static_cast<int>(v) + 100) {}
  Rounded(const Rounded& other) : value(other.value) {}
  int value;
};

struct Nothing {};
enum class Letter : char { kA = 'a', kB = 'b' };

GRAPHCACHE_TEST_KERNEL void take_pair(std::pair<int, float> pair, float* out);         // its members
GRAPHCACHE_TEST_KERNEL void take_view(View view);                                      // view.data[0] = its copies
GRAPHCACHE_TEST_KERNEL void change_view(View view, float* out);                        // in each of two threads
GRAPHCACHE_TEST_KERNEL void take_ticket(Ticket ticket, float* out);                    // its number and moves
GRAPHCACHE_TEST_KERNEL void take_iterator(StridedIterator in, int count, float* out);  // out[i] = in[i]
GRAPHCACHE_TEST_KERNEL void take_halves(__half2 halves, __nv_bfloat162 others, float* out);
GRAPHCACHE_TEST_KERNEL void take_rounded(Rounded rounded, float* out);
GRAPHCACHE_TEST_KERNEL void take_plain(Nothing, const bool flag, Letter letter, std::nullptr_t, const float* in,
                                       float* out);  // flag, letter, in[0], or -1 where `in` is null

}  // namespace graphcache::test
