// xpurt/kernel.h: one kernel call of a plan, the module that holds its code, and the interface for kernel
// libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "xpurt/status.h"

namespace xpurt {

// The signature of a generated CPU kernel. It computes the tasks from `begin` to `end` of 0 .. tasks; any
// split over any threads gives the same result. `args` are the buffers in the order of the call, `params` are
// 8-byte values, and `scratch` belongs to the thread and is 64-byte aligned. Inputs and outputs of the
// program are aligned to their elements only, all other buffers to 64 bytes.
using KernelFunction = void (*)(void* const* args, const void* params, int64_t begin, int64_t end,
                                void* scratch);

// An error that a generated kernel reports, such as an index out of range. It is stored directly before the
// scratch of each thread, for calls that ask for scratch. The kernel fills it in and continues without
// out-of-bounds accesses; the run fails after the call.
struct alignas(64) KernelStatus {
    enum Kind : int64_t { fine, index_out_of_range, division_by_zero, size_mismatch };
    int64_t unused[5] = {};
    int64_t limit = 0;
    int64_t value = 0;
    int64_t kind = fine;
};
static_assert(sizeof(KernelStatus) == 64, "kernels find its fields at negative offsets from their scratch");

// Where compiled plans of vendors' libraries are kept between processes. Functions are called from several
// threads and do not throw. A key holds all that determines a plan. Stores of one name have the same entries.
struct PlanStore {
    std::string name{};
    std::function<std::string(const std::string& key)> get{};  // "" if it is absent
    std::function<void(const std::string& key, const std::string& plan)> put{};
};

struct KernelCall;
// The status of a run whose kernel reported `status`. `who` names the call or calls: text_of(call).
Status status_of(const KernelStatus& status, const std::string& who);

// A reference to memory: a slot of the plan (see executor.h) and an offset in bytes.
struct BufferRef {
    int32_t slot = 0;
    int64_t offset = 0;
};

using Option = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;
using Options = std::map<std::string, Option>;

// The dtype, shape and strides of a buffer, for library calls.
struct ArgumentSpec {
    std::string dtype{};  // "float32", ...
    std::vector<int64_t> shape{};
    std::vector<int64_t> strides{};  // in elements
};

class Module;

// One kernel call of a plan; mirrors program.KernelCall in Python.
struct KernelCall {
    std::string kernel{};  // name in the kernel catalog, for reports
    std::string symbol{};  // function in the module; for a library's kernel the library's name for it
    std::string library{};
    std::string nodes{};  // model nodes that the call computes, for reports
    Options options{};
    std::vector<ArgumentSpec> specs{};  // one for each of args; may be empty where no library needs them
    std::vector<BufferRef> args{};      // inputs, then outputs
    int32_t inputs = 0;                 // how many of args are inputs
    std::vector<uint64_t> params{};     // int64 values or the bits of doubles
    int32_t position = 0;               // in the plan
    int64_t tasks = 1;
    int64_t grain = 1;
    int64_t scratch_bytes = 0;
    std::shared_ptr<const Module> own_module{};     // holds the symbol, where the plan's module does not
    std::shared_ptr<const PlanStore> plan_store{};  // null: what its library compiles is not kept
};

// The name of a call in messages: "kernel embedding/generated (node embed)".
std::string text_of(const KernelCall& call);

// Object code that is mapped into this process. Copies share it; it is unmapped with the last one.
class Module {
  public:
    virtual ~Module() = default;
    virtual void* symbol(const char* name) const noexcept = 0;  // null if absent
    // The executable segments as they are in memory now, in order of address; "" where that is unknown.
    virtual std::string text() const { return ""; }
    virtual const char* mapped_by() const noexcept = 0;  // "memfd" or "file"
};

// The file that load_module maps: an anonymous file in memory if the system supports it, else a temporary
// file.
enum class MapBy { any, memfd, file };

// Map an ELF shared object. The caller must have verified the bytes: malicious code cannot be detected here.
Result<std::shared_ptr<const Module>> load_module(const void* bytes, size_t size, MapBy how = MapBy::any);

struct CalledCode;
// The name and the machine code of the function at an address of loaded object code.
CalledCode code_at(const void* function);

// Return those of `required` that this machine lacks: instruction sets as in cpu_facts(), or
// "lib:NAME>=VERSION". For an AMX instruction set, also requests permission to use the tile registers.
std::vector<std::string> missing_requirements(const std::vector<std::string>& required);

// A prepared call of a library, which parallelizes its work itself.
class LibraryKernel {
  public:
    virtual ~LibraryKernel() = default;
    virtual Status execute(void* const* args, void* scratch) const = 0;
    virtual std::string implementation() const = 0;  // the library's name for the implementation it chose
    virtual int64_t scratch_bytes() const { return 0; }
};

// A library of kernels, such as oneDNN. None is linked at build time.
class KernelLibrary {
  public:
    virtual ~KernelLibrary() = default;
    virtual std::string version() const = 0;  // "3.2"; "" if it cannot be loaded
    virtual Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall& call, int threads) = 0;
};

// The registered library, or null. Thread-safe; libraries should be registered at start-up.
KernelLibrary* find_kernel_library(const std::string& name);
void register_kernel_library(const std::string& name, std::unique_ptr<KernelLibrary> library);

}  // namespace xpurt
