// cuDNN graphs, run by a cuDNN that computes on the host: attention and convolution compared with plain
// loops, the choice of engines, shared plans, and refusals.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

namespace {

using Dims = std::vector<int64_t>;
constexpr const char* path = PROBES "/libprobe_computing_cudnn.so";

template <class F>
F* probe(const char* name) {
    return reinterpret_cast<F*>(dlsym(dlopen(path, RTLD_NOW), name));
}
int plans() { return probe<int()>("simulated_plans")(); }

uint16_t narrow(float value) {  // to bfloat16, rounding to nearest even
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
float wide(uint16_t value) {
    const uint32_t word = uint32_t{value} << 16;
    float result;
    std::memcpy(&result, &word, sizeof result);
    return result;
}

// A bfloat16 tensor of four dims in any memory order.
struct BfloatTensor {
    Dims shape, strides;
    std::vector<uint16_t> data;
    BfloatTensor(Dims of, const Dims& request, int seed) : shape(std::move(of)), strides(4) {
        int64_t step = 1;
        for (size_t i = 4; i-- > 0; step *= shape[static_cast<size_t>(request[i])])
            strides[static_cast<size_t>(request[i])] = step;
        for (int64_t i = 0; i < step; ++i)
            data.push_back(narrow(std::sin(static_cast<float>(i * 7 + seed * 131))));
    }
    float operator()(int64_t a, int64_t b, int64_t c, int64_t d) const {
        return wide(
            data[static_cast<size_t>(a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3])]);
    }
};
const Dims heads_outside = {0, 1, 2, 3}, heads_inside = {0, 2, 1, 3}, channels_last = {0, 2, 3, 1};

// A cuDNN call over tensors, the last of which is the output.
KernelCall cudnn_call(const char* symbol, const std::vector<const char*>& names,
                      const std::vector<BfloatTensor*>& tensors) {
    KernelCall result;
    result.kernel = std::string("test/") + symbol;
    result.symbol = symbol;
    result.library = "cudnn";
    result.options["in"] = std::string("bfloat16");
    for (size_t i = 0; i < tensors.size(); ++i) {
        result.args.push_back({static_cast<int32_t>(i) + 1, 0});
        result.specs.push_back({"bfloat16", tensors[i]->shape, tensors[i]->strides});
        if (names[i] == nullptr) continue;
        result.options[std::string(names[i]) + "_shape"] = tensors[i]->shape;
        result.options[std::string(names[i]) + "_strides"] = tensors[i]->strides;
    }
    result.inputs = static_cast<int32_t>(tensors.size()) - 1;
    return result;
}

Result<std::unique_ptr<Executor>> executor_of(const std::shared_ptr<CudaBackend>& on,
                                              std::vector<KernelCall> calls) {
    if (!cudnn_library().loaded()) REQUIRE(cudnn_library().open({path, {}}).ok());
    Plan plan;
    plan.name = "one";
    plan.arena_bytes = 256;
    plan.inputs = calls[0].inputs;
    plan.outputs = 1;
    plan.io_bytes.assign(static_cast<size_t>(plan.inputs) + 1, 0);
    plan.calls = std::move(calls);
    return Executor::create(on, std::move(plan), 1);
}

// Run the call; the output is the last tensor. Return the implementation.
std::string run(const KernelCall& call, const std::vector<BfloatTensor*>& tensors) {
    const auto on = backend();
    auto result = executor_of(on, {call});
    REQUIRE_MESSAGE(result.status.ok(), result.status.message);
    std::vector<std::shared_ptr<CudaBlock>> blocks;
    std::vector<Memory> memory;
    for (const BfloatTensor* tensor : tensors) {
        blocks.push_back(on->block(2 * tensor->data.size(), {}).value);
        REQUIRE(on->upload(blocks.back()->address(), tensor->data.data(), 2 * tensor->data.size()).ok());
        memory.push_back(reinterpret_cast<Memory>(blocks.back()->address()));
    }
    Executor::Run request;
    const WeightBindings weights({}, false);
    request.weights = &weights, request.inputs = memory.data(), request.outputs = &memory.back();
    const Status status = result.value->run(request);
    REQUIRE_MESSAGE(status.ok(), status.message);
    BfloatTensor& y = *tensors.back();
    REQUIRE(on->download(y.data.data(), blocks.back()->address(), 2 * y.data.size()).ok());
    return result.value->implementations()[0];
}

struct Attention {
    BfloatTensor q, k, v, y;
    bool causal = false;
    int64_t offset = 0;
    double scale = 0.4;

