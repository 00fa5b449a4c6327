// The kernels of update_answers_nodes_test.cc: the same ones. The build makes one object for each suite for GPUs alone.
#include "update_kernels.cu"
