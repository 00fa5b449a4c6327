#include "diagnose/caller.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

namespace graphcache::diagnose {
namespace {

_Unwind_Reason_Code add_frame(_Unwind_Context* context, void* to) {
  auto& found = *static_cast<Frames*>(to);
  const auto address = static_cast<std::uintptr_t>(_Unwind_GetIP(context));
  if (address == 0 || found.count == Frames::kMax) return _URC_END_OF_STACK;
  found.addresses[found.count++] = reinterpret_cast<const void*>(address);
  return _URC_NO_REASON;
}

// A file mapped into memory.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about = {};
    if (file < 0) return;
    if (fstat(file, &about) == 0 && about.st_size > 0) {
      void* const at = mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ, MAP_PRIVATE, file, 0);
      if (at != MAP_FAILED) {
        data_ = static_cast<const char*>(at);
        size_ = static_cast<std::size_t>(about.st_size);
      }
    }
    close(file);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // `count` objects at an offset, or null if the file is too short.
  template <class T>
  const T* at(std::size_t offset, std::size_t count = 1) const {
    if (offset > size_ || count > (size_ - offset) / sizeof(T) || offset % alignof(T) != 0) return nullptr;
    return reinterpret_cast<const T*>(data_ + offset);
  }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

// The file that an address is mapped from. (The dynamic loader does not know the path of the program itself.)
std::string mapped_file(std::uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    int path = 0;
    const int read = std::sscanf(line.c_str(), "%zx-%zx %*s %*s %*s %*s %n", &begin, &end, &path);
    if (read == 2 && address >= begin && address < end) return line.substr(static_cast<std::size_t>(path));
  }
  return {};
}

// Finds the function at an address of a module's file in the linker's symbol table for debuggers. Most programs have
// that table, although they do not export their functions.
void find_in_file(const char* path, Location* out) {
  const MappedFile file(path);
  const auto* const header = file.at<ElfW(Ehdr)>(0);
  if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_shentsize != sizeof(ElfW(Shdr))) {
    return;
  }
  const auto* const sections = file.at<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
  if (sections == nullptr) return;
  for (std::size_t i = 0; i < header->e_shnum; ++i) {
    const ElfW(Shdr)& table = sections[i];
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
    const std::size_t count = table.sh_size / sizeof(ElfW(Sym));
    const auto* const symbols = file.at<ElfW(Sym)>(table.sh_offset, count);
    const ElfW(Shdr)& strings = sections[table.sh_link];
    const char* const names = file.at<char>(strings.sh_offset, strings.sh_size);
    if (symbols == nullptr || names == nullptr) continue;
    const auto* const found = std::find_if(symbols, symbols + count, [&](const ElfW(Sym) & symbol) {
      return ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF &&
             symbol.st_value <= out->offset && out->offset - symbol.st_value < symbol.st_size;
    });
    if (found == symbols + count || found->st_name >= strings.sh_size) continue;
    out->symbol.assign(names + found->st_name, strnlen(names + found->st_name, strings.sh_size - found->st_name));
    out->into_symbol = out->offset - found->st_value;
    return;
  }
}

}  // namespace

Location location_of_call(const void* behind) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(behind) - 1;
  Location found;
  Dl_info info = {};
  const link_map* module = nullptr;
  void** const module_out = reinterpret_cast<void**>(const_cast<link_map**>(&module));
  if (dladdr1(reinterpret_cast<const void*>(address), &info, module_out, RTLD_DL_LINKMAP) == 0 || module == nullptr) {
    return found;
  }
  const char* const slash = std::strrchr(info.dli_fname, '/');
  found.module = slash != nullptr ? slash + 1 : info.dli_fname;
  found.offset = address - module->l_addr;  // The address in the file, wherever the module was loaded.
  if (info.dli_sname != nullptr) {
    found.symbol = info.dli_sname;
    found.into_symbol = address - reinterpret_cast<std::uintptr_t>(info.dli_saddr);
  } else {
    find_in_file(mapped_file(address).c_str(), &found);
  }
  return found;
}

std::string demangled(const std::string& symbol) {
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, nullptr), &std::free);
  return plain != nullptr ? plain.get() : symbol;
}

std::string hexadecimal(std::uintptr_t value) {
  char digits[2 + 2 * sizeof value + 1];
  std::snprintf(digits, sizeof digits, "0x%zx", static_cast<std::size_t>(value));
  return digits;
}

