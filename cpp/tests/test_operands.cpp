// The checks of a library call against its buffers (runtime/operands.h): extents, convolution windows, and
// matrix products. The tests replace cuBLAS and cuBLASLt by a library that counts the products it is called
// for and computes nothing.
#include <limits>

#include "runtime/operands.h"
#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

namespace {

constexpr const char* counting_cublas = PROBES "/libprobe_counting_cublas.so";
constexpr int64_t huge = std::numeric_limits<int64_t>::max();

int product_calls() {
    return reinterpret_cast<int (*)()>(dlsym(dlopen(counting_cublas, RTLD_NOW), "counted_products"))();
}

// y[5, 3] = a[5, 4] b[4, 3] in float32. An argument is a buffer and an offset in it.
KernelCall product(const char* library, const char* symbol) {
    KernelCall call;
    call.kernel = "test/product";
    call.library = library;
    call.symbol = symbol;
    call.options = {{"m", int64_t{5}},      {"n", int64_t{3}},      {"k", int64_t{4}},
                    {"a_line", int64_t{4}}, {"b_line", int64_t{3}}, {"y_line", int64_t{3}}};
    call.specs = {{"float32", {5, 4}, {4, 1}}, {"float32", {4, 3}, {3, 1}}, {"float32", {5, 3}, {3, 1}}};
    call.args = {{1, 0}, {2, 0}, {3, 0}};
    call.inputs = 2;
    return call;
}

// The error of loading a plan of one call, empty if it loads. Loading checks every call.
std::string error_of(const KernelCall& call) {
    for (Library* library : {&cublas_library(), &cublaslt_library()})
        if (!library->loaded()) REQUIRE(library->open({counting_cublas, {}}).ok());
    Plan plan;
    plan.name = "one";
    plan.arena_bytes = 256;
    plan.inputs = call.inputs;
    plan.outputs = 1;
    plan.io_bytes.assign(static_cast<size_t>(plan.inputs) + 1, 0);
    plan.calls = {call};
    return Executor::create(backend(), std::move(plan), 1).status.message;
}

}  // namespace

TEST_CASE("an extent is computed without overflow") {
    CHECK(extent_of({}, {}) == 1);
    CHECK(extent_of({2, 3}, {3, 1}) == 6);
    CHECK(extent_of({2, 3}, {0, 7}) == 15);
    CHECK(extent_of({1, 1}, {huge, huge}) == 1);
    CHECK(extent_of({2, 3}, {3}) == -1);
    CHECK(extent_of({0, 3}, {3, 1}) == -1);
    CHECK(extent_of({2, 3}, {-3, 1}) == -1);
    CHECK(extent_of({huge, huge}, {1, 1}) == -1);
    CHECK(extent_of({huge}, {huge}) == -1);
    CHECK(extent_of({2, 2}, {huge / 2, huge / 2}) == -1);
}

TEST_CASE("a convolution's window must give the output's spatial dims") {
    const KernelCall call = product("any", "conv");
    // Stride 2, dilation 1, one element of padding on both sides: 9 inputs and a filter of 3 give 5 outputs.
    const Window step2{{2}, {1}, {1}, {1}};
    const auto accepts = [&](const Dims& x, const Dims& w, const Dims& y, const Window& window,
                             int64_t groups) {
        return check_convolution(call, x, w, y, window, groups).ok();
    };
    CHECK(accepts({1, 4, 9}, {6, 4, 3}, {1, 6, 5}, step2, 1));
    CHECK(accepts({1, 4, 9}, {6, 2, 3}, {1, 6, 5}, step2, 2));
    CHECK_FALSE(accepts({1, 4, 9}, {6, 4, 3}, {1, 6, 5}, step2, 0));
    CHECK_FALSE(accepts({1, 4, 9}, {6, 4, 3}, {1, 6, 5}, step2, -1));
    CHECK_FALSE(accepts({1, 4, 9}, {6, 1, 3}, {1, 6, 5}, step2, 4));  // 6 filters in 4 groups
    CHECK_FALSE(accepts({1, 4, 9}, {6, 4, 3}, {1, 6, 6}, step2, 1));
    CHECK_FALSE(accepts({1, 4, 9}, {6, 4, 30}, {1, 6, 1}, step2, 1));
    CHECK_FALSE(accepts({1, 4, 9}, {6, 4, 3}, {2, 6, 5}, step2, 1));
    CHECK_FALSE(accepts({1, 4}, {6, 4}, {1, 6}, {{}, {}, {}, {}}, 1));
    CHECK_FALSE(accepts({1, 4, huge}, {6, 4, huge}, {1, 6, 5}, {{huge}, {huge}, {huge}, {huge}}, 1));
    CHECK_FALSE(accepts({}, {}, {}, step2, 1));
}

