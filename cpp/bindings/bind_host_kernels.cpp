// bindings/bind_host_kernels.cpp: Python functions as kernels of a plan.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "xpurt/host_kernel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

// Calls `function(addresses, stream)`, which returns "", an error message, or a message and a remedy.
class PythonKernel final : public HostKernel {
  public:
    PythonKernel(nb::object function, size_t args) : function_(std::move(function)), args_(args) {}
    ~PythonKernel() override {
        const nb::gil_scoped_acquire gil;
        function_.reset();
    }
    Status run(void* const* args, void* stream) const override {
        const nb::gil_scoped_acquire gil;
        try {
            nb::list addresses;
            for (size_t i = 0; i < args_; ++i) addresses.append(reinterpret_cast<uintptr_t>(args[i]));
            const nb::object result = function_(addresses, reinterpret_cast<uintptr_t>(stream));
            if (nb::isinstance<nb::tuple>(result)) {
                auto [error, remedy] = nb::cast<std::pair<std::string, std::string>>(result);
                return Status{Code::call_failed, std::move(error), std::move(remedy)};
            }
            const auto error = nb::cast<std::string>(result);
            return error.empty() ? Status{} : Status{Code::call_failed, error, "Fix the function."};
        } catch (const std::exception& error) {
            return {Code::call_failed, error.what(), ""};
        }
    }

  private:
    nb::object function_;
    const size_t args_;
};

nb::object option(const Option& value) {
    return std::visit([](const auto& option) { return nb::cast(option); }, value);
}

// `find(symbol, options, specs, inputs, device)` returns the function of a call, or a string with the reason
// why there is none.
void set_finder(nb::object find) {
    auto* const finder =
        new nb::object(std::move(find));  // never freed: the core may call it until the process ends
    set_host_kernels(
        [finder](const KernelCall& call, const std::string& device) -> Result<std::unique_ptr<HostKernel>> {
            const nb::gil_scoped_acquire gil;
            try {
                nb::dict options;
                for (const auto& [name, value] : call.options) options[name.c_str()] = option(value);
                nb::list specs;
                for (const ArgumentSpec& spec : call.specs)
                    specs.append(nb::make_tuple(spec.dtype, spec.shape, spec.strides));
                nb::object function = (*finder)(call.symbol, options, specs, call.inputs, device);
                if (nb::isinstance<nb::str>(function))
                    return Status{Code::not_found, nb::cast<std::string>(function), ""};
                return std::unique_ptr<HostKernel>(
                    std::make_unique<PythonKernel>(std::move(function), call.args.size()));
            } catch (const std::exception& error) {
                return Status{Code::call_failed, error.what(), ""};
            }
        });
}

}  // namespace

void bind_host_kernels(nb::module_& m) {
    m.def("set_host_kernels", &set_finder, "find"_a, "Set the lookup of Python functions that plans call.",
          nb::sig("def set_host_kernels(find: object) -> None"));
}

}  // namespace xpurt::bindings
