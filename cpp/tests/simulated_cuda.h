// Fixtures for the tests of the CUDA backend: a simulated driver, kernels for it, and a plan of two calls.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/driver.h"
#include "backends/cuda/stream.h"
#include "doctest/doctest.h"
#include "xpurt/cuda.h"
#include "xpurt/executor.h"

namespace simulated {

using namespace xpurt;

inline Library& driver() {
    static Library& library = *new Library(cuda::library_spec());
    if (!library.loaded()) REQUIRE(library.open({PROBES "/libprobe_simulated_driver.so", {}}).ok());
    return library;
}

template <class Function>
Function control(const char* name) {
    static void* const handle = dlopen(PROBES "/libprobe_simulated_driver.so", RTLD_NOW);
    return reinterpret_cast<Function>(dlsym(handle, name));
}
inline void fail(const char* call, int result) {
    control<void (*)(const char*, int)>("simulated_fail")(call, result);
}
inline int calls(const char* call) { return control<int (*)(const char*)>("simulated_calls")(call); }
inline int blocks() { return control<int (*)()>("simulated_blocks")(); }

inline std::shared_ptr<CudaBackend> backend() {
    auto result = cuda_backend(0, driver());
    REQUIRE(result.status.ok());
    return result.value;
}

inline Result<std::shared_ptr<const Module>> load(CudaBackend& on, const char* path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    return on.load(bytes.data(), bytes.size());
}

inline std::shared_ptr<const Module> kernels(CudaBackend& on) {
    auto loaded = load(on, PROBES "/libprobe_simulated_kernels.so");
    REQUIRE(loaded.status.ok());
    return loaded.value;
}

inline uint64_t bits(double value) {
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    return word;
}

inline KernelCall call(std::string symbol, std::vector<BufferRef> args, int64_t n) {
    KernelCall result;
    result.kernel = "test/" + symbol;
    result.symbol = std::move(symbol);
    result.args = std::move(args);
    result.tasks = n;
    result.options["grid"] = std::vector<int64_t>{n, 1, 1};
    result.options["block"] = std::vector<int64_t>{1, 1, 1};
    return result;
}

// Slots: 0 arena, 1 input x, 2 output y, 3 weight w. Computes y = (x + w) * 0.5 + 3 through the arena.
inline Plan chain(CudaBackend& on, int64_t n) {
    Plan plan;
    plan.name = "chain";
    plan.arena_bytes = 256 + 4 * n;
    plan.inputs = plan.outputs = plan.weights = 1;
    plan.io_bytes = {4 * n, 4 * n};
    plan.module = kernels(on);
    plan.calls = {call("add", {{1, 0}, {3, 0}, {0, 256}}, n), call("scale", {{0, 256}, {2, 0}}, n)};
    plan.calls[1].params = {bits(0.5), 3};
    return plan;
}

inline std::unique_ptr<Executor> make(const std::shared_ptr<CudaBackend>& on, Plan plan, int contexts = 2) {
    auto result = Executor::create(on, std::move(plan), contexts);
    REQUIRE_MESSAGE(result.status.ok(), result.status.message);
    return std::move(result.value);
}

inline constexpr int64_t n = 1000;

// y[i] = x[at[i]], where the weight is `at`. The kernel reports an index out of range.
inline Plan pick(CudaBackend& on) {
    Plan plan = chain(on, n);
    KernelCall gather = call("pick", {{1, 0}, {3, 0}, {2, 0}}, n);
    gather.params = {static_cast<uint64_t>(n)};
    gather.scratch_bytes = 64;  // only calls with scratch may report
    gather.nodes = "node embed";
    plan.calls = {gather};
    return plan;
}

struct Arrays {
    std::vector<float> x = std::vector<float>(n), y = std::vector<float>(n);
    explicit Arrays(float start) {
        for (size_t i = 0; i < n; ++i) x[i] = start + static_cast<float>(i);
    }
    bool right(float w = 7) const {
        for (size_t i = 0; i < n; ++i)
            if (y[i] != (x[i] + w) * 0.5f + 3) return false;
        return true;
    }
};

// A weight on the device.
struct Weight {
    std::shared_ptr<CudaBlock> block;
    WeightBindings weights;
    static Weight filled(CudaBackend& on, float value, bool exclusive = false) {
        auto result = on.block(4 * n, {});
        REQUIRE(result.status.ok());
        const std::vector<float> data(n, value);
        REQUIRE(on.upload(result.value->address(), data.data(), 4 * n).ok());
        return {result.value, WeightBindings({reinterpret_cast<Memory>(result.value->address())}, exclusive)};
    }
};

inline Status run_host(Executor& executor, const WeightBindings& weights, Arrays& a, int64_t* times = nullptr,
                       EventRing* ring = nullptr) {
    const Memory in = a.x.data(), out = a.y.data();
    Executor::Run run;
    run.weights = &weights, run.inputs = &in, run.outputs = &out, run.times = times, run.ring = ring;
    run.host = true;
    return executor.run(run);
}

inline Status run_device(Executor& executor, const WeightBindings& weights, const CudaBlock& in,
                         const CudaBlock& out, const StreamOrder& order = {}) {
    const Memory x = reinterpret_cast<Memory>(in.address()), y = reinterpret_cast<Memory>(out.address());
    Executor::Run run;
    run.weights = &weights, run.inputs = &x, run.outputs = &y, run.order = order;
    return executor.run(run);
}

// A library that queues a copy. Its graph node is not a kernel node, so a change of address requires a new
// capture.
struct CopyKernel final : cuda::StreamKernel {
    const cuda::Device& device;
    const bool scribbles;  // it also writes to its workspace
    CopyKernel(const cuda::Device& on, bool scribble) : device(on), scribbles(scribble) {}
    Status launch(void* const* args, void* workspace, cuda::CUstream stream) const override {
        CHECK(workspace != nullptr);
        CHECK(reinterpret_cast<uintptr_t>(workspace) % 256 == 0);
        if (scribbles)
            XPURT_TRY(device.check(
                device.driver.cuMemcpyDtoDAsync_v2(reinterpret_cast<uintptr_t>(workspace),
                                                   reinterpret_cast<uintptr_t>(args[0]), 100, stream),
                "cuMemcpyDtoDAsync_v2"));
        return device.check(
            device.driver.cuMemcpyDtoDAsync_v2(reinterpret_cast<uintptr_t>(args[1]),
                                               reinterpret_cast<uintptr_t>(args[0]), 4 * n, stream),
            "cuMemcpyDtoDAsync_v2");
    }
    size_t workspace_bytes() const override { return 100; }
    std::string implementation() const override { return "copy algorithm 3"; }
};
struct CopyLibrary final : cuda::StreamLibrary {
    std::string version() const override { return "1.0"; }
    Result<std::unique_ptr<cuda::StreamKernel>> prepare(const KernelCall& call,
                                                        cuda::Device& device) override {
        const bool scribbles = call.symbol == "copy and scribble";
        if (call.symbol != "copy" && !scribbles)
            return Status{Code::unsupported, "no such word: " + call.symbol, ""};
        return std::unique_ptr<cuda::StreamKernel>(std::make_unique<CopyKernel>(device, scribbles));
    }
};

inline Plan with_library(CudaBackend& on) {
    cuda::register_stream_library("copying", std::make_unique<CopyLibrary>());
    Plan plan = chain(on, n);
    plan.arena_bytes = 256 + 8 * n;
    KernelCall copy = call("copy", {{1, 0}, {0, 256 + 4 * n}}, n);
    copy.library = "copying";
    copy.options.clear();
    plan.calls.insert(plan.calls.begin(), copy);
    plan.calls[1].args[0] = {0, 256 + 4 * n};
    return plan;
}

// The same result with a library's call in the middle, between two parts of the arena.
inline Plan with_library_between(CudaBackend& on, int64_t first, int64_t second) {
    Plan plan = with_library(on);
    plan.arena_bytes = second + 4 * n;
    std::swap(plan.calls[0], plan.calls[1]);
    plan.calls[0].args = {{1, 0}, {3, 0}, {0, first}};
    plan.calls[1].args = {{0, first}, {0, second}};
    plan.calls[1].symbol = "copy and scribble";
    plan.calls[2].args[0] = {0, second};
    plan.arena_parts = {{first, 4 * n, 0, 1}, {second, 4 * n, 1, 2}};
    return plan;
}

}  // namespace simulated