    Attention(int64_t queries, int64_t keys, const Dims& request)
        : q({2, 4, queries, 16}, request, 1),
          k({2, 2, keys, 16}, request, 2),
          v({2, 2, keys, 8}, request, 3),
          y({2, 4, queries, 8}, request, 4) {}

    std::vector<BfloatTensor*> tensors() { return {&q, &k, &v, &y}; }
    KernelCall call() {
        KernelCall result = cudnn_call("attention", {"q", "k", "v", "y"}, tensors());
        result.options["causal"] = causal;
        result.options["offset"] = offset;
        result.options["scale"] = scale;
        return result;
    }
    double expected(int64_t b, int64_t h, int64_t i, int64_t e) const {
        double total = 0, sum = 0;
        for (int64_t j = 0; j < k.shape[2] && (!causal || j <= i + offset); ++j) {
            double score = 0;
            for (int64_t x = 0; x < 16; ++x) score += double{q(b, h, i, x)} * double{k(b, h / 2, j, x)};
            total += std::exp(score * scale);
            sum += std::exp(score * scale) * double{v(b, h / 2, j, e)};
        }
        return sum / total;
    }
    double error() const {
        double max_error = 0;
        for (int64_t b = 0; b < 2; ++b)
            for (int64_t h = 0; h < 4; ++h)
                for (int64_t i = 0; i < q.shape[2]; ++i)
                    for (int64_t e = 0; e < 8; ++e)
                        max_error =
                            std::max(max_error, std::abs(expected(b, h, i, e) - double{y(b, h, i, e)}));
        return max_error;
    }
};

}  // namespace

TEST_CASE("attention is correct for grouped heads, both layouts and shifted masks") {
    struct {
        int64_t queries, keys;
        bool causal;
        int64_t offset;
    } const cases[] = {
        {9, 13, false, 0}, {9, 9, true, 0}, {5, 12, true, 7}, {9, 13, true, 2}, {9, 4, true, 0}};
    for (const Dims& request : {heads_outside, heads_inside})
        for (const auto& c : cases) {
            Attention a(c.queries, c.keys, request);
            a.causal = c.causal, a.offset = c.offset;
            CHECK(run(a.call(), a.tensors()) ==
                  "cudnnBackendExecute engine 2, configuration 2, workspace 256");
            CHECK(a.error() < 4e-3);  // a rounding error of values below one
        }
}

