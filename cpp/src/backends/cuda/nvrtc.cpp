// cuda/nvrtc.cpp: NVRTC's function table, and compilation.
#include "xpurt/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>

#include <mutex>
#include <type_traits>

#include "base/log.h"
#include "xpurt/library.h"

namespace xpurt {
namespace {

using Program = void*;

// name, version that introduced it, need, type.
#define XPURT_NVRTC_SYMBOLS(X)                                                                     \
    X(nvrtcVersion, 7000, required, ResultCode(int*, int*))                                        \
    X(nvrtcGetErrorString, 7000, required, const char*(int))                                       \
    X(nvrtcCreateProgram, 7000, required,                                                          \
      ResultCode(Program*, const char*, const char*, int, const char* const*, const char* const*)) \
    X(nvrtcDestroyProgram, 7000, required, ResultCode(Program*))                                   \
    X(nvrtcCompileProgram, 7000, required, ResultCode(Program, int, const char* const*))           \
    X(nvrtcGetProgramLogSize, 7000, required, ResultCode(Program, size_t*))                        \
    X(nvrtcGetProgramLog, 7000, required, ResultCode(Program, char*))                              \
    X(nvrtcGetCUBINSize, 11010, required, ResultCode(Program, size_t*))                            \
    X(nvrtcGetCUBIN, 11010, required, ResultCode(Program, char*))

struct NvrtcApi {
#define XPURT_MEMBER(name, since, need, type) std::add_pointer_t<type> name;
    XPURT_NVRTC_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit NvrtcApi(const Library& library) {
        size_t index = 0;  // the members are declared in the order of the table
#define XPURT_FILL(name, since, need, type) \
    name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_NVRTC_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }
};

// NVRTC loads its builtins library by name. In Python packages it is next to NVRTC, where the loader does not
// search, so load it first.
void load_builtins(const std::string& path) {
    const std::string folder = path.substr(0, path.rfind('/'));
    glob_t paths{};
    if (glob((folder + "/libnvrtc-builtins.so.*").c_str(), 0, nullptr, &paths) == 0)
        for (size_t i = 0; i < paths.gl_pathc; ++i)
            if (dlopen(paths.gl_pathv[i], RTLD_NOW | RTLD_GLOBAL) == nullptr)
                log_failure({Code::unreadable, dlerror(), ""});
    globfree(&paths);
}

Status open() {
    XPURT_TRY(nvrtc_library().open());
    static std::once_flag once;
    std::call_once(once, [] { load_builtins(nvrtc_library().info().path); });
    return {};
}

}  // namespace

Library& nvrtc_library() {
    static Library& library = *new Library({
        "nvrtc",
        "NVIDIA NVRTC (runtime compiler)",
        "XPU_LIBNVRTC",
        {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"},
        {
#define XPURT_ROW(name, since, need, type) {#name, since, Need::need},
            XPURT_NVRTC_SYMBOLS(XPURT_ROW)
#undef XPURT_ROW
        },
        "pip install 'xpuruntime[cuda]' brings it, and so do CUDA's toolkit and PyTorch's CUDA packages.",
    });
    return library;
}

Result<NvrtcVersion> nvrtc_version() {
    XPURT_TRY(open());
    NvrtcVersion version;
    const NvrtcApi api(nvrtc_library());
    if (const int result = api.nvrtcVersion(&version.major, &version.minor); result != 0)
        return Status{Code::call_failed,
                      std::string("nvrtcVersion returned ") + api.nvrtcGetErrorString(result), ""};
    return version;
}

Result<Compiled> nvrtc_compile(const std::string& source, const std::string& name, const std::string& arch,
                               const std::vector<std::string>& options) {
    XPURT_TRY(open());
    const NvrtcApi api(nvrtc_library());
    struct ProgramGuard {
        const NvrtcApi& api;
        Program program = nullptr;
        ~ProgramGuard() {
            if (program == nullptr) return;
            if (const int result = api.nvrtcDestroyProgram(&program); result != 0)
                log_failure({Code::call_failed,
                             std::string("nvrtcDestroyProgram returned ") + api.nvrtcGetErrorString(result),
                             ""});
        }
    } guard{api};

    Compiled compiled;
    const auto failed = [&](const char* call, int result, Code code) {
        std::string message = std::string(call) + " returned " + api.nvrtcGetErrorString(result);
        if (!compiled.log.empty()) message += ":\n" + compiled.log;
        return Status{code, message, ""};
    };
    int result = api.nvrtcCreateProgram(&guard.program, source.c_str(), name.c_str(), 0, nullptr, nullptr);
    if (result != 0) return failed("nvrtcCreateProgram", result, Code::call_failed);

    const std::string architecture = "--gpu-architecture=" + arch;
    std::vector<const char*> arguments{architecture.c_str()};
    for (const std::string& option : options) arguments.push_back(option.c_str());
    result = api.nvrtcCompileProgram(guard.program, static_cast<int>(arguments.size()), arguments.data());
    size_t bytes = 0;
    if (api.nvrtcGetProgramLogSize(guard.program, &bytes) == 0 && bytes > 1) {
        compiled.log.resize(bytes);
        const bool read = api.nvrtcGetProgramLog(guard.program, compiled.log.data()) == 0;
        compiled.log.resize(read ? bytes - 1 : 0);  // without the terminating zero
    }
    constexpr int invalid_option = 5, compilation = 6;
    if (result != 0)
        return failed("nvrtcCompileProgram", result,
                      result == compilation || result == invalid_option ? Code::invalid : Code::call_failed);
    result = api.nvrtcGetCUBINSize(guard.program, &bytes);
    if (result != 0) return failed("nvrtcGetCUBINSize", result, Code::call_failed);
    compiled.cubin.resize(bytes);
    result = api.nvrtcGetCUBIN(guard.program, compiled.cubin.data());
    if (result != 0) return failed("nvrtcGetCUBIN", result, Code::call_failed);
    return compiled;
}

}  // namespace xpurt
