// The ranges and marks of NvtxRanges as a profiler receives them: this program injects itself as the profiler. On
// hostrt.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

#include "cache_support.h"
#include "graphcache/graphcache.h"
#include "graphcache/observe.h"

namespace {

std::vector<std::string> seen;  // what the profiler has received
std::string domain_name;

nvtxDomainHandle_t create_domain(const char* name) {
  domain_name = name;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain_name);
}
bool is_ours(nvtxDomainHandle_t domain) { return domain == reinterpret_cast<nvtxDomainHandle_t>(&domain_name); }
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (is_ours(domain)) seen.push_back(std::string("push ") + event->message.ascii);
  return 0;
}
int pop(nvtxDomainHandle_t domain) {
  if (is_ours(domain)) seen.push_back("pop");
  return 0;
}
void mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (is_ours(domain)) seen.push_back(std::string("mark ") + event->message.ascii);
}

int inject(NvtxGetExportTableFunc_t get_export_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  const auto set = [&](int id, auto function) { *table[id] = reinterpret_cast<NvtxFunctionPointer>(function); };
  set(NVTX_CBID_CORE2_DomainCreateA, &create_domain);
  set(NVTX_CBID_CORE2_DomainRangePushEx, &push);
  set(NVTX_CBID_CORE2_DomainRangePop, &pop);
  set(NVTX_CBID_CORE2_DomainMarkEx, &mark);
  return 1;
}

// NVTX reads this when it is first used.
[[maybe_unused]] const bool is_injected = (InitializeInjectionNvtx2_fnptr = &inject) != nullptr;

}  // namespace

namespace graphcache::test {
namespace {

class NvtxTest : public CacheTest {
 protected:
  void SetUp() override { seen.clear(); }
};

TEST_F(NvtxTest, NothingIsReportedByDefault) {
  Cache cache;
  EXPECT_TRUE(run_add(cache, key("k")).ok());
  EXPECT_TRUE(seen.empty());
}

TEST_F(NvtxTest, RangesAreNamedByTheLabel) {
  Cache cache(unshared({.max_executables = 1, .listeners = {std::make_shared<NvtxRanges>()}}));
  EXPECT_RUN(kInstantiated, run_add(cache, key("decode", 4)));
  EXPECT_EQ(domain_name, "graphcache");
  EXPECT_EQ(seen, (std::vector<std::string>{"push run decode", "push capture decode", "pop", "push instantiate decode",
                                            "pop", "push upload decode", "pop", "pop"}));
  seen.clear();
  EXPECT_RUN(kReplayed, run_add(cache, key("decode", 4)));
  EXPECT_EQ(seen, (std::vector<std::string>{"push run decode", "pop"}));
  seen.clear();
  EXPECT_RUN(kInstantiated, run_add(cache, key(7)));  // a key without text
  EXPECT_EQ(seen,
            (std::vector<std::string>{"push run", "push capture", "pop", "mark evict decode", "push instantiate", "pop",
                                      "push upload", "pop", "push destroy_executable decode", "pop", "pop"}));
}

}  // namespace
}  // namespace graphcache::test
#else
TEST(NvtxTest, WasCompiledWithoutNvtx) { GTEST_SKIP() << "the toolkit has no nvtx3/nvToolsExt.h"; }
#endif