TEST_CASE("a graph of convolution, residual, bias and clipped relu is correct") {
    BfloatTensor x({2, 3, 6, 5}, channels_last, 1), w({4, 3, 3, 3}, channels_last, 2),
        bias({1, 1, 1, 4}, heads_outside, 3), residual({2, 4, 3, 5}, channels_last, 4),
        y({2, 4, 3, 5}, channels_last, 5);
    const std::vector<BfloatTensor*> tensors{&x, &w, &bias, &residual, &y};
    KernelCall call = cudnn_call("conv", {"x", "w", nullptr, "r", "y"}, tensors);
    call.options["bias"] = call.options["residual"] = true;
    call.options["act"] = std::string("relu6");
    call.options["stride"] = Dims{2, 1};
    call.options["dilation"] = call.options["begin"] = call.options["end"] = Dims{1, 1};
    run(call, tensors);
    double max_error = 0;
    for (int64_t n = 0; n < 2; ++n)
        for (int64_t o = 0; o < 4; ++o)
            for (int64_t r = 0; r < 3; ++r)
                for (int64_t c = 0; c < 5; ++c) {
                    double sum = double{residual(n, o, r, c)} + double{bias(0, 0, 0, o)};
                    for (int64_t i = 0; i < 3; ++i)
                        for (int64_t tr = 0; tr < 3; ++tr)
                            for (int64_t tc = 0; tc < 3; ++tc) {
                                const int64_t row = 2 * r + tr - 1, column = c + tc - 1;
                                if (row >= 0 && row < 6 && column >= 0 && column < 5)
                                    sum += double{x(n, i, row, column)} * double{w(o, i, tr, tc)};
                            }
                    max_error =
                        std::max(max_error, std::abs(std::clamp(sum, 0.0, 6.0) - double{y(n, o, r, c)}));
                }
    CHECK(max_error < 2e-2);
}

TEST_CASE("a residual whose strides differ from the output's is refused") {
    const auto on = backend();
    BfloatTensor x({2, 3, 4, 5}, channels_last, 1), w({4, 3, 1, 1}, channels_last, 2),
        residual({2, 4, 4, 5}, heads_outside, 4), y({2, 4, 4, 5}, channels_last, 5);
    const std::vector<BfloatTensor*> tensors{&x, &w, &residual, &y};
    KernelCall call = cudnn_call("conv", {"x", "w", "r", "y"}, tensors);
    call.options["residual"] = true;
    call.options["stride"] = call.options["dilation"] = Dims{1, 1};
    call.options["begin"] = call.options["end"] = Dims{0, 0};
    CHECK(executor_of(on, {call}).status.message ==
          "test/conv: cuDNN refuses the convolution: the strides of the residual and the output differ");
    call.options["r_strides"] = y.strides;
    CHECK(executor_of(on, {call}).status.ok());
}

TEST_CASE("relu propagates NaN if the library supports it") {
    BfloatTensor x({1, 2, 1, 4}, channels_last, 1), w({3, 2, 1, 1}, channels_last, 2),
        y({1, 3, 1, 4}, channels_last, 3);
    x.data[2 * 1] = narrow(std::numeric_limits<float>::quiet_NaN());
    x.data[2 * 2] = narrow(std::numeric_limits<float>::infinity());
    const std::vector<BfloatTensor*> tensors{&x, &w, &y};
    KernelCall call = cudnn_call("conv", {"x", "w", "y"}, tensors);
    call.options["stride"] = call.options["dilation"] = Dims{1, 1};
    call.options["begin"] = call.options["end"] = Dims{0, 0};
    const auto lost = [&](const char* act) {  // the number of the three NaN outputs that are not NaN
        call.options["act"] = std::string(act);
        run(call, tensors);
        int count = 0;
        for (int64_t o = 0; o < 3; ++o) {
            count += std::isnan(y(0, o, 0, 1)) ? 0 : 1;
            const float expected = std::string(act) == "relu" ? std::numeric_limits<float>::infinity() : 6;
            CHECK(y(0, o, 0, 2) == (w(o, 0, 0, 0) > 0 ? expected : 0));
        }
        return count;
    };
    CHECK(lost("relu") == 0);
    CHECK(lost("relu6") == 0);
    const auto set_unknown_attribute = probe<void(int)>("simulated_knows_not");
    set_unknown_attribute(2);
    call.options["workspace_bytes"] = int64_t{1} << 20;  // another call, so another plan
    CHECK(lost("relu") == 3);
    set_unknown_attribute(-1);
}