namespace {

bool begins_with(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

// Whether this is a function of CUDA, including inline functions of its headers, all of which are templates or static.
// Neither "cublasCreate" nor a program's "void cudaUpdate(float*)" is one.
bool is_cudas(std::string_view symbol) {
  if (symbol.find("__device_stub_") != std::string_view::npos) return true;
  if (begins_with(symbol, "_Z")) {
    const bool is_static = begins_with(symbol, "_ZL");
    symbol.remove_prefix(is_static ? 3 : 2);
    std::size_t length = 0;
    while (!symbol.empty() && symbol[0] >= '0' && symbol[0] <= '9') {
      length = 10 * length + static_cast<std::size_t>(symbol[0] - '0');
      symbol.remove_prefix(1);
    }
    const bool is_template = symbol.size() > length && symbol[length] == 'I';
    if (length != 0 && !is_static && !is_template) return false;
  }
  for (const std::string_view mark : {"cuda", "cu"}) {
    if (begins_with(symbol, mark) && symbol.size() > mark.size() && symbol[mark.size()] >= 'A' &&
        symbol[mark.size()] <= 'Z') {
      return true;
    }
  }
  return begins_with(symbol, "__cud") || begins_with(symbol, "libcudart_static_");
}

// Whether this is a function of this library, which stands between `fn` and CUDA or calls `fn`.
bool is_ours(std::string_view symbol) {
  for (const std::string_view mark : {"_ZN10graphcache", "_ZNK10graphcache", "_ZZN10graphcache", "_ZZNK10graphcache"}) {
    if (!begins_with(symbol, mark)) continue;
    symbol.remove_prefix(mark.size());
    for (const std::string_view name : {"8Recorder", "6detail", "5Cache", "8diagnose", "6hostrt", "7capture",
                                        "7enqueue", "13launch_kernel", "3Run", "3run", "4Step"}) {
      if (begins_with(symbol, name)) return true;
    }
  }
  return false;
}

bool is_of_standard_library(std::string_view symbol) {
  return begins_with(symbol, "_ZNSt") || begins_with(symbol, "_ZNKSt") || begins_with(symbol, "_ZSt") ||
         symbol == "execute_native_thread_routine";
}

bool is_passed_over(const Location& where) {
  for (const std::string_view module : {"libcuda.so", "libcudart.so", "libcupti.so", "libgraphcache_diagnose.so",
                                        "libstdc++.so", "libc.so", "libpthread.so"}) {
    if (begins_with(where.module, module)) return true;
  }
  return is_cudas(where.symbol) || is_ours(where.symbol) || is_of_standard_library(where.symbol);
}

// The first position from `begin` on, outside of brackets, at which is_end(position) is true, or the name's end.
template <class F>
std::size_t find_outside_of_brackets(const std::string& name, std::size_t begin, const F& is_end) {
  int depth = 0;
  for (std::size_t i = begin; i < name.size(); ++i) {
    if (depth == 0 && is_end(i)) return i;
    if (std::strchr("<({[", name[i]) != nullptr) ++depth;
    if (std::strchr(">)}]", name[i]) != nullptr) --depth;
  }
  return name.size();
}

// "run(Model&)::{lambda(Recorder&)#1}::operator()(Recorder&) const" becomes a lambda of run(Model&). clang names it
// "run(Model&)::$_1::operator()".
std::string readable(const std::string& name) {
  const std::size_t lambda = find_outside_of_brackets(name, 0, [&](std::size_t i) {
    return begins_with(std::string_view(name).substr(i), "::{lambda(") ||
           begins_with(std::string_view(name).substr(i), "::$_");
  });
  return lambda == name.size() ? name : "a lambda of " + name.substr(0, lambda);
}

// What an Invoker of ours (detail/call.h) calls. Where its frame is the first that is not passed over, the compiler has
// put the body of `fn` into it. Empty for other functions.
std::string inlined_fn(const std::string& name) {
  constexpr std::string_view kInvoker = "Invoker<";
  const std::size_t at = name.find(kInvoker);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kInvoker.size();
  const std::size_t end =
      find_outside_of_brackets(name, begin, [&](std::size_t i) { return name[i] == ',' || name[i] == '>'; });
  const std::string fn = name.substr(begin, end - begin);
  // Functions have frames of their own, and of an operator's name a part would be missing.
  for (const char* const part : {"std::function<", "(*", "operator"}) {
    if (fn.find(part) != std::string::npos) return {};
  }
  return readable(fn);
}

}  // namespace

Frames frames(const void* from) {
  Frames found;
  _Unwind_Backtrace(&add_frame, &found);
  const void** const end = found.addresses + found.count;
  const void** const begin = from != nullptr ? std::find(found.addresses, end, from) : found.addresses;
  if (begin == end) {
    found.addresses[0] = from;
    found.count = 1;
  } else {
    found.count = static_cast<std::size_t>(std::copy(begin, end, found.addresses) - found.addresses);
  }
  return found;
}

std::string caller_of(const Frames& frames, bool by_runtime, const std::string& kernel) {
  bool passed_runtime = !by_runtime;
  for (std::size_t i = 0; i < frames.count; ++i) {
    const Location where = location_of_call(frames.addresses[i]);
    if (where.module.empty()) continue;
    if (is_ours(where.symbol)) {
      if (std::string fn = inlined_fn(demangled(where.symbol)); !fn.empty()) return fn;
    }
    if (is_passed_over(where)) {
      passed_runtime |= begins_with(where.module, "libcudart.so") || is_cudas(where.symbol);
      continue;
    }
    if (!where.symbol.empty()) {
      const std::string name = demangled(where.symbol);
      if (where.symbol == kernel || name == kernel) continue;
      return readable(name);
    }
    // In a program without symbols, the first function belongs to the runtime, unless the runtime is a shared library.
    if (std::exchange(passed_runtime, true)) return where.module + "+" + hexadecimal(where.offset);
  }
  return {};
}

}  // namespace graphcache::diagnose
