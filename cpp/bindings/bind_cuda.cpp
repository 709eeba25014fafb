// bindings/bind_cuda.cpp: NVRTC.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "xpurt/nvrtc.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {

void bind_cuda(nb::module_& m) {
    m.def(
        "nvrtc_version",
        [] {
            Result<NvrtcVersion> found = [] {
                const nb::gil_scoped_release no_gil;
                return nvrtc_version();
            }();
            return std::tuple<Status, int, int>(std::move(found.status), found.value.major,
                                                found.value.minor);
        },
        "Of the NVRTC that is loaded: (status, major, minor).");
    m.def(
        "nvrtc_compile",
        [](const std::string& source, const std::string& name, const std::string& arch,
           const std::vector<std::string>& options) {
            Result<Compiled> made = [&] {
                const nb::gil_scoped_release no_gil;
                return nvrtc_compile(source, name, arch, options);
            }();
            return std::tuple<Status, nb::bytes, std::string>(
                std::move(made.status), nb::bytes(made.value.cubin.data(), made.value.cubin.size()),
                std::move(made.value.log));
        },
        "source"_a, "name"_a, "arch"_a, "options"_a = std::vector<std::string>(),
        nb::sig("def nvrtc_compile(source: str, name: str, arch: str, options: Sequence[str] = []) -> "
                "tuple[Status, bytes, str]"),
        "The CUBIN of a CUDA C++ text for an architecture (sm_90a): (status, cubin, log). Needs no device.");
}

}  // namespace xpurt::bindings
