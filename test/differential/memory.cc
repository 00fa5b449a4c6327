#include "memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace graphcache::test::differential {
namespace {

constexpr std::size_t kAllWords = std::size_t{kPlaces} * kWords;
constexpr std::size_t kAllBytes = kAllWords * sizeof(int);
constexpr std::size_t kPage = 4096, kPages = (kAllBytes + kPage - 1) / kPage;
constexpr std::array<const char*, kMemoryKinds> kNames = {"device", "managed", "pinned", "pageable"};

std::string world_in_flight;  // written while no lane runs

std::size_t index(MemoryKind kind) { return static_cast<std::size_t>(kind); }

int* allocate(cudaError_t (*function)(void**, std::size_t)) {
  void* memory = nullptr;
  check(function(&memory, kAllBytes), "an allocation");
  return static_cast<int*>(memory);
}
cudaError_t device(void** out, std::size_t bytes) { return cudaMalloc(out, bytes); }
cudaError_t pinned(void** out, std::size_t bytes) { return cudaMallocHost(out, bytes); }

}  // namespace

void change_on_host(void* argument) {
  const HostArgument& of = *static_cast<const HostArgument*>(argument);
  for (int i = 0; i < kWords; ++i) {
    of.words[i] = static_cast<int>(static_cast<unsigned>(of.words[i]) * 5 + static_cast<unsigned>(of.constant));
  }
}

int* map_words() {
  void* const words = mmap(nullptr, kWords * sizeof(int), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (words == MAP_FAILED) std::abort();
  return static_cast<int*>(words);
}

void unmap_words(int* words) { munmap(words, kWords * sizeof(int)); }

void set_world_in_flight(const std::string& text) { world_in_flight = text; }

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s failed: %s\n", world_in_flight.c_str(), what, cudaGetErrorName(error));
  std::fflush(stdout);
  std::_Exit(3);
}

Memory::Memory(Random& random, const std::vector<Program>& programs, bool registers)
    : pageable_(2 * kAllWords), registers_(registers) {
  blocks_[index(MemoryKind::kDevice)] = allocate(device);
  blocks_[index(MemoryKind::kManaged)] = allocate(allocate_managed);
  if (registers) {
    blocks_[index(MemoryKind::kPinned)] = static_cast<int*>(std::aligned_alloc(kPage, kPages * kPage));
    check(cudaHostRegister(blocks_[index(MemoryKind::kPinned)], kPages * kPage, cudaHostRegisterDefault),
          "cudaHostRegister");
  } else {
    blocks_[index(MemoryKind::kPinned)] = allocate(pinned);
  }
  blocks_[index(MemoryKind::kPageable)] = pageable_.data();
  local = place(kResult);
  check(cudaMalloc(reinterpret_cast<void**>(&written_), kMaxOps * sizeof(Written)), "cudaMalloc");
  staging_ = allocate(pinned);
  std::vector<int> content(kAllWords);
  for (int& word : content) word = static_cast<int>(random.next());
  for (int* const block : blocks_) check(cudaMemcpy(block, content.data(), kAllBytes, cudaMemcpyDefault), "cudaMemcpy");
  for (const Program& program : programs) {
    void* arguments = nullptr;
    check(pinned(&arguments, (program.ops.size() + 1) * sizeof(HostArgument)), "an allocation");
    host_arguments_.push_back(static_cast<HostArgument*>(arguments));
    HostArgument* next = host_arguments_.back();
    for (const Op& op : program.ops) *next++ = {place(kPinnedWork), op.a};
  }
}

Memory::~Memory() {
  check(cudaFree(blocks_[index(MemoryKind::kDevice)]), "cudaFree");
  check(cudaFree(blocks_[index(MemoryKind::kManaged)]), "cudaFree");
  check(cudaFree(written_), "cudaFree");
  int* const on_host = blocks_[index(MemoryKind::kPinned)];
  check(registers_ ? cudaHostUnregister(on_host) : cudaFreeHost(on_host), "cudaFreeHost");
  if (registers_) std::free(on_host);
  check(cudaFreeHost(staging_), "cudaFreeHost");
  for (HostArgument* const arguments : host_arguments_) check(cudaFreeHost(arguments), "cudaFreeHost");
}

bool Memory::renew(bool with_device) {
  int* const on_host = blocks_[index(MemoryKind::kPinned)];
  check(cudaHostUnregister(on_host), "cudaHostUnregister");
  check(cudaHostRegister(on_host, kPages * kPage, cudaHostRegisterDefault), "cudaHostRegister");
  bool moves = false;
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kManaged}) {
    if (!with_device) break;
    int*& block = blocks_[index(kind)];
    int* const before = block;
    std::vector<int> content(kAllWords);
    check(cudaMemcpy(content.data(), block, kAllBytes, cudaMemcpyDefault), "cudaMemcpy");
    check(cudaFree(block), "cudaFree");
    block = allocate(kind == MemoryKind::kDevice ? device : allocate_managed);
    check(cudaMemcpy(block, content.data(), kAllBytes, cudaMemcpyDefault), "cudaMemcpy");
    moves |= block != before;
  }
  return moves;
}

int* Memory::place(int number) const {
  return blocks_[index(kKindOfPlace[static_cast<std::size_t>(number)])] + number * kWords;
}

std::string Memory::difference(const Memory& got, const Memory& wanted, StreamArg stream) {
  for (const Memory* memory : {&got, &wanted}) {
    const int* const block = memory->blocks_[index(MemoryKind::kDevice)];
    check(cudaMemcpyAsync(memory->staging_, block, kAllBytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  }
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (int number = 0; number < kPlaces; ++number) {
    const MemoryKind kind = kKindOfPlace[static_cast<std::size_t>(number)];
    const auto words = [&](const Memory& memory) {
      return kind == MemoryKind::kDevice ? memory.staging_ + number * kWords : memory.place(number);
    };
    for (int i = 0; i < kWords; ++i) {
      if (words(got)[i] == words(wanted)[i]) continue;
      return "place " + std::to_string(number) + " (" + kNames[index(kind)] + ") word " + std::to_string(i) + " is " +
             std::to_string(words(got)[i]) + ", wanted " + std::to_string(words(wanted)[i]);
    }
  }
  return {};
}

void Memory::assign(const Memory& other, StreamArg stream) {
  const std::size_t device = index(MemoryKind::kDevice);
  check(cudaMemcpyAsync(blocks_[device], other.blocks_[device], kAllBytes, cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (std::size_t kind = 0; kind < blocks_.size(); ++kind) {
    if (kind != device) std::memcpy(blocks_[kind], other.blocks_[kind], kAllBytes);
  }
}

}  // namespace graphcache::test::differential
