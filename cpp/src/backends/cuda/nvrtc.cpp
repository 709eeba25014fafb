// cuda/nvrtc.cpp: NVRTC's table, and a text's way through it.
#include "xpurt/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>

#include <mutex>
#include <type_traits>

#include "xpurt/library.h"

namespace xpurt {
namespace {

using Program = void*;

// name, version that introduced it, need, type.
#define XPURT_NVRTC_SYMBOLS(X)                                                              \
    X(nvrtcVersion, 7000, required, int(int*, int*))                                        \
    X(nvrtcGetErrorString, 7000, required, const char*(int))                                \
    X(nvrtcCreateProgram, 7000, required,                                                   \
      int(Program*, const char*, const char*, int, const char* const*, const char* const*)) \
    X(nvrtcDestroyProgram, 7000, required, int(Program*))                                   \
    X(nvrtcCompileProgram, 7000, required, int(Program, int, const char* const*))           \
    X(nvrtcGetProgramLogSize, 7000, required, int(Program, size_t*))                        \
    X(nvrtcGetProgramLog, 7000, required, int(Program, char*))                              \
    X(nvrtcGetCUBINSize, 11010, required, int(Program, size_t*))                            \
    X(nvrtcGetCUBIN, 11010, required, int(Program, char*))

struct Nvrtc {
#define XPURT_MEMBER(name, since, need, type) std::add_pointer_t<type> name;
    XPURT_NVRTC_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit Nvrtc(const Library& library) {
        size_t index = 0;  // rows of the table and members stand in the same order
#define XPURT_FILL(name, since, need, type) \
    name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_NVRTC_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }
};

// NVRTC finds its builtins by name, among what the process has loaded; beside it they lie in the packages for
// Python, where the loader does not look.
void load_builtins(const std::string& path) {
    const std::string folder = path.substr(0, path.rfind('/'));
    glob_t found{};
    if (glob((folder + "/libnvrtc-builtins.so.*").c_str(), 0, nullptr, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; ++i) dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_GLOBAL);
    globfree(&found);
}

Status open() {
    if (Status status = nvrtc_library().open(); !status.ok()) return status;
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
    if (Status status = open(); !status.ok()) return status;
    NvrtcVersion version;
    const Nvrtc nvrtc(nvrtc_library());
    if (const int result = nvrtc.nvrtcVersion(&version.major, &version.minor); result != 0)
        return Status{Code::call_failed,
                      std::string("nvrtcVersion returned ") + nvrtc.nvrtcGetErrorString(result), ""};
    return version;
}

Result<Compiled> nvrtc_compile(const std::string& source, const std::string& name, const std::string& arch,
                               const std::vector<std::string>& options) {
    if (Status status = open(); !status.ok()) return status;
    const Nvrtc nvrtc(nvrtc_library());
    struct Held {
        const Nvrtc& nvrtc;
        Program program = nullptr;
        ~Held() {
            if (program != nullptr) nvrtc.nvrtcDestroyProgram(&program);
        }
    } held{nvrtc};

    Compiled made;
    const auto failed = [&](const char* call, int result, Code code) {
        std::string message = std::string(call) + " returned " + nvrtc.nvrtcGetErrorString(result);
        if (!made.log.empty()) message += ":\n" + made.log;
        return Status{code, message, ""};
    };
    int result = nvrtc.nvrtcCreateProgram(&held.program, source.c_str(), name.c_str(), 0, nullptr, nullptr);
    if (result != 0) return failed("nvrtcCreateProgram", result, Code::call_failed);

    const std::string architecture = "--gpu-architecture=" + arch;
    std::vector<const char*> words{architecture.c_str()};
    for (const std::string& option : options) words.push_back(option.c_str());
    result = nvrtc.nvrtcCompileProgram(held.program, static_cast<int>(words.size()), words.data());
    size_t bytes = 0;
    if (nvrtc.nvrtcGetProgramLogSize(held.program, &bytes) == 0 && bytes > 1) {
        made.log.resize(bytes);
        nvrtc.nvrtcGetProgramLog(held.program, made.log.data());
        made.log.resize(bytes - 1);  // without its final zero
    }
    constexpr int invalid_option = 5, compilation = 6;
    if (result != 0)
        return failed("nvrtcCompileProgram", result,
                      result == compilation || result == invalid_option ? Code::invalid : Code::call_failed);
    result = nvrtc.nvrtcGetCUBINSize(held.program, &bytes);
    if (result != 0) return failed("nvrtcGetCUBINSize", result, Code::call_failed);
    made.cubin.resize(bytes);
    result = nvrtc.nvrtcGetCUBIN(held.program, made.cubin.data());
    if (result != 0) return failed("nvrtcGetCUBIN", result, Code::call_failed);
    return made;
}

}  // namespace xpurt