TEST_CASE("equal calls share a plan, and recent plans are kept") {
    const auto on = backend();
    Attention a(6, 6, heads_outside);
    const auto new_plans = [&](double scale) {  // the number of plans that two equal calls create
        const int before = plans();
        a.scale = scale;
        CHECK(executor_of(on, {a.call(), a.call()}).status.ok());
        return plans() - before;
    };
    CHECK(new_plans(0.3) == 1);
    CHECK(new_plans(0.30000001) == 1);  // another value is another call
    CHECK(new_plans(0.3) == 0);
    a.scale = 0.3;
    const auto lives = executor_of(on, {a.call()});
    for (int i = 1; i <= 140; ++i) new_plans(i);  // more than are kept
    CHECK(new_plans(0.3) == 0);
    CHECK(new_plans(0.30000001) == 1);
}

// A plan store in memory.
struct MemoryStore {
    std::mutex mutex;
    std::map<std::string, std::string> entries;
    const std::shared_ptr<PlanStore> store = std::make_shared<PlanStore>();
    explicit MemoryStore(const std::string& name) {
        store->name = name;
        store->get = [this](const std::string& key) {
            const std::lock_guard<std::mutex> lock(mutex);
            const auto entry = entries.find(key);
            return entry == entries.end() ? "" : entry->second;
        };
        store->put = [this](const std::string& key, const std::string& plan) {
            const std::lock_guard<std::mutex> lock(mutex);
            entries[key] = plan;
        };
    }
    KernelCall kept(KernelCall call) const {
        call.plan_store = store;
        return call;
    }
};

TEST_CASE("plans are restored from the store, and what is no plan of the call is built again") {
    const auto on = backend();
    MemoryStore store("one");
    Attention a(6, 6, heads_outside);
    const auto new_plans = [&](double scale) {
        const int before = plans();
        a.scale = scale;
        CHECK(run(store.kept(a.call()), a.tensors()) ==
              "cudnnBackendExecute engine 2, configuration 2, workspace 256");
        CHECK(a.error() < 4e-3);
        return plans() - before;
    };
    const auto forget = [&] {  // by so many other plans
        for (int i = 1; i <= 140; ++i) {
            a.scale = 100 + i;
            CHECK(executor_of(on, {a.call()}).status.ok());
        }
    };
    CHECK(new_plans(0.5) == 1);
    REQUIRE(store.entries.size() == 1);
    const auto [key, plan] = *store.entries.begin();
    forget();
    CHECK(new_plans(0.5) == 0);
    CHECK(new_plans(0.6) == 1);
    REQUIRE(store.entries.size() == 2);
    const std::string other =
        (store.entries.begin()->first == key ? *++store.entries.begin() : *store.entries.begin()).second;
    const std::string head = key + "\n";
    for (const std::string& broken :
         {other, plan.substr(0, plan.size() - 3), head, head + "no line", std::string("\n"), std::string()}) {
        forget();
        store.entries[key] = broken;
        CHECK(new_plans(0.5) == 1);
        CHECK(store.entries[key] != broken);
    }
    forget();
    CHECK(new_plans(0.5) == 0);
}

TEST_CASE(
    "each store keeps a plan that calls of several stores share, and a call without one keeps nothing") {
    const auto on = backend();
    MemoryStore one("one"), other("other"), full("full");
    Attention a(6, 6, heads_outside);
    a.scale = 0.7;
    const auto new_plans = [&](const KernelCall& call) {
        const int before = plans();
        CHECK(executor_of(on, {call, call}).status.ok());
        return plans() - before;
    };
    CHECK(new_plans(a.call()) == 1);
    CHECK(one.entries.empty());
    CHECK(new_plans(one.kept(a.call())) == 0);
    REQUIRE(one.entries.size() == 1);
    CHECK(new_plans(other.kept(a.call())) == 0);
    CHECK(other.entries == one.entries);
    full.entries = {{one.entries.begin()->first, one.entries.begin()->first + "\nwhat it has"}};
    const auto before = full.entries;
    CHECK(new_plans(full.kept(a.call())) == 0);
    CHECK(full.entries == before);
    one.entries.clear();  // a store is asked once for a plan that lives
    CHECK(new_plans(one.kept(a.call())) == 0);
    CHECK(one.entries.empty());
    for (int i = 1; i <= 140; ++i) {  // more plans than are kept
        a.scale = 500 + i;
        CHECK(executor_of(on, {a.call()}).status.ok());
    }
    a.scale = 0.7;
    CHECK(new_plans(one.kept(a.call())) == 1);
    CHECK(one.entries.size() == 1);
    CHECK(new_plans(other.kept(a.call())) == 0);
}

