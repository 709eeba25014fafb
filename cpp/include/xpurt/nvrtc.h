// xpurt/nvrtc.h: compilation of CUDA C++ by NVRTC. Needs neither a driver nor a device.
#pragma once

#include <string>
#include <vector>

#include "xpurt/status.h"

namespace xpurt {

struct NvrtcVersion {
    int major = 0, minor = 0;
};

// The version of the loaded NVRTC, which the loader's own search may find.
Result<NvrtcVersion> nvrtc_version();

struct Compiled {
    std::string cubin{};
    std::string log{};  // the compiler's log: warnings of a successful compilation, errors of a failed one
};

// Compile a source to a CUBIN for one architecture ("sm_90a"). A source that does not compile gives
// Code::invalid, with the log in the message. `name` identifies the source in messages. Thread-safe.
Result<Compiled> nvrtc_compile(const std::string& source, const std::string& name, const std::string& arch,
                               const std::vector<std::string>& options);

}  // namespace xpurt
