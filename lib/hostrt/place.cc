#include "place.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace graphcache::hostrt {
namespace {

std::string hexadecimal(std::uintptr_t value) {
  char digits[2 + 2 * sizeof value + 1];
  std::snprintf(digits, sizeof digits, "0x%zx", static_cast<std::size_t>(value));
  return digits;
}

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : symbol;
}

// The call itself, not what comes behind it: the line of the next statement would be misleading.
std::string describe(const void* behind_call) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(behind_call) - 1;
  Dl_info info = {};
  const link_map* module = nullptr;
  void** const module_out = reinterpret_cast<void**>(const_cast<link_map**>(&module));
  if (dladdr1(reinterpret_cast<const void*>(address), &info, module_out, RTLD_DL_LINKMAP) == 0 || module == nullptr) {
    return hexadecimal(address);
  }
  const char* slash = std::strrchr(info.dli_fname, '/');
  std::string text = slash != nullptr ? slash + 1 : info.dli_fname;
  // From the addresses of the file, whether it was moved or not.
  text.append("+").append(hexadecimal(address - module->l_addr));
  if (info.dli_sname != nullptr) {
    const std::uintptr_t from_symbol = address - reinterpret_cast<std::uintptr_t>(info.dli_saddr);
    text.append(" (").append(demangled(info.dli_sname)).append("+").append(hexadecimal(from_symbol)).append(")");
  }
  return text;
}

}  // namespace

std::string to_string(const Place& place) {
  std::string text = place.function;
  if (place.call != 0) text += ", call " + std::to_string(place.call);
  if (place.thread != 0) text += ", thread " + std::to_string(place.thread);
  if (place.address != nullptr) text += ", at " + describe(place.address);
  return text;
}

Place Endings::find(const void* what) const {
  const auto bits = reinterpret_cast<std::uintptr_t>(what);
  for (std::size_t back = 1; back <= ring_.size(); ++back) {
    const Ending& ending = ring_[(next_ + kCapacity - back) % kCapacity];
    if (ending.what == bits) return ending.where;
  }
  return {};
}

}  // namespace graphcache::hostrt
