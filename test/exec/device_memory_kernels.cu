// The kernels of device_memory_test.cc, which are those of all suites. The build makes one object for each GPU-only
// suite.
#include "../kernels.cu"
