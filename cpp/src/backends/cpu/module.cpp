// cpu/module.cpp: loading object code, and checking a machine's features against its requirements.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "backends/cpu/instruction_sets.h"
#include "base/elf.h"
#include "base/log.h"
#include "base/text.h"
#include "xpurt/backend.h"
#include "xpurt/kernel.h"

namespace xpurt {
namespace {

#if defined(__x86_64__)
constexpr uint16_t machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t machine = EM_AARCH64;
#else
constexpr uint16_t machine = EM_NONE;
#endif

std::string reason() { return std::strerror(errno); }

// Close a file where no caller can receive the failure.
void close_file(int file) noexcept {
    if (close(file) != 0) log_failure({Code::call_failed, "close: " + reason(), ""});
}

class LoadedModule final : public Module {
  public:
    LoadedModule(void* handle, std::string path, int file, const char* mapped_by)
        : handle_(handle), path_(std::move(path)), file_(file), mapped_by_(mapped_by) {}
    ~LoadedModule() override {
        if (dlclose(handle_) != 0) log_failure({Code::call_failed, std::string("dlclose: ") + dlerror(), ""});
        if (file_ >= 0 && !stays_loaded()) close_file(file_);
    }
    LoadedModule(const LoadedModule&) = delete;
    LoadedModule& operator=(const LoadedModule&) = delete;
    void* symbol(const char* name) const noexcept override { return dlsym(handle_, name); }
    const char* mapped_by() const noexcept override { return mapped_by_; }
    std::string text() const override;

  private:
    // Unique symbols (STB_GNU_UNIQUE), such as static variables of templates, keep an object for good.
    bool stays_loaded() const noexcept {
        void* const again = dlopen(path_.c_str(), RTLD_NOW | RTLD_NOLOAD);
        return again != nullptr && dlclose(again) == 0;
    }

    void* const handle_;
    const std::string path_;
    // Kept open while the object is mapped: the loader identifies objects by name, so /proc/self/fd/N must
    // not be reused for another object.
    const int file_;
    const char* const mapped_by_;
};

#if defined(__GLIBC__)
struct TextQuery {
    uintptr_t base;
    std::string text;
};

int append_text(dl_phdr_info* info, size_t, void* context) {
    auto& query = *static_cast<TextQuery*>(context);
    if (info->dlpi_addr != query.base) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0)
            query.text.append(reinterpret_cast<const char*>(query.base + segment.p_vaddr), segment.p_filesz);
    }
    return 1;
}
#endif

std::string LoadedModule::text() const {
#if defined(__GLIBC__)
    link_map* object = nullptr;
    if (dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&object)) != 0 || object == nullptr) return "";
    TextQuery query{static_cast<uintptr_t>(object->l_addr), ""};
    dl_iterate_phdr(append_text, &query);
    return query.text;
#else
    return "";
#endif
}

Status write_all(int file, const char* bytes, size_t size) {
    while (size > 0) {
        const ssize_t written = write(file, bytes, size);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return {Code::unreadable, "object code could not be written: " + reason(), ""};
        bytes += written;
        size -= static_cast<size_t>(written);
    }
    return {};
}

Result<std::shared_ptr<const Module>> map(const std::string& path, int file, const char* mapped_by) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* const error = dlerror();
        return Status{
            Code::unreadable, std::string("the loader rejected the object code: ") + (error ? error : ""),
            "Compile the model again. A system that forbids mapping executable memory cannot run it."};
    }
    return std::shared_ptr<const Module>(std::make_shared<LoadedModule>(handle, path, file, mapped_by));
}

Result<std::shared_ptr<const Module>> from_memfd(const char* bytes, size_t size) {
#if defined(SYS_memfd_create)
    constexpr unsigned close_on_exec = 1;  // MFD_CLOEXEC
    const int file = static_cast<int>(syscall(SYS_memfd_create, "xpuruntime", close_on_exec));
    if (file < 0) return Status{Code::unreadable, "cannot create an anonymous file: " + reason(), ""};
    if (Status status = write_all(file, bytes, size); !status.ok()) {
        close_file(file);
        return status;
    }
    auto module = map("/proc/self/fd/" + std::to_string(file), file, "memfd");
    if (!module.status.ok()) close_file(file);
    return module;
#else
    (void)bytes, (void)size;
    return Status{Code::unreadable, "this system does not support anonymous files", ""};
#endif
}

