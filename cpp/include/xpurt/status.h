// xpurt/status.h: error codes, Status, Result<T>, and the macros that propagate them. The core throws no
// exceptions of its own. Status and Result are [[nodiscard]]: code that drops one does not compile.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace xpurt {

enum class Code {
    ok,
    not_loaded,      // the library has not been requested yet
    not_found,       // none of the library's file names exists
    unreadable,      // a file exists, but the loader rejected it
    symbol_missing,  // the library loaded, but lacks a required function
    no_device,       // the driver works, but reports no device
    call_failed,     // the driver or a kernel library returned an error
    unsupported,     // this machine lacks a feature that a binary requires
    invalid,         // the program contradicts itself or is not a program
    overlapping,     // an output shares memory with an input or with another output
    no_memory,       // an allocation failed
    cancelled,       // cancel() or close() was called
};

// The name of a code in Python and JSON: "ok", "not_found", ...
const char* code_name(Code code) noexcept;

// A call of a plan that its kernel library cannot compute.
struct CallRefusal {
    int32_t call = 0;  // position in the plan
    std::string reason{}, advice{};
};

// The outcome of an operation. A default-constructed Status is success.
struct [[nodiscard]] Status {
    Code code = Code::ok;
    std::string message{};  // what happened, with the names involved
    std::string advice{};   // what the user can do about it
    // Every call that a library refused, when that is why a plan cannot be prepared. `message` is the reason
    // of the first one.
    std::vector<CallRefusal> refusals{};

    bool ok() const noexcept { return code == Code::ok; }
};

// A value, or the reason why there is none. `value` is empty unless `status.ok()`.
template <class T>
struct [[nodiscard]] Result {
    Status status;
    T value{};

    Result(Status error) : status(std::move(error)) {}
    Result(T result) : value(std::move(result)) {}
};

// The result code of a function of a C library; each library's headers name its values. The type is
// [[nodiscard]], so that a call whose result is dropped does not compile.
enum [[nodiscard]] ResultCode : int {};

// Evaluate an expression of type Status; return it from the enclosing function unless it is ok.
#define XPURT_TRY(...)                                                                             \
    do {                                                                                           \
        if (::xpurt::Status xpurt_status = (__VA_ARGS__); !xpurt_status.ok()) return xpurt_status; \
    } while (false)

// Evaluate an expression of type Result<T>; assign its value to `target` (which may declare a variable), or
// return its status from the enclosing function. Expands to several statements: needs a block of its own.
#define XPURT_ASSIGN_OR_RETURN(target, ...) \
    XPURT_ASSIGN_OR_RETURN_IMPL(XPURT_CONCAT(xpurt_result_, __LINE__), target, __VA_ARGS__)
#define XPURT_ASSIGN_OR_RETURN_IMPL(result, target, ...)      \
    auto result = (__VA_ARGS__);                              \
    if (!result.status.ok()) return std::move(result.status); \
    target = std::move(result.value)
#define XPURT_CONCAT(a, b) XPURT_CONCAT_IMPL(a, b)
#define XPURT_CONCAT_IMPL(a, b) a##b

// The version of the core; equal to the version of the Python package.
const char* version() noexcept;

}  // namespace xpurt
