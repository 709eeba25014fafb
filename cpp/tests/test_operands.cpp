// Checks of a library's call against its buffers: extents, convolution windows, and the products of cuBLAS
// and cuBLASLt, which are replaced by libraries that count calls.
#include <limits>

#include "runtime/operands.h"
#include "simulated_cuda.h"

using namespace xpurt;
using namespace simulated;

namespace {

constexpr const char* path = PROBES "/libprobe_counting_cublas.so";
constexpr int64_t huge = std::numeric_limits<int64_t>::max();

int products() { return reinterpret_cast<int (*)()>(dlsym(dlopen(path, RTLD_NOW), "counted_products"))(); }

// y[5, 3] = a[5, 4] b[4, 3] in float32.
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

std::string message_of(const KernelCall& call) {
    for (Library* library : {&cublas_library(), &cublaslt_library()})
        if (!library->loaded()) REQUIRE(library->open({path, {}}).ok());
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
    const Window window{{2}, {1}, {1}, {1}};
    const auto good = [&](const Dims& x, const Dims& w, const Dims& y, const Window& by, int64_t groups) {
        return check_convolution(call, x, w, y, by, groups).ok();
    };
    CHECK(good({1, 4, 9}, {6, 4, 3}, {1, 6, 5}, window, 1));
    CHECK(good({1, 4, 9}, {6, 2, 3}, {1, 6, 5}, window, 2));
    CHECK_FALSE(good({1, 4, 9}, {6, 4, 3}, {1, 6, 5}, window, 0));
    CHECK_FALSE(good({1, 4, 9}, {6, 4, 3}, {1, 6, 5}, window, -1));
    CHECK_FALSE(good({1, 4, 9}, {6, 1, 3}, {1, 6, 5}, window, 4));  // 6 filters in 4 groups
    CHECK_FALSE(good({1, 4, 9}, {6, 4, 3}, {1, 6, 6}, window, 1));
    CHECK_FALSE(good({1, 4, 9}, {6, 4, 30}, {1, 6, 1}, window, 1));
    CHECK_FALSE(good({1, 4, 9}, {6, 4, 3}, {2, 6, 5}, window, 1));
    CHECK_FALSE(good({1, 4}, {6, 4}, {1, 6}, {{}, {}, {}, {}}, 1));
    CHECK_FALSE(good({1, 4, huge}, {6, 4, huge}, {1, 6, 5}, {{huge}, {huge}, {huge}, {huge}}, 1));
    CHECK_FALSE(good({}, {}, {}, window, 1));
}

TEST_CASE("cuBLAS and cuBLASLt are called only for products inside the call's buffers") {
    for (const bool lt : {false, true}) {
        const KernelCall good = lt ? product("cublasLt", "matmul") : product("cublas", "gemm");
        CAPTURE(good.library);
        CHECK(message_of(good) == "");
        const int before = products();
        const auto refuses = [&](const char* name, const Option& value, const char* why) {
            KernelCall forged = good;
            forged.options[name] = value;
            CAPTURE(name);
            const std::string message = message_of(forged);
            CAPTURE(message);
            CHECK(message.find(why) != std::string::npos);
        };
        refuses("m", int64_t{6}, "a (argument 0) reaches over");
        refuses("k", int64_t{5}, "a (argument 0) reaches over");
        refuses("n", int64_t{4}, "b (argument 1) reaches over");
        refuses("y_line", int64_t{4}, "y (argument 2) reaches over");
        refuses("batch", int64_t{0}, "a size is not between");
        refuses("m", int64_t{1} << 32, "a size is not between");
        refuses("k", int64_t{-4}, "a size is not between");
        refuses("a_line", int64_t{1} << 33, "a line is not between");
        refuses("b_line", int64_t{-1}, "a line is not between");
        refuses("in", std::string("float64"), "its buffer holds float32");
        refuses("out", std::string("float16"), "its buffer holds float32");
        KernelCall forged = good;
        forged.options["batch"] = int64_t{2};
        forged.options["y_step"] = int64_t{15};
        CHECK(message_of(forged).find("y (argument 2) reaches over 30 elements") != std::string::npos);
        forged.options["y_step"] = huge;
        CHECK(message_of(forged).find("which no library supports") != std::string::npos);
        forged = good;
        forged.specs.clear();
        CHECK(message_of(forged).find("its options require 3 arguments") != std::string::npos);
        forged = good;
        forged.symbol = "softmax";
        CHECK(message_of(forged) != "");
        for (const size_t argument : {0U, 1U, 2U}) {
            forged = good;
            forged.specs[argument] = {"float32", {}, {}};
            CHECK(message_of(forged).find("reaches over") != std::string::npos);
        }
        CHECK(products() == before);
        forged = good;  // sums in raw bytes of scratch
        forged.specs[2] = {"uint8", {60}, {1}};
        CHECK(message_of(forged) == "");
        forged.specs[2] = {"uint8", {59}, {1}};
        CHECK(message_of(forged).find("reaches over") != std::string::npos);
    }
    KernelCall call = product("cublasLt", "matmul");
    call.args.push_back({4, 0});
    call.specs.insert(call.specs.begin() + 2, {"float32", {2}, {1}});
    call.inputs = 3;
    call.options["bias"] = true;
    CHECK(message_of(call).find("bias (argument 2) reaches over 3 elements") != std::string::npos);
    call.options.erase("bias");
    call.options["residual"] = true;
    call.options["r_line"] = int64_t{3};
    CHECK(message_of(call).find("residual (argument 2) reaches over 15 elements") != std::string::npos);
    call.specs[2] = call.specs[3];
    CHECK(message_of(call) == "");
    call.options["workspace_bytes"] = int64_t{-1};
    CHECK(message_of(call).find("its workspace of -1 bytes") != std::string::npos);
}
