// The kernels of the demo, and what they work on. Host code takes their addresses by these declarations.
//
// A kernel's threads share their work by steps of blockDim.x, so that each gives the same with a block of one thread,
// which is what hostrt runs. Matrices are row by row, a row for each row of the batch. All sums have a fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include "numbers.h"

namespace demo {

inline constexpr int kBlockTokens = 16;  // Of a block of the key-value cache.
inline constexpr int kMostBlocks = 20;   // Of a sequence.
inline constexpr int kMostTokens = kBlockTokens * kMostBlocks;
inline constexpr int kSplitTokens = 32;  // That a block of `attend` takes.
inline constexpr int kMostSplits = kMostTokens / kSplitTokens;
inline constexpr int kMostHead = 128;

// One row of a batch: the token of one sequence that a step takes in.
struct Row {
  int token;                // -1: the one that the sequence's last step chose.
  int sequence;             // Where the device keeps that.
  int position;             // From 0 on; -1: the row is padding.
  int blocks[kMostBlocks];  // Of the key-value cache, those of the positions up to this one.
};

// What a step gives for a row.
struct Choice {
  int token;
  float logit;
};

// What `attend` works on.
struct Attention {
  const Row* rows;
  const Bf16* qkv;
  const Bf16* keys;  // The layer's part of the key-value cache: blocks of kBlockTokens rows.
  const Bf16* values;
  float* parts;  // For each row, head and split the weighted sum of the values, the largest score, the sum of weights.
  int heads;
  int head;  // Numbers of a head: a multiple of 8.
};

// A thread for each of `count` weights, the first of which is number `first`.
__global__ void fill(Bf16* weights, std::uint32_t first, std::uint32_t count, float offset, float scale);

// A block for each row. Padding becomes zeros.
__global__ void embed(const Row* rows, const int* chosen, const Bf16* table, Bf16* out, int width);

// A block for each row: its numbers by their root mean square, times the weights.
__global__ void rms_norm(const Bf16* in, const Bf16* weights, Bf16* out, int width);

// A block for each row: turns queries and keys by the row's position, the queries in place, and enters keys and values
// into the cache.
__global__ void rope_and_append(const Row* rows, Bf16* qkv, Bf16* keys, Bf16* values, int heads, int head);

// A grid of splits, heads and rows: causal attention to kSplitTokens positions each. There must be as many splits as
// the longest sequence needs; where a row has no positions, nothing is done.
__global__ void attend(Attention attention);

// A grid of heads and rows: the splits that the row's position needs, put together.
__global__ void combine(const Row* rows, const float* parts, Bf16* out, int heads, int head);

// A block for each row: silu of its first `hidden` numbers times the others.
__global__ void gate(const Bf16* gate_up, Bf16* out, int hidden);

// out = in * weights^T, where each row of `weights` is for one output: bf16, added to what is there if `add`, or float
// if `is_float`. A thread for each output. What cuBLAS does on a GPU that has it.
__global__ void product(const Bf16* weights, const Bf16* in, void* out, int rows, int inputs, int outputs, bool add,
                        bool is_float);

// A block for each row: its largest logit, of equal ones the first. Padding gets the token -1.
__global__ void choose(const Row* rows, const float* logits, Choice* choices, int* chosen, int vocabulary);

}  // namespace demo
