#include "device_code.h"

#include <new>

#include "driver.h"
#include "updater.h"
#include "updater_image.h"

namespace graphcache {

CallResult Updater::load(Kernels* out) {
  MutexLock lock(mutex_);
  if (kernels_.large == nullptr && failed_.error == cudaSuccess) {
    LastErrorGuard last_error;
    cudaLibrary_t library = nullptr;
    CallResult done{"cudaLibraryLoadData",
                    cudaLibraryLoadData(&library, updater_image, nullptr, nullptr, 0, nullptr, nullptr, 0),
                    /*latches=*/false};
    if (done.error == cudaSuccess) {
      library_ = std::make_shared<Library>(library);
      done = {"cudaLibraryGetKernel", cudaLibraryGetKernel(&kernels_.small, library, updater::kSmallName), false};
    }
    if (done.error == cudaSuccess) done.error = cudaLibraryGetKernel(&kernels_.large, library, updater::kLargeName);
    if (done.error == cudaSuccess) done.error = cudaLibraryGetKernel(&kernels_.plain, library, updater::kPlainName);
    if (done.error != cudaSuccess) {
      kernels_ = {};
      failed_ = done;
    }
  }
  *out = kernels_;
  return failed_;
}

CallResult Updater::can_set_grid(cudaGraphNode_t node, bool* can) {
  MutexLock lock(mutex_);
  *can = false;
  if (driver().kernel_attribute == nullptr || driver().kernel_params == nullptr) return {};
  for (const CUlaunchAttributeID id : {CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE}) {
    CUlaunchAttributeValue value;
    bool is_set = false;
    if (driver().read_attribute(node, id, &value, &is_set) != CUDA_SUCCESS) return {};
    if (is_set) return {};
  }
  CUDA_KERNEL_NODE_PARAMS params = {};
  if (driver().kernel_params(node, &params) != CUDA_SUCCESS) return {};
  const void* const function = params.func != nullptr ? static_cast<const void*>(params.func) : params.kern;
  if (const auto known = is_plain_.find(function); known != is_plain_.end()) {
    *can = known->second;
    return {};
  }
  const CallResult asked = ask(params, can);
  if (asked.error == cudaSuccess) is_plain_.emplace(function, *can);
  return asked;
}

// A node of an executable cannot change to or from a kernel that uses the device runtime (header of
// cudaGraphExecKernelNodeSetParams; tried): whether one of a kernel that does nothing takes this one tells what it is.
CallResult Updater::ask(const CUDA_KERNEL_NODE_PARAMS& params, bool* plain) const {
  if (driver().set_kernel_node == nullptr || kernels_.plain == nullptr) return {};
  LastErrorGuard last_error;
  cudaGraph_t graph = nullptr;
  if (const cudaError_t error = cudaGraphCreate(&graph, 0); error != cudaSuccess) return {"cudaGraphCreate", error};
  Graph owned(graph);
  cudaKernelNodeParams nothing = {};
  nothing.func = reinterpret_cast<void*>(kernels_.plain);
  nothing.gridDim = nothing.blockDim = dim3(1);
  cudaGraphNode_t node = nullptr;
  cudaGraphExec_t executable = nullptr;
  CallResult done{"cudaGraphAddKernelNode", cudaGraphAddKernelNode(&node, graph, nullptr, 0, &nothing)};
  if (done.error == cudaSuccess) done = {"cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, 0)};
  GraphExec probe(executable);
  if (done.error == cudaSuccess) {
    const auto answer = static_cast<cudaError_t>(driver().set_kernel_node(executable, node, &params));
    *plain = answer == cudaSuccess;
    if (is_fatal(answer)) done = {"cudaGraphExecKernelNodeSetParams, by the driver", answer, false};
  }
  if (is_fatal(done.error)) {
    owned.release();
    probe.release();
  }
  return done;
}

void Updater::abandon() {
  memory_->abandon();
  MutexLock lock(mutex_);
  if (library_ != nullptr) library_->release();
}

std::shared_ptr<void> Updater::code() {
  MutexLock lock(mutex_);
  return library_;
}

HeadMemory::~HeadMemory() {
  trim();
  for (void* const page : pages_) destroy_quietly(page, &cudaFreeHost);
}

CallResult HeadMemory::take(std::size_t bytes, void** out) {
  bool too_many = false;
  {
    MutexLock lock(mutex_);
    too_many = waiting_.size() >= kMaxWaiting;
  }
  if (too_many) trim();
  return {"cudaMalloc", cudaMalloc(out, bytes)};
}

CallResult HeadMemory::take_word(int** out) {
  MutexLock lock(mutex_);
  if (used_words_ == kWords) {
    pages_.reserve(pages_.size() + 1);
    void* page = nullptr;
    if (const cudaError_t error = cudaMallocHost(&page, kWords * sizeof(int)); error != cudaSuccess) {
      return {"cudaMallocHost", error};
    }
    pages_.push_back(page);
    used_words_ = 0;
  }
  *out = static_cast<int*>(pages_.back()) + used_words_++;
  return {};
}

void HeadMemory::give(void* block) noexcept {
  MutexLock lock(mutex_);
  try {
    waiting_.push_back(block);
  } catch (const std::bad_alloc&) {
    destroy_quietly(block, &cudaFree);
  }
}

void HeadMemory::trim() {
  std::vector<void*> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  for (void* const block : waiting) destroy_quietly(block, &cudaFree);
}

void HeadMemory::abandon() {
  MutexLock lock(mutex_);
  waiting_.clear();
  pages_.clear();
  used_words_ = kWords;
}

}  // namespace graphcache
