// NVTX without its library: no effect, and a Status with advice. tests/profiler tests it with a real library.
#include "doctest/doctest.h"

#include "xpurt/profiler.h"

using namespace xpurt;

TEST_CASE("before open every NVTX call does nothing") {
    CHECK_FALSE(nvtx_active());
    CHECK(nvtx_push("nobody") < 0);
    CHECK(nvtx_pop() < 0);
    nvtx_mark("nobody");
    CHECK_FALSE(nvtx_library().loaded());
}

TEST_CASE("an absent library leaves NVTX disabled, with advice") {
    const Status status = nvtx_open({"/nonexistent/libnvtx.so", {}});
    CHECK(status.code == Code::not_found);
    CHECK(status.advice.find("XPU_LIBNVTX") != std::string::npos);
    CHECK_FALSE(nvtx_active());
    CHECK(nvtx_push("nobody") < 0);
}