TEST_CASE("threads build the plans of one executor, each plan once") {
    const auto on = backend();
    Attention a(6, 6, heads_outside);
    std::vector<KernelCall> calls;
    for (int i = 0; i < 60; ++i) {
        a.scale = 300 + i % 20;
        calls.push_back(a.call());
    }
    const int before = plans();
    CHECK(executor_of(on, calls).status.ok());
    CHECK(plans() == before + 20);
    calls[7].options["engine"] = int64_t{7};
    calls[50].options["in"] = std::string("int8");
    const auto refused = executor_of(on, calls).status.refusals;
    REQUIRE(refused.size() == 2);  // in the order of the calls
    CHECK(refused[0].reason.find("offers no engine 7") != std::string::npos);
    CHECK(refused[1].reason.find("no cuDNN type for int8") != std::string::npos);
}

TEST_CASE("an engine can be pinned, and refusals have reasons") {
    const auto on = backend();
    Attention a(6, 6, heads_outside);
    KernelCall call = a.call();
    const auto message_of = [&](const KernelCall& of) { return executor_of(on, {of}).status.message; };
    const std::string contradiction = "kernel test/attention: the call contradicts its buffers: ";
    call.options["engine"] = int64_t{1};
    CHECK(run(call, a.tensors()) == "cudnnBackendExecute engine 1, configuration 3, workspace 0");
    call.options["engine"] = int64_t{7};
    CHECK(message_of(call) ==
          "test/attention: cuDNN offers no engine 7 for this attention. Available: 1, 2, 5, 9");
    call = a.call();
    call.options["choice"] = int64_t{2};  // of those that are precise, in the order of the heuristics
    CHECK(run(call, a.tensors()) == "cudnnBackendExecute engine 1, configuration 3, workspace 0");
    call.options["choice"] = int64_t{0};
    CHECK(message_of(call) ==
          "test/attention: cuDNN has no plan at choice 0 of 6 for this attention: engine 5 is not "
          "deterministic; engine 9 has no plan;");
    call.options["choice"] = int64_t{6};
    CHECK(message_of(call).find("cuDNN has no plan at choice 6 of 6") != std::string::npos);
    call.options["engine"] = int64_t{2};
    call.options["choice"] = int64_t{1};
    CHECK(run(call, a.tensors()) ==
          "cudnnBackendExecute engine 2, configuration 2 of the fallbacks, workspace 256");
    call = a.call();
    call.options["v_shape"] = Dims{2, 2, 5, 8};
    CHECK(message_of(call) == contradiction + "the shapes of q, k, v and y do not match");
    call = a.call();
    call.options["q_strides"] = Dims{1, 2};
    CHECK(message_of(call) ==
          contradiction +
              "q (argument 0) has shape [2, 4, 6, 16] and strides [1, 2], which no library supports");
    call = a.call();
    call.args[2].offset = 8;
    CHECK(message_of(call) ==
          "test/attention: cuDNN refuses the attention: an operand is not aligned to 16 bytes");
    call = a.call();
    call.args.pop_back();
    CHECK(message_of(call) ==
          contradiction +
              "its options require 4 arguments, the last one its output; it has 3, of which 3 are inputs");
    call.symbol = "norm";
    CHECK(message_of(call) == "test/attention: cuDNN computes no norm here");
    call = a.call();
    call.options["in"] = std::string("int8");
    CHECK(message_of(call) == "test/attention: no cuDNN type for int8");
}

