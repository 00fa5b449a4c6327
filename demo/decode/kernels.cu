#include <cuda_runtime.h>
#include <math.h>

#include "kernels.h"

namespace demo {

#ifdef __CUDACC__

constexpr int kWarp = 32;

__device__ void synchronize() { __syncthreads(); }

// Reduces the values of all threads of a block; every thread gets the result.
template <class T, class Op>
__device__ T reduce(T value, Op op) {
  __shared__ T of_warps[kWarp];
  const int warps = static_cast<int>(blockDim.x + kWarp - 1) / kWarp;
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    T other = value;
    for (unsigned word = 0; word < sizeof(T) / sizeof(int); ++word) {
      int* const bits = reinterpret_cast<int*>(&other) + word;
      *bits = __shfl_xor_sync(0xffffffffu, *bits, distance);
    }
    value = op(value, other);
  }
  __syncthreads();  // threads may still be reading the result of the last call
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warps[0];
  for (int warp = 1; warp < warps; ++warp) value = op(value, of_warps[warp]);
  return value;
}

#else  // hostrt's blocks are of one thread here.

inline void synchronize() {}

template <class T, class Op>
T reduce(T value, Op) {
  return value;
}

#endif

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

struct Larger {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

struct Better {
  __device__ Choice operator()(Choice a, Choice b) const {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token) ? a : b;
  }
};

constexpr int kAtOnce = 8;
static_assert(kSplitTokens % kBlockTokens == 0);

// The numbers that a thread loads at once.
struct alignas(kAtOnce * sizeof(Bf16)) Numbers {
  Bf16 of[kAtOnce];
};

__device__ int lane() { return static_cast<int>(threadIdx.x); }
__device__ int lanes() { return static_cast<int>(blockDim.x); }

// The place in `parts` of one row, head and split.
__device__ size_t part(int row, int heads, int which, int split, int head) {
  return static_cast<size_t>((row * heads + which) * kMostSplits + split) * static_cast<size_t>(head + 2);
}

// The place in the cache of a position's keys or values.
__device__ size_t cached(const Row& row, int position, int width) {
  const int block = row.blocks[position / kBlockTokens];
  return static_cast<size_t>(block * kBlockTokens + position % kBlockTokens) * width;
}

__global__ void fill(Bf16* weights, std::uint32_t first, std::uint32_t count, float offset, float scale) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) weights[i] = weight(first + i, offset, scale);
}

__global__ void embed(const Row* rows, const int* chosen, const Bf16* table, Bf16* out, int width) {
  const Row& row = rows[blockIdx.x];
  const int token = row.token >= 0 ? row.token : chosen[row.sequence];
  const Bf16* const from = table + static_cast<size_t>(token) * width;
  Bf16* const to = out + static_cast<size_t>(blockIdx.x) * width;
  for (int i = lane(); i < width; i += lanes()) to[i] = row.position >= 0 ? from[i] : Bf16{0};
}

__global__ void rms_norm(const Bf16* __restrict__ in, const Bf16* __restrict__ weights, Bf16* __restrict__ out,
                         int width) {
  const size_t first = static_cast<size_t>(blockIdx.x) * width;
  float squares = 0.0f;
  for (int i = lane(); i < width; i += lanes()) squares += to_float(in[first + i]) * to_float(in[first + i]);
  squares = reduce(squares, Sum());
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(width) + 1e-5f);
  for (int i = lane(); i < width; i += lanes()) {
    out[first + i] = to_bf16(to_float(in[first + i]) * factor * to_float(weights[i]));
  }
}

constexpr float kLog2OfBase = 13.2877124f;  // log2(10000)

__global__ void rope_and_append(const Row* rows, Bf16* qkv, Bf16* keys, Bf16* values, int heads, int head) {
  const Row& row = rows[blockIdx.x];
  if (row.position < 0) return;
  const int width = heads * head;
  const int half = head / 2;
  Bf16* const query = qkv + static_cast<size_t>(blockIdx.x) * 3 * width;
  const Bf16* const key = query + width;
  const Bf16* const value = key + width;
  const size_t at = cached(row, row.position, width);
  for (int i = lane(); i < width / 2; i += lanes()) {
    const int pair = i % half;
    const int first = i / half * head + pair;
    const int second = first + half;
    const float angle =
        static_cast<float>(row.position) * exp2f(-kLog2OfBase * static_cast<float>(pair) / static_cast<float>(half));
    const float sine = sinf(angle);
    const float cosine = cosf(angle);
    const float q1 = to_float(query[first]);
    const float q2 = to_float(query[second]);
    const float k1 = to_float(key[first]);
    const float k2 = to_float(key[second]);
    query[first] = to_bf16(q1 * cosine - q2 * sine);
    query[second] = to_bf16(q1 * sine + q2 * cosine);
    keys[at + first] = to_bf16(k1 * cosine - k2 * sine);
    keys[at + second] = to_bf16(k1 * sine + k2 * cosine);
  }
  for (int i = lane(); i < width; i += lanes()) values[at + i] = value[i];
}

