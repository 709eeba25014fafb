// xpurt/kernel.h: a kernel as the executor sees it: one call of a plan, the binary that holds its code, and
// the seam for kernels that a library brings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "xpurt/status.h"

namespace xpurt {

// What generated CPU code exports. Tasks begin to end of 0 .. tasks are computed, in any split and on any
// thread; `args` are buffers in the order of the call, `params` 8-byte values, `scratch` is the thread's own,
// 64-byte aligned. Inputs and outputs of a program are the caller's memory, aligned to their elements only;
// all else to 64 bytes.
using KernelFunction = void (*)(void* const* args, const void* params, int64_t begin, int64_t end,
                                void* scratch);

// What generated code met that it cannot compute. It lies right in front of the scratch of a thread (of calls
// that ask for any); a kernel fills it and goes on without reading or writing outside, and the run fails
// after the call.
struct alignas(64) KernelStatus {
    enum Kind : int64_t { fine, index_out_of_range, division_by_zero, size_mismatch };
    int64_t unused[5] = {};
    int64_t limit = 0;
    int64_t value = 0;
    int64_t kind = fine;
};
static_assert(sizeof(KernelStatus) == 64, "kernels find its fields at negative offsets from their scratch");

struct KernelCall;
// What a run says of it. `who` did it: text_of(call), or several.
Status status_of(const KernelStatus& found, const std::string& who);

// A place in memory: a slot of the plan (see executor.h) and bytes from its start.
struct BufferRef {
    int32_t slot = 0;
    int64_t offset = 0;
};

using Option = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;
using Options = std::map<std::string, Option>;

// A buffer as a library must know it.
struct ArgumentSpec {
    std::string dtype{};  // "float32", ...
    std::vector<int64_t> shape{};
    std::vector<int64_t> strides{};  // elements
};

class Module;

// One dispatch of a plan: program.KernelCall in the core's words.
struct KernelCall {
    std::string kernel{};  // the catalogue's name, for reports
    std::string symbol{};  // the function in the binary; the library's word for a library's kernel
    std::string library{};
    std::string nodes{};  // of the model, that it computes; for reports
    Options options{};
    std::vector<ArgumentSpec> specs{};  // of args; may be empty where no library asks
    std::vector<BufferRef> args{};      // inputs, then outputs
    int32_t inputs = 0;                 // how many of args are inputs
    std::vector<uint64_t> params{};     // i64 or the bits of f64
    int32_t position = 0;               // in the plan
    int64_t tasks = 1;
    int64_t grain = 1;
    int64_t scratch_bytes = 0;
    std::shared_ptr<const Module> own_module{};  // has the symbol where the plan's own module has not
};

// "kernel embedding/generated (node embed)", as reports name it.
std::string text_of(const KernelCall& call);

// Object code that is mapped into this process. Copies share it; it is unmapped with the last.
class Module {
  public:
    virtual ~Module() = default;
    virtual void* symbol(const char* name) const noexcept = 0;  // null when absent
    virtual const char* mapped_by() const noexcept = 0;         // "memfd" or "file"
};

// How load_module gets at the bytes: an anonymous file in memory where the system has that, else a temporary
// file.
enum class MapBy { any, memfd, file };

// Maps an ELF shared object. The bytes must have been checked by whoever read them: code cannot be judged.
Result<std::shared_ptr<const Module>> load_module(const void* bytes, size_t size, MapBy how = MapBy::any);

// Those of `requires` (instruction sets as cpu_facts() names them, "lib:NAME>=VERSION") that this machine
// lacks. Asks the kernel for AMX's tile state when an AMX set is among them.
std::vector<std::string> missing_requirements(const std::vector<std::string>& required);

// A call to a library, ready to run. It divides its work by itself.
class LibraryKernel {
  public:
    virtual ~LibraryKernel() = default;
    virtual Status execute(void* const* args, void* scratch) const = 0;
    virtual std::string implementation() const = 0;  // the library's own word for what it chose
    virtual int64_t scratch_bytes() const { return 0; }
};

// A library that brings kernels (oneDNN, ...). None is linked; each registers itself when it is built in.
class KernelLibrary {
  public:
    virtual ~KernelLibrary() = default;
    virtual std::string version() const = 0;  // "3.2"; "" when it cannot be loaded
    virtual Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall& call, int threads) = 0;
};

// The registered library, or null. Registration is for start-up; both may be called from any thread.
KernelLibrary* find_kernel_library(const std::string& name);
void register_kernel_library(const std::string& name, std::unique_ptr<KernelLibrary> library);

}  // namespace xpurt
