// The kernels of device_memory_test.cc: those of all suites. The build makes one object for each suite for GPUs alone.
#include "kernels.cu"
