// base/status.cpp: names of the status codes.
#include "xpurt/status.h"

namespace xpurt {

const char* code_name(Code code) noexcept {
    switch (code) {
        case Code::ok:
            return "ok";
        case Code::not_loaded:
            return "not_loaded";
        case Code::not_found:
            return "not_found";
        case Code::unreadable:
            return "unreadable";
        case Code::symbol_missing:
            return "symbol_missing";
        case Code::no_device:
            return "no_device";
        case Code::call_failed:
            return "call_failed";
        case Code::unsupported:
            return "unsupported";
        case Code::invalid:
            return "invalid";
        case Code::overlapping:
            return "overlapping";
        case Code::no_memory:
            return "no_memory";
        case Code::cancelled:
            return "cancelled";
    }
    return "unknown";
}

const char* version() noexcept { return XPURT_VERSION; }

}  // namespace xpurt
