// xpurt/nvrtc.h: CUDA C++ texts to machine code, by NVIDIA's runtime compiler. Needs neither driver nor
// device.
#pragma once

#include <string>
#include <vector>

#include "xpurt/status.h"

namespace xpurt {

struct NvrtcVersion {
    int major = 0, minor = 0;
};

// Of the library that is loaded or that the loader's own search finds.
Result<NvrtcVersion> nvrtc_version();

struct Compiled {
    std::string cubin{};
    std::string log{};  // the compiler's words: warnings of a text that compiles, errors of one that does not
};

// The CUBIN of a text for one architecture ("sm_90a"). A text that does not compile is Code::invalid, with
// the log in the message. `name` stands for the text in messages. Any thread.
Result<Compiled> nvrtc_compile(const std::string& source, const std::string& name, const std::string& arch,
                               const std::vector<std::string>& options);

}  // namespace xpurt
