// xpurt/status.h: how the core says that something did not work. Nothing in the core throws on purpose.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace xpurt {

enum class Code {
    ok,
    not_loaded,      // nobody has asked for the library yet
    not_found,       // no file of any of its names
    unreadable,      // a file was there, the loader refused it
    symbol_missing,  // the library loaded, but is too old for a function that we cannot do without
    no_device,       // the driver works and has no device
    call_failed,     // the driver, or a kernel's library, returned an error
    unsupported,     // this machine lacks what a binary asks for
    invalid,         // a program that contradicts itself, or not a program at all
    overlapping,     // an output's memory is also that of an input or of another output
    no_memory,       // no memory of the size asked for
    cancelled,       // somebody called cancel() or close()
};

// The code's name as Python and JSON see it: "ok", "not_found", ...
const char* code_name(Code code) noexcept;

// A call of a plan that the library which shall compute it declines.
struct Refusal {
    int32_t call = 0;  // position in the plan
    std::string why{}, advice{};
};

struct Status {
    Code code = Code::ok;
    std::string message{};  // what happened, with the names involved
    std::string advice{};   // what the reader can do about it
    // Where that is why a plan cannot be made ready: all such calls. The message is the first one's.
    std::vector<Refusal> refusals{};

    bool ok() const noexcept { return code == Code::ok; }
};

// A value, or the reason why there is none. `value` is empty unless `status.ok()`.
template <class T>
struct Result {
    Status status;
    T value{};

    Result(Status why) : status(std::move(why)) {}
    Result(T good) : value(std::move(good)) {}
};

// The version of the core, equal to the Python package's.
const char* version() noexcept;

}  // namespace xpurt
