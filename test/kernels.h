// Small kernels for tests and benchmarks, launched by address: cudaLaunchKernel((const void*)scale, ...).
//
// nvcc compiles them from kernels.cu for a GPU, the C++ compiler from kernels_host.cc for hostrt. In both cases a test
// sees plain functions: on the host, the name of a __global__ function is that of the stub by which the runtime knows
// it. (Templates are different: nvcc makes their stubs local to the object file.)

#ifndef GRAPHCACHE_TEST_KERNELS_H_
#define GRAPHCACHE_TEST_KERNELS_H_

#if defined(__CUDACC__)
#define GRAPHCACHE_TEST_KERNEL __global__
#else
#define GRAPHCACHE_TEST_KERNEL
#endif

namespace graphcache::test {

// Members of several sizes, with padding between them.
struct Mixed {
  char letter;
  double real;
  short small;
  int numbers[3];
  unsigned char last;
};

// Nearly the maximum size of a kernel's arguments.
struct LargeArgument {
  int values[1000];
};

GRAPHCACHE_TEST_KERNEL void fill(float* p, int n, float v);                      // p[i] = v
GRAPHCACHE_TEST_KERNEL void add(float* p, int n, float v);                       // p[i] += v
GRAPHCACHE_TEST_KERNEL void scale(float* out, const float* in, int n, float f);  // out[i] = f * in[i]
GRAPHCACHE_TEST_KERNEL void axpy(float* out, const float* in, int n, float f);   // out[i] += f * in[i]
GRAPHCACHE_TEST_KERNEL void record_launch(int* out);                             // out[0..5] = grid, block
GRAPHCACHE_TEST_KERNEL void count_threads(int* counter);                         // *counter += 1 in every thread
GRAPHCACHE_TEST_KERNEL void append(int* log, int* count, int value);             // log[(*count)++] = value
GRAPHCACHE_TEST_KERNEL void copy_struct(Mixed* out, Mixed value);                // *out = value
GRAPHCACHE_TEST_KERNEL void sum_large(int* out, LargeArgument value);            // *out += the sum of its values
GRAPHCACHE_TEST_KERNEL void do_nothing();
GRAPHCACHE_TEST_KERNEL void store(unsigned* p, unsigned value);  // *p = value
GRAPHCACHE_TEST_KERNEL void count_down(unsigned* p);             // --*p

// Steps whose order, values and number of threads affect the result, in wrapping integers.
GRAPHCACHE_TEST_KERNEL void blend(int* p, int n, int a, int b);             // p[i] = a * p[i] + b + i
GRAPHCACHE_TEST_KERNEL void blend_otherwise(int* p, int n, int a, int b);   // p[i] = (p[i] ^ a) * 5 - b
GRAPHCACHE_TEST_KERNEL void blend_in(int* p, const int* in, int n, int a);  // p[i] = a * p[i] + in[i]
// *count += the number of differing elements among n
GRAPHCACHE_TEST_KERNEL void count_differences(const int* a, const int* b, int n, int* count);

GRAPHCACHE_TEST_KERNEL void record_shared_bytes(int* out);  // *out = those of the launch; 0 on hostrt
GRAPHCACHE_TEST_KERNEL void record_cluster_size(int* out);  // *out = the number of blocks in a cluster

GRAPHCACHE_TEST_KERNEL void record_device(unsigned long long* out);  // *out = a number that differs between devices
GRAPHCACHE_TEST_KERNEL void wait_for(const int* flag);               // until the host sets *flag; not on hostrt
GRAPHCACHE_TEST_KERNEL void fault();                                 // fails, and destroys the context

// out[0..9] = the following parameters, as doubles.
GRAPHCACHE_TEST_KERNEL void many(double* out, char a, double b, short c, float d, long long e, unsigned char f, int g,
                                 float h, unsigned short i, double j);

}  // namespace graphcache::test

#endif  // GRAPHCACHE_TEST_KERNELS_H_