__global__ void attend(Attention attention) {
  __shared__ float query[kMostHead];
  __shared__ float weights[kSplitTokens];
  const int row_number = static_cast<int>(blockIdx.z);
  const int which = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kSplitTokens;
  const Row& row = attention.rows[row_number];
  const int left = row.position + 1 - first;
  if (left <= 0) return;
  const int count = left < kSplitTokens ? left : kSplitTokens;
  const int head = attention.head;
  const int width = attention.heads * head;
  const float scale = 1.0f / sqrtf(static_cast<float>(head));
  const Bf16* const from = attention.qkv + static_cast<size_t>(row_number) * 3 * width + which * head;
  for (int i = lane(); i < head; i += lanes()) query[i] = to_float(from[i]) * scale;
  synchronize();

  float largest = -INFINITY;
  for (int i = lane(); i < count; i += lanes()) {
    const Bf16* const key = attention.keys + cached(row, first + i, width) + which * head;
    float score = 0.0f;
    for (int j = 0; j < head; j += kAtOnce) {
      const Numbers numbers = *reinterpret_cast<const Numbers*>(key + j);
      for (int k = 0; k < kAtOnce; ++k) score += query[j + k] * to_float(numbers.of[k]);
    }
    weights[i] = score;
    largest = Larger()(largest, score);
  }
  largest = reduce(largest, Larger());
  float sum = 0.0f;
  for (int i = lane(); i < count; i += lanes()) {
    weights[i] = expf(weights[i] - largest);
    sum += weights[i];
  }
  sum = reduce(sum, Sum());

  float* const to = attention.parts + part(row_number, attention.heads, which, static_cast<int>(blockIdx.x), head);
  for (int j = lane(); j < head; j += lanes()) {
    float result = 0.0f;
    for (int begin = 0; begin < count; begin += kBlockTokens) {
      const Bf16* const value = attention.values + cached(row, first + begin, width) + which * head + j;
      for (int i = 0; i < kBlockTokens; ++i) {
        if (begin + i < count) result += weights[begin + i] * to_float(value[static_cast<size_t>(i) * width]);
      }
    }
    to[j] = result;
  }
  if (lane() == 0) {
    to[head] = largest;
    to[head + 1] = sum;
  }
}

__global__ void combine(const Row* rows, const float* parts, Bf16* out, int heads, int head) {
  const int which = static_cast<int>(blockIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const int splits = (rows[row].position + kSplitTokens) / kSplitTokens;
  float largest = -INFINITY;
  for (int split = 0; split < kMostSplits; ++split) {
    if (split < splits) largest = Larger()(largest, parts[part(row, heads, which, split, head) + head]);
  }
  Bf16* const to = out + static_cast<size_t>(row * heads + which) * head;
  for (int i = lane(); i < head; i += lanes()) {
    float result = 0.0f;
    float sum = 0.0f;
    for (int split = 0; split < kMostSplits; ++split) {
      if (split >= splits) continue;
      const float* const of_split = parts + part(row, heads, which, split, head);
      const float factor = expf(of_split[head] - largest);
      result += factor * of_split[i];
      sum += factor * of_split[head + 1];
    }
    to[i] = splits > 0 ? to_bf16(result / sum) : Bf16{0};
  }
}

__global__ void gate(const Bf16* __restrict__ gate_up, Bf16* __restrict__ out, int hidden) {
  const Bf16* const in = gate_up + static_cast<size_t>(blockIdx.x) * 2 * hidden;
  Bf16* const to = out + static_cast<size_t>(blockIdx.x) * hidden;
  for (int i = lane(); i < hidden; i += lanes()) {
    const float x = to_float(in[i]);
    to[i] = to_bf16(x / (1.0f + expf(-x)) * to_float(in[hidden + i]));
  }
}

__global__ void product(const Bf16* weights, const Bf16* in, void* out, int rows, int inputs, int outputs, bool add,
                        bool is_float) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= rows * outputs) return;
  const Bf16* const of_row = in + static_cast<size_t>(i / outputs) * inputs;
  const Bf16* const of_output = weights + static_cast<size_t>(i % outputs) * inputs;
  float sum = 0.0f;
  for (int j = 0; j < inputs; ++j) sum += to_float(of_row[j]) * to_float(of_output[j]);
  if (is_float) {
    static_cast<float*>(out)[i] = sum;
  } else {
    Bf16* const to = static_cast<Bf16*>(out) + i;
    *to = to_bf16(add ? to_float(*to) + sum : sum);
  }
}

__global__ void choose(const Row* rows, const float* __restrict__ logits, Choice* choices, int* chosen,
                       int vocabulary) {
  const Row& row = rows[blockIdx.x];
  const float* const of_row = logits + static_cast<size_t>(blockIdx.x) * vocabulary;
  Choice best{vocabulary, -INFINITY};
  for (int i = lane(); i < vocabulary; i += lanes()) best = Better()(Choice{i, of_row[i]}, best);
  best = reduce(best, Better());
  if (lane() != 0) return;
  const bool is_padding = row.position < 0;
  choices[blockIdx.x] = is_padding ? Choice{-1, 0.0f} : best;
  if (!is_padding) chosen[row.sequence] = best.token;
}

}  // namespace demo