Result<std::shared_ptr<const Module>> from_file(const char* bytes, size_t size) {
    std::string path = "/tmp/xpuruntime-XXXXXX";
    const int file = mkostemp(path.data(), O_CLOEXEC);  // readable and writable by its owner only
    if (file < 0) return Status{Code::unreadable, "cannot create a temporary file in /tmp: " + reason(), ""};
    Status status = write_all(file, bytes, size);
    if (close(file) != 0 && status.ok())
        status = {Code::unreadable, "object code could not be written: " + reason(), ""};
    Result<std::shared_ptr<const Module>> module = status;
    if (status.ok()) module = map(path, -1, "file");
    if (unlink(path.c_str()) != 0)
        log_failure({Code::call_failed, "the temporary file " + path + " stays: " + reason(), ""});
    return module;
}

#if defined(__x86_64__) && defined(__linux__)
// Linux, Documentation/arch/x86/xstate.rst: tile data is disabled until a process requests it.
bool tiles_granted() {
    constexpr int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#else
bool tiles_granted() { return false; }
#endif

// "lib:NAME>=VERSION" or "lib:NAME".
bool library_present(const std::string& text) {
    const size_t sign = text.find(">=");
    KernelLibrary* const library = find_kernel_library(text.substr(0, sign));
    if (library == nullptr) return false;
    const std::string have = library->version();
    if (have.empty()) return false;
    if (sign == std::string::npos) return true;
    const char *a = have.c_str(), *b = text.c_str() + sign + 2;
    while (*b != '\0') {  // compare numbers between dots; a missing number is 0
        char *end_a = nullptr, *end_b = nullptr;
        const long left = std::strtol(a, &end_a, 10), right = std::strtol(b, &end_b, 10);
        if (left != right) return left > right;
        if (end_b == b) return true;
        a = *end_a == '.' ? end_a + 1 : end_a;
        b = *end_b == '.' ? end_b + 1 : end_b;
    }
    return true;
}

}  // namespace

Result<std::shared_ptr<const Module>> load_module(const void* bytes, size_t size, MapBy how) {
    Elf64_Ehdr header;
    if (size >= sizeof header) std::memcpy(&header, bytes, sizeof header);
    if (size < sizeof header || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN)
        return Status{Code::invalid, "object code is not a 64-bit ELF shared object",
                      "Compile the model again."};
    if (header.e_machine != machine)
        return Status{Code::unsupported,
                      "object code is for ELF machine " + std::to_string(header.e_machine) + ", this is " +
                          std::to_string(machine),
                      "Compile the model for this architecture."};
    if (const std::string damage = elf_damage(bytes, size); !damage.empty())
        return Status{Code::invalid, "object code is damaged: " + damage, "Compile the model again."};
    const auto* const text = static_cast<const char*>(bytes);
    if (how == MapBy::file) return from_file(text, size);
    auto module = from_memfd(text, size);
    if (module.status.ok() || how == MapBy::memfd) return module;
    auto again = from_file(text, size);
    if (!again.status.ok()) again.status.message += " (and from memory: " + module.status.message + ")";
    return again;
}

CalledCode code_at(const void* function) {
    CalledCode called;
#if defined(__GLIBC__)
    Dl_info info;
    void* entry = nullptr;
    if (dladdr1(function, &info, &entry, RTLD_DL_SYMENT) == 0 || info.dli_sname == nullptr ||
        info.dli_saddr != function)
        return called;
    called.symbol = info.dli_sname;
    if (const auto* const symbol = static_cast<const ElfW(Sym)*>(entry); symbol != nullptr)
        called.code.assign(static_cast<const char*>(function), symbol->st_size);
#else
    (void)function;
#endif
    return called;
}

std::vector<std::string> missing_requirements(const std::vector<std::string>& required) {
    const InstructionSets have = instruction_sets();
    std::vector<std::string> missing;
    for (const std::string& name : required) {
        const bool is_library = name.rfind("lib:", 0) == 0;
        bool present = is_library ? library_present(name.substr(4))
                                  : std::find(have.flags.begin(), have.flags.end(), name) != have.flags.end();
        if (present && name.rfind("amx-", 0) == 0) present = tiles_granted();
        if (!present) missing.push_back(name);
    }
    return missing;
}

}  // namespace xpurt
