// NVTX: silent without a library, a Status that helps, and no crash. (A real listener: tests/profiler.)
#include "doctest/doctest.h"

#include "xpurt/profiler.h"

using namespace xpurt;

TEST_CASE("before open every call is a no-op") {
    CHECK_FALSE(nvtx_active());
    CHECK(nvtx_push("nobody") < 0);
    CHECK(nvtx_pop() < 0);
    nvtx_mark("nobody");
    CHECK_FALSE(nvtx_library().loaded());
}

TEST_CASE("an absent library leaves it switched off and says how to get one") {
    const Status status = nvtx_open({"/nonexistent/libnvtx.so", {}});
    CHECK(status.code == Code::not_found);
    CHECK(status.advice.find("XPU_LIBNVTX") != std::string::npos);
    CHECK_FALSE(nvtx_active());
    CHECK(nvtx_push("nobody") < 0);
}
