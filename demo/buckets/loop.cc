#include "loop.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "../support.h"
#include "kernels.h"
#include "products.h"

namespace demo {

void Loop::enqueue(const Request& request, int node) const {
  const Bucket& bucket = this->bucket(request);
  switch (work(node)) {
    case Work::kMix:
      return Launch(*this, request, node).enqueue(stream);
    case Work::kProduct:
      return products->enqueue(bucket, node);
    case Work::kAbsorb:
      break;
  }
  std::uint32_t* target = state;
  int elements = count;
  const float* product = products->result();
  int size = Products::size(bucket);
  void* arguments[] = {&target, &elements, &product, &size};
  DEMO_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(&absorb), dim3(static_cast<unsigned>(bucket.blocks)),
                             dim3(kThreads), arguments, 0, stream));
}

void Loop::launch_all(const Request& request) const {
  for (int node = 0; node < nodes; ++node) enqueue(request, node);
}

void Loop::clear() const {
  DEMO_CUDA(cudaMemsetAsync(state, 0, static_cast<std::size_t>(count) * sizeof(*state), stream));
  DEMO_CUDA(cudaStreamSynchronize(stream));
}

std::vector<std::uint32_t> Loop::elements() const {
  std::vector<std::uint32_t> elements(static_cast<std::size_t>(count));
  DEMO_CUDA(cudaStreamSynchronize(stream));
  DEMO_CUDA(cudaMemcpy(elements.data(), state, elements.size() * sizeof(*state), cudaMemcpyDeviceToHost));
  return elements;
}

bool Loop::equals(const std::vector<std::uint32_t>& reference, const char* way) const {
  const std::vector<std::uint32_t> found = elements();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == reference[i]) continue;
    absl::FPrintF(stderr, "%s: element %d is %08x, the reference %08x\n", way, i, found[i], reference[i]);
    return false;
  }
  return true;
}

Launch::Launch(const Loop& loop, const Request& request, int node)
    : grid_(static_cast<unsigned>(loop.bucket(request).blocks)),
      state_(loop.state),
      count_(loop.count),
      step_(loop.step(request, node)),
      value_(loop.value(request, node)),
      salt_(loop.bucket(request).salt(node)) {}

void Launch::enqueue(cudaStream_t stream) {
  DEMO_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(&mix), grid_, dim3(kThreads), arguments_, 0, stream));
}

cudaKernelNodeParams Launch::params() {
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(&mix);
  params.gridDim = grid_;
  params.blockDim = dim3(kThreads);
  params.kernelParams = arguments_;
  return params;
}

std::vector<Request> zipf_requests(int buckets, int iterations) {
  std::mt19937 random(1);
  std::vector<int> by_popularity(static_cast<std::size_t>(buckets));
  std::iota(by_popularity.begin(), by_popularity.end(), 0);
  std::shuffle(by_popularity.begin(), by_popularity.end(), random);
  std::vector<double> weights;
  for (int rank = 1; rank <= buckets; ++rank) weights.push_back(1.0 / rank);
  std::discrete_distribution<std::size_t> zipf(weights.begin(), weights.end());
  std::vector<Request> requests;
  for (int i = 0; i < iterations; ++i) requests.emplace_back(by_popularity[zipf(random)], i);
  return requests;
}

std::vector<std::uint32_t> reference(const Loop& loop, const std::vector<Request>& requests) {
  if (loop.products != nullptr) {
    loop.clear();
    for (const Request& request : requests) loop.launch_all(request);
    return loop.elements();
  }
  std::vector<std::uint32_t> state(static_cast<std::size_t>(loop.count / kThreads));  // one element of each block
  for (const Request& request : requests) {
    const Bucket& bucket = loop.bucket(request);
    for (int node = 0; node < loop.nodes; ++node) {
      const float value = loop.value(request, node);
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      const std::uint32_t plus =
          bucket.salt(node) * static_cast<std::uint32_t>(bucket.blocks) + loop.step(request, node);
      for (int block = 0; block < bucket.blocks; ++block) {
        std::uint32_t& element = state[static_cast<std::size_t>(block)];
        element = (element ^ bits) * 16777619u + plus;
      }
    }
  }
  std::vector<std::uint32_t> elements;
  for (const std::uint32_t element : state) elements.insert(elements.end(), kThreads, element);
  return elements;
}

Setup::Setup(const Plan& plan) : loop_{plan.nodes, {}, nullptr, plan.blocks * kThreads, nullptr} {
  for (int i = 0; i < plan.buckets; ++i) loop_.buckets.push_back({i + 1, static_cast<std::uint32_t>(i), 0, plan.nodes});
  void* state = nullptr;
  DEMO_CUDA(cudaMalloc(&state, static_cast<std::size_t>(loop_.count) * sizeof(*loop_.state)));
  loop_.state = static_cast<std::uint32_t*>(state);
  DEMO_CUDA(cudaStreamCreateWithFlags(&loop_.stream, cudaStreamNonBlocking));
  if (plan.products) {
    products_ = std::make_unique<Products>(loop_.stream, plan.nodes, loop_.buckets);
    loop_.products = products_.get();
  }
  // The bucket decides which kernel a product needs.
  for (int i = 0; i < (plan.products ? plan.buckets : 1); ++i) loop_.launch_all(Request(i, 0));
  DEMO_CUDA(cudaStreamSynchronize(loop_.stream));
}

Setup::~Setup() {
  products_.reset();
  DEMO_CUDA(cudaStreamDestroy(loop_.stream));
  DEMO_CUDA(cudaFree(loop_.state));
}

}  // namespace demo
