// CUDA facts from drivers of several versions, and from this machine's driver if it has one.
#include <algorithm>

#include "doctest/doctest.h"

#include "backends/cuda/driver.h"

using namespace xpurt;

TEST_CASE("an older driver gives facts, and missing ones are empty") {
    Library library(cuda::library_spec());
    const Result<CudaFacts> result = cuda::facts(library, {std::string(PROBES) + "/libprobe_driver.so", {}});
    REQUIRE(result.status.ok());
    CHECK(result.value.driver_api == 11000);
    REQUIRE(result.value.devices.size() == 1);
    const CudaDevice& device = result.value.devices[0];
    CHECK(device.name == "Probe GPU");
    CHECK(device.memory_bytes == int64_t{3} << 32);
    CHECK(device.multiprocessors == 1016);  // the probe answers 1000 + attribute
    CHECK(device.shared_memory_per_block == 1097);
    CHECK(device.clock_khz == 1013);
    CHECK(device.memory_clock_khz == 1036);
    CHECK(device.capability_major == 1075);
    CHECK(device.capability_minor == 1076);
    CHECK(device.pci_bus_id == "0000:01:00.0");
    CHECK(device.uuid == "");
    const std::vector<std::string> absent = library.info().absent;
    CHECK(std::count(absent.begin(), absent.end(), "cuDeviceGetUuid_v2 (since 11.4)") == 1);
    const Status status = cuda::can_run(library);
    CHECK(status.code == Code::symbol_missing);
    CHECK(status.message.find(
              "libprobe_driver.so is too old to run programs: it has no cuDevicePrimaryCtxRetain") !=
          std::string::npos);
    CHECK(status.message.find("cuDeviceGetUuid_v2") == std::string::npos);
    CHECK(status.advice == "Update the driver to one that serves CUDA 12.0 or later (525 and up).");
}

TEST_CASE("a driver without devices gives an error with advice") {
    Library library(cuda::library_spec());
    const Result<CudaFacts> result =
        cuda::facts(library, {std::string(PROBES) + "/libprobe_driver_no_device.so", {}});
    CHECK(result.status.code == Code::no_device);
    CHECK(result.status.message == "cuInit returned CUDA_ERROR_NO_DEVICE");
    CHECK(result.status.advice.find("CUDA_VISIBLE_DEVICES") != std::string::npos);
}

TEST_CASE("this machine's driver gives facts, or the reason why there are none") {
    const Result<CudaFacts> result = cuda_facts();
    if (result.status.ok()) {
        CHECK(result.value.driver_api >= 2000);
        REQUIRE(result.value.devices.size() >= 1);
        for (const CudaDevice& device : result.value.devices) {
            CHECK(device.name != "");
            CHECK(device.uuid.size() == 36);
            CHECK(device.capability_major >= 3);
            CHECK(device.multiprocessors >= 1);
            CHECK(device.memory_bytes > int64_t{1} << 28);
        }
    } else {
        CHECK(result.status.message != "");
        CHECK(result.status.advice != "");
        CHECK(result.value.devices.empty());
    }
}
