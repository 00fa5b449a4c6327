#include "traffic.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "../pipeline/kernels.h"
#include "../support.h"

namespace demo {
namespace {

constexpr int kBlock = 64;
constexpr int kLongestPrompt = 1024;
constexpr int kMostDecoding = 12;
constexpr int kMostLayers = 4;
constexpr int kTokenSize = 32;  // elements of one token

// Fewer executables than keys, and every measurement that a cache offers.
graphcache::Options options() {
  graphcache::Options options;
  options.max_executables = 10;
  options.max_templates = 16;
  options.capture_after = 1;
  options.listeners = {std::make_shared<graphcache::History>(), std::make_shared<graphcache::HitLatency>(),
                       std::make_shared<graphcache::MemoryMeter>(0)};
  return options;
}

}  // namespace

Traffic::Traffic() : cache_(options()), wanted_(kLongestPrompt) {
  void* memory = nullptr;
  DEMO_CUDA(cudaMalloc(&memory, wanted_.size() * sizeof(std::uint32_t)));
  memory_ = static_cast<std::uint32_t*>(memory);
  DEMO_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  DEMO_CUDA(cudaMemsetAsync(memory_, 0, wanted_.size() * sizeof(std::uint32_t), stream_));
}

Traffic::~Traffic() {
  DEMO_CUDA(cudaStreamSynchronize(stream_));
  DEMO_CUDA(cudaStreamDestroy(stream_));
  DEMO_CUDA(cudaFree(memory_));
}

auto Traffic::stirs(int count, int layers) const {
  return [this, count, layers](graphcache::Recorder& rec, graphcache::Slot<std::uint32_t> salt) {
    const auto blocks = static_cast<unsigned>((count + kBlock - 1) / kBlock);
    for (int layer = 0; layer < layers; ++layer) {
      rec.launch(stir, {blocks, kBlock}, memory_, count, salt, static_cast<std::uint32_t>(layer));
    }
  };
}

absl::Status Traffic::warm(const graphcache::ManifestKey& known) {
  // A manifest may come from another version of this program, so its keys are checked.
  const std::vector<graphcache::KeyPart>& parts = known.parts;
  const bool has_form = parts.size() == 3 && parts[0].kind == graphcache::KeyPart::Kind::kText &&
                        parts[1].kind == graphcache::KeyPart::Kind::kInteger &&
                        parts[2].kind == graphcache::KeyPart::Kind::kInteger;
  const std::int64_t count = has_form ? parts[1].integer : 0;
  const std::int64_t layers = has_form ? parts[2].integer : 0;
  if (count < 1 || count > kLongestPrompt || layers < 1 || layers > kMostLayers) {
    return absl::NotFoundError(absl::StrCat("no request has the key ", known.text));
  }
  return cache_.warm(known.key, stream_, graphcache::params(salt_),
                     stirs(static_cast<int>(count), static_cast<int>(layers)));
}

void Traffic::run(const char* label, int count, int layers) {
  const std::uint32_t salt = ++salt_;
  const auto outcome =
      cache_.run(graphcache::key(label, count, layers), stream_, graphcache::params(salt), stirs(count, layers));
  check(outcome.status());
  for (int layer = 0; layer < layers; ++layer) {
    for (int i = 0; i < count; ++i) {
      std::uint32_t& value = wanted_[static_cast<std::size_t>(i)];
      value = stirred_on_host(value, salt + static_cast<std::uint32_t>(layer), i);
    }
  }
}

void Traffic::serve(int n) {
  static const graphcache::Buckets buckets{64, 128, 256, 384, 512, 768, kLongestPrompt};
  // Short prompts are more frequent than long ones.
  const auto length = static_cast<int>(kLongestPrompt >> (random_() % 5)) - static_cast<int>(random_() % 32);
  run("prefill", static_cast<int>(buckets.up(length)), kMostLayers);
  decoding_ = std::clamp(decoding_ + static_cast<int>(random_() % 3) - 1, 1, kMostDecoding);
  for (unsigned tokens = 4 + random_() % 8; tokens > 0; --tokens) run("decode", decoding_ * kTokenSize, 3);
  if (n % 64 == 0) run("report", kTokenSize, 1);
  DEMO_CUDA(cudaStreamSynchronize(stream_));
}

bool Traffic::equals_reference() const {
  std::vector<std::uint32_t> found(wanted_.size());
  DEMO_CUDA(cudaMemcpyAsync(found.data(), memory_, found.size() * sizeof found[0], cudaMemcpyDeviceToHost, stream_));
  DEMO_CUDA(cudaStreamSynchronize(stream_));
  return found == wanted_;
}

}  // namespace demo
