// bindings/bind_devices.cpp: facts about processors.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "xpurt/device.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {

void bind_devices(nb::module_& m) {
    nb::class_<Cache>(m, "Cache", "A cache of core 0; sizes in bytes.")
        .def_ro("level", &Cache::level)
        .def_ro("type", &Cache::type)
        .def_ro("bytes", &Cache::bytes)
        .def_ro("line_bytes", &Cache::line_bytes)
        .def_ro("shared_by", &Cache::shared_by);

    nb::class_<CpuFacts>(m, "CpuFacts", "The host processor.")
        .def_ro("architecture", &CpuFacts::architecture)
        .def_ro("vendor", &CpuFacts::vendor)
        .def_ro("model", &CpuFacts::model)
        .def_ro("level", &CpuFacts::level)
        .def_ro("flags", &CpuFacts::flags)
        .def_ro("caches", &CpuFacts::caches)
        .def_ro("logical_cores", &CpuFacts::logical_cores)
        .def_ro("physical_cores", &CpuFacts::physical_cores)
        .def_ro("affinity_cores", &CpuFacts::affinity_cores)
        .def_ro("quota_cores", &CpuFacts::quota_cores)
        .def_ro("usable_cores", &CpuFacts::usable_cores)
        .def_ro("memory_bytes", &CpuFacts::memory_bytes)
        .def_ro("memory_limit_bytes", &CpuFacts::memory_limit_bytes);

    nb::class_<CudaDevice>(m, "CudaDevice", "One CUDA device.")
        .def_ro("index", &CudaDevice::index)
        .def_ro("name", &CudaDevice::name)
        .def_ro("uuid", &CudaDevice::uuid)
        .def_ro("pci_bus_id", &CudaDevice::pci_bus_id)
        .def_prop_ro("compute_capability",
                     [](const CudaDevice& self) {
                         return std::pair<int, int>(self.capability_major, self.capability_minor);
                     })
        .def_ro("multiprocessors", &CudaDevice::multiprocessors)
        .def_ro("shared_memory_per_block", &CudaDevice::shared_memory_per_block)
        .def_ro("memory_bytes", &CudaDevice::memory_bytes)
        .def_ro("clock_khz", &CudaDevice::clock_khz)
        .def_ro("memory_clock_khz", &CudaDevice::memory_clock_khz);

    nb::class_<CudaFacts>(m, "CudaFacts", "The CUDA driver and its devices.")
        .def_ro("driver_api", &CudaFacts::driver_api)
        .def_ro("driver_version", &CudaFacts::driver_version)
        .def_ro("devices", &CudaFacts::devices);

    m.def("cpu_facts", &cpu_facts, NoGil(), "Return facts about the host processor.");
    m.def(
        "cuda_facts",
        [](const Search& search) {
            Result<CudaFacts> result = cuda_facts(search);
            return std::pair<Status, CudaFacts>(std::move(result.status), std::move(result.value));
        },
        "search"_a, NoGil(), "Load the CUDA driver and describe its devices: (status, facts).");
}

}  // namespace xpurt::bindings