TEST_CASE("cuBLAS and cuBLASLt are called only for products inside the call's buffers") {
    for (const bool lt : {false, true}) {
        const KernelCall good = lt ? product("cublasLt", "matmul") : product("cublas", "gemm");
        CAPTURE(good.library);
        CHECK(error_of(good) == "");
        const int calls_before = product_calls();
        const auto rejects = [&](const char* name, const Option& value, const char* why) {
            KernelCall forged = good;
            forged.options[name] = value;
            CAPTURE(name);
            const std::string message = error_of(forged);
            CAPTURE(message);
            CHECK(message.find(why) != std::string::npos);
        };
        rejects("m", int64_t{6}, "a (argument 0) reaches over");
        rejects("k", int64_t{5}, "a (argument 0) reaches over");
        rejects("n", int64_t{4}, "b (argument 1) reaches over");
        rejects("y_line", int64_t{4}, "y (argument 2) reaches over");
        rejects("batch", int64_t{0}, "a size is not between");
        rejects("m", int64_t{1} << 32, "a size is not between");
        rejects("k", int64_t{-4}, "a size is not between");
        rejects("a_line", int64_t{1} << 33, "a line is not between");
        rejects("b_line", int64_t{-1}, "a line is not between");
        rejects("in", std::string("float64"), "its buffer holds float32");
        rejects("out", std::string("float16"), "its buffer holds float32");
        KernelCall forged = good;
        forged.options["batch"] = int64_t{2};
        forged.options["y_step"] = int64_t{15};
        CHECK(error_of(forged).find("y (argument 2) reaches over 30 elements") != std::string::npos);
        forged.options["y_step"] = huge;
        CHECK(error_of(forged).find("which no library supports") != std::string::npos);
        forged = good;
        forged.specs.clear();
        CHECK(error_of(forged).find("its options require 3 arguments") != std::string::npos);
        forged = good;
        forged.symbol = "softmax";
        CHECK(error_of(forged) != "");
        for (const size_t argument : {0U, 1U, 2U}) {
            forged = good;
            forged.specs[argument] = {"float32", {}, {}};
            CHECK(error_of(forged).find("reaches over") != std::string::npos);
        }
        CHECK(product_calls() == calls_before);
        forged = good;  // a uint8 buffer is raw bytes, here of 15 float32
        forged.specs[2] = {"uint8", {60}, {1}};
        CHECK(error_of(forged) == "");
        forged.specs[2] = {"uint8", {59}, {1}};
        CHECK(error_of(forged).find("reaches over") != std::string::npos);
    }
    // A bias or a residual is the argument before y, here with 2 elements.
    KernelCall call = product("cublasLt", "matmul");
    call.args.push_back({4, 0});
    call.specs.insert(call.specs.begin() + 2, {"float32", {2}, {1}});
    call.inputs = 3;
    call.options["bias"] = true;
    CHECK(error_of(call).find("bias (argument 2) reaches over 3 elements") != std::string::npos);
    call.options.erase("bias");
    call.options["residual"] = true;
    call.options["r_line"] = int64_t{3};
    CHECK(error_of(call).find("residual (argument 2) reaches over 15 elements") != std::string::npos);
    call.specs[2] = call.specs[3];
    CHECK(error_of(call) == "");
    call.options["workspace_bytes"] = int64_t{-1};
    CHECK(error_of(call).find("its workspace of -1 bytes") != std::string::npos);
}
