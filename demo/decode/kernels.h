// The kernels of the demo and their data. Host code takes the kernels' addresses by these declarations.
//
// The threads of a kernel share its work in steps of blockDim.x, so the result is the same for a block of one thread,
// which is what hostrt runs. Matrices are row-major, with one row for each row of the batch. All sums have a fixed
// order.
#pragma once

#include <cuda_runtime_api.h>

#include "numbers.h"

namespace demo {

inline constexpr int kBlockTokens = 16;  // positions in a block of the key-value cache
inline constexpr int kMostBlocks = 20;   // maximum number of blocks of a sequence
inline constexpr int kMostTokens = kBlockTokens * kMostBlocks;
inline constexpr int kSplitTokens = 32;  // positions that a block of `attend` processes
inline constexpr int kMostSplits = kMostTokens / kSplitTokens;
inline constexpr int kMostHead = 128;

// One row of a batch: the token of one sequence that a step processes.
struct Row {
  int token;                // -1 means the token that the sequence's last step chose
  int sequence;             // index at which the device keeps that token
  int position;             // counted from 0; -1 if the row is padding
  int blocks[kMostBlocks];  // blocks of the key-value cache for the positions up to this one
};

// The result of a step for a row.
struct Choice {
  int token;
  float logit;
};

// The parameters of `attend`.
struct Attention {
  const Row* rows;
  const Bf16* qkv;
  // The layer's part of the key-value cache: blocks of kBlockTokens rows.
  const Bf16* keys;
  const Bf16* values;
  // For each row, head and split: the weighted sum of the values, the largest score, and the sum of the weights.
  float* parts;
  int heads;
  int head;  // size of a head in numbers, a multiple of 8
};

// One thread for each of `count` weights, numbered from `first`.
__global__ void fill(Bf16* weights, std::uint32_t first, std::uint32_t count, float offset, float scale);

// One block for each row. Padding becomes zeros.
__global__ void embed(const Row* rows, const int* chosen, const Bf16* table, Bf16* out, int width);

// One block for each row: divides its numbers by their root mean square and multiplies them by the weights.
__global__ void rms_norm(const Bf16* in, const Bf16* weights, Bf16* out, int width);

// One block for each row: rotates queries and keys by the row's position, the queries in place, and writes keys and
// values into the cache.
__global__ void rope_and_append(const Row* rows, Bf16* qkv, Bf16* keys, Bf16* values, int heads, int head);

// A grid of splits, heads and rows: causal attention to kSplitTokens positions each. The grid must have the splits that
// the longest sequence needs; a split of a row without positions does nothing.
__global__ void attend(Attention attention);

// A grid of heads and rows: combines the splits that the row's position needs.
__global__ void combine(const Row* rows, const float* parts, Bf16* out, int heads, int head);

// One block for each row: silu of its first `hidden` numbers, times the others.
__global__ void gate(const Bf16* gate_up, Bf16* out, int hidden);

// out = in * weights^T, where each row of `weights` is for one output. The result is bf16, added to `out` if `add`, or
// float if `is_float`. One thread for each output. cuBLAS replaces this kernel on a GPU that has it.
__global__ void product(const Bf16* weights, const Bf16* in, void* out, int rows, int inputs, int outputs, bool add,
                        bool is_float);

// One block for each row: its largest logit, or the first of equal ones. Padding gets the token -1.
__global__ void choose(const Row* rows, const float* logits, Choice* choices, int* chosen, int vocabulary);

}  // namespace demo
