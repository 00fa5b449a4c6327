// Shared by the suites of host memory in graphs: frames of various depths, fibers, and the outcome of such a key.
#pragma once

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "graphcache/graphcache.h"
#include "kernels.h"
#include "on_gpu.h"
#include "support.h"

namespace graphcache::test {

// Calls f this many bytes deeper in the stack.
template <class F>
[[gnu::noinline]] void deeper(std::size_t bytes, const F& f) {
  void* const shift = __builtin_alloca(bytes);
  asm volatile("" : : "r"(shift) : "memory");
  f();
  asm volatile("" : : "r"(shift) : "memory");
}

// The call alone may return before the device has the values.
inline void upload(void* to, const std::vector<float>& values) {
  CUDA_OK(cudaMemcpy(to, values.data(), values.size() * sizeof(float), cudaMemcpyDefault));
  CUDA_OK(cudaDeviceSynchronize());
}

// Memory that can be freed and given out again at its address, perhaps as memory of another kind.
class ReusedMemory {
 public:
  enum class Kind { kDevice, kOtherDevice, kManaged, kPinned };

  explicit ReusedMemory(Kind kind) : kind_(kind) {
    mallopt(M_MMAP_THRESHOLD, kBytes);  // On hostrt, too, each allocation is a mapping then.
    memory_ = allocate();
  }
  ~ReusedMemory() { (void)free(memory_); }  // A test may have lost the context.
  ReusedMemory(const ReusedMemory&) = delete;
  ReusedMemory& operator=(const ReusedMemory&) = delete;

  float* get() const { return static_cast<float*>(memory_); }
  void fill(float value, std::size_t count) const { upload(memory_, std::vector<float>(count, value)); }
  // Returns false if the allocator has other memory. Sanitizers keep what is freed, and kinds may have addresses of
  // their own.
  bool give_out_again(Kind as) {
    void* const before = memory_;
    CUDA_OK(free(memory_));
    const bool is_same_kind = std::exchange(kind_, as) == as;
    std::vector<void*> others;
    for (int i = 0; i < 512; ++i) {
      if ((memory_ = allocate()) == before) break;
      others.push_back(memory_);
      if (others.size() < 64) continue;
      for (void* const other : others) CUDA_OK(free(other));  // hostrt keeps what is freed for a while.
      others.clear();
    }
    for (void* const other : others) CUDA_OK(free(other));
    if (memory_ != before) memory_ = allocate();
    EXPECT_TRUE(memory_ == before || !kOnGpu || !is_same_kind);
    return memory_ == before;
  }

 private:
  void* allocate() const {
    void* memory = nullptr;
    const int before = current_device();
    CUDA_OK(cudaSetDevice(kind_ == Kind::kOtherDevice ? 1 : before));
    CUDA_OK(kind_ == Kind::kManaged  ? cudaMallocManaged(&memory, kBytes)
            : kind_ == Kind::kPinned ? cudaMallocHost(&memory, kBytes)
                                     : cudaMalloc(&memory, kBytes));
    CUDA_OK(cudaSetDevice(before));
    return memory;
  }
  cudaError_t free(void* memory) const { return kind_ == Kind::kPinned ? cudaFreeHost(memory) : cudaFree(memory); }

  static constexpr std::size_t kBytes = 2 << 20;  // A mapping of its own.
  Kind kind_;
  void* memory_ = nullptr;
};

// Memory of one of the places that a fiber's stack or a buffer may have.
class Pages {
 public:
  explicit Pages(std::size_t bytes, bool mapped = true) : bytes_(bytes), mapped_(mapped) {
    memory_ =
        mapped ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : std::malloc(bytes);
    EXPECT_TRUE(memory_ != nullptr && memory_ != MAP_FAILED);
  }
  ~Pages() {
    if (mapped_) {
      munmap(memory_, bytes_);
    } else {
      std::free(memory_);
    }
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void* get() const { return memory_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  bool mapped_;
  void* memory_ = nullptr;
};

// Calls a function on a stack of its own.
class Fiber {
 public:
  explicit Fiber(bool mapped) : stack_(std::size_t{1} << 20, mapped) {}

  void call(std::function<void()> f) {
    f_ = std::move(f);
    current = this;
    ASSERT_EQ(getcontext(&inside_), 0);
    inside_.uc_stack.ss_sp = stack_.get();
    inside_.uc_stack.ss_size = stack_.bytes();
    inside_.uc_link = &outside_;
    makecontext(
        &inside_, [] { current->f_(); }, 0);
    ASSERT_EQ(swapcontext(&outside_, &inside_), 0);
  }

 private:
  inline static Fiber* current = nullptr;

  Pages stack_;
  std::function<void()> f_;
  ucontext_t outside_ = {}, inside_ = {};
};

class HostMemoryTest : public StreamTest {
 protected:
  static constexpr int kSize = 16;
  static constexpr const char* kOfCopy = "a copy has pageable host memory, or freed memory, at one end";
  static constexpr const char* kOfFunction = "a host function has its data on a stack or in other pageable host memory";

  // The key has run directly, and says why and what to do.
  static void expect_advice(const Cache& cache, const Key& key, const char* why = kOfCopy) {
    const std::string text = explain(cache, key);
    EXPECT_NE(text.find(why), std::string::npos) << text;
    EXPECT_NE(text.find(why == kOfCopy ? "cudaMallocHost" : "as long as the key's entry"), std::string::npos) << text;
    EXPECT_GT(cache.stats().eager(EagerReason::kCaptureFailed), 0u);
  }

  Cache cache;
  DeviceBuffer<float> data{kSize};
};

}  // namespace graphcache::test