TEST_CASE("addresses with less alignment than the plan's are refused") {
    const auto on = backend();
    Attention a(6, 6, heads_outside);
    const auto result = executor_of(on, {a.call()});
    const auto block = on->block(1 << 16, {}).value;
    const auto at = [&](uint64_t offset) { return reinterpret_cast<Memory>(block->address() + offset); };
    const Memory inputs[] = {at(0), at(8192 + 8), at(16384)}, out = at(32768);
    Executor::Run request;
    const WeightBindings weights({}, false);
    request.weights = &weights, request.inputs = inputs, request.outputs = &out;
    const Status status = result.value->run(request);
    CHECK(status.message.find("cuDNN's plan needs addresses that are multiples of 16") != std::string::npos);
}

TEST_CASE("no option leads outside of a buffer, and no two calls share a key") {
    BfloatTensor x({2, 3, 6, 5}, channels_last, 1), w({4, 3, 3, 3}, channels_last, 2),
        bias({1, 1, 1, 4}, heads_outside, 3), residual({2, 4, 3, 5}, channels_last, 4),
        y({2, 4, 3, 5}, channels_last, 5);
    KernelCall good = cudnn_call("conv", {"x", "w", nullptr, "r", "y"}, {&x, &w, &bias, &residual, &y});
    good.options["bias"] = good.options["residual"] = true;
    good.options["stride"] = Dims{2, 1};
    good.options["dilation"] = good.options["begin"] = good.options["end"] = Dims{1, 1};
    const auto on = backend();
    const auto message_of = [&](const KernelCall& of) { return executor_of(on, {of}).status.message; };
    CHECK(message_of(good).empty());
    const int before = plans();
    const auto refuses = [&](const char* name, const Option& value, const char* why) {
        KernelCall forged = good;
        forged.options[name] = value;
        CAPTURE(name);
        CHECK(message_of(forged).find(why) != std::string::npos);
    };
    refuses("x_strides", Dims{1000, 1, 15, 3}, "x (argument 0) reaches over");
    refuses("x_strides", Dims{-90, 1, 15, 3}, "which no library supports");
    refuses("x_strides", Dims{int64_t{1} << 62, int64_t{1} << 62, 15, 3}, "which no library supports");
    refuses("w_strides", Dims{27, 1, 9, 400}, "weight (argument 1) reaches over");
    refuses("r_strides", Dims{60, 1, 20, 5}, "residual (argument 3) reaches over");
    refuses("y_strides", Dims{60, 1, 20, 5}, "y (argument 4) reaches over");
    refuses("y_shape", Dims{2, 4, 3, 500}, "do not make y");
    refuses("w_shape", Dims{4, 0, 3, 3}, "do not make y");
    refuses("stride", Dims{0, 1}, "is out of range");
    refuses("begin", Dims{-1, 1}, "is out of range");
    refuses("dilation", Dims{1}, "do not fit x");
    refuses("in", std::string("float32"), "its buffer holds bfloat16");
    refuses("bias", false, "its options require 4 arguments");
    for (const size_t argument : {0U, 1U, 2U, 3U, 4U}) {  // a buffer of one element
        KernelCall forged = good;
        forged.specs[argument] = {"bfloat16", {1}, {1}};
        CHECK(message_of(forged).find("reaches over") != std::string::npos);
    }
    KernelCall forged = good;
    forged.specs[2] = {"bfloat16", {-4}, {1}};
    CHECK(message_of(forged).find("bias (argument 2) reaches over") != std::string::npos);
    forged = good;
    forged.specs.clear();
    CHECK(message_of(forged).find("its options require 5 arguments") != std::string::npos);
    CHECK(plans() == before);  // the library was not called

    KernelCall one = good, other = good;
    one.options["a"] = std::string("");
    one.options["b"] = std::string("1");
    other.options["a"] = std::string(";b 1");
    const auto lives = executor_of(on, {one});
    const int result = plans();
    CHECK(message_of(other).empty());
    CHECK(plans() == result + 1);
}
