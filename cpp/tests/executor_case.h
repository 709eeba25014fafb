// Fixtures for the tests of the executor: a plan of two calls over the kernels of libraries/kernels.cpp, its
// arrays, and the expected result.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "doctest/doctest.h"
#include "xpurt/executor.h"

namespace xpurt {

inline std::shared_ptr<const Module> kernels() {
    static const std::shared_ptr<const Module> module = [] {
        std::ifstream file(PROBES "/libprobe_kernels.so", std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        return load_module(bytes.data(), bytes.size()).value;
    }();
    return module;
}

inline uint64_t bits(double value) {
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    return word;
}

inline KernelCall call(std::string symbol, std::vector<BufferRef> args, int64_t tasks) {
    KernelCall result;
    result.kernel = "test/" + symbol;
    result.symbol = std::move(symbol);
    result.args = std::move(args);
    result.tasks = tasks;
    return result;
}

// Slots: 0 arena, 1 input x, 2 output y, 3 weight w. Computes y = (x + w) * 0.5 + 3 through the arena at
// byte 64.
inline Plan chain(int64_t n, int64_t grain = 1) {
    Plan plan;
    plan.name = "chain";
    plan.arena_bytes = 64 + 4 * n;
    plan.inputs = plan.outputs = plan.weights = 1;
    plan.module = kernels();
    plan.calls = {call("add", {{1, 0}, {3, 0}, {0, 64}}, n), call("scale", {{0, 64}, {2, 0}}, n)};
    plan.calls[1].params = {bits(0.5), 3};
    for (KernelCall& each : plan.calls) each.grain = grain;
    return plan;
}

struct ChainArrays {
    std::vector<float> x, w, y;
    explicit ChainArrays(int64_t n)
        : x(static_cast<size_t>(n)), w(static_cast<size_t>(n)), y(static_cast<size_t>(n)) {
        std::iota(x.begin(), x.end(), 1.0f);
        std::iota(w.begin(), w.end(), -7.0f);
    }
    bool matches() const {
        for (size_t i = 0; i < y.size(); ++i)
            if (y[i] != (x[i] + w[i]) * 0.5f + 3) return false;
        return true;
    }
};

inline std::unique_ptr<Executor> make(const std::shared_ptr<Backend>& backend, Plan plan, int contexts = 2) {
    auto result = Executor::create(backend, std::move(plan), contexts);
    REQUIRE(result.status.ok());
    return std::move(result.value);
}

inline Status run(Executor& executor, const WeightBindings& weights, std::vector<Memory> in,
                  std::vector<Memory> out, int64_t* times = nullptr, EventRing* ring = nullptr) {
    return executor.run({&weights, in.data(), out.data(), times, ring});
}

}  // namespace xpurt
