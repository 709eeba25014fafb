// base/log.cpp: the log of failures that have no caller.
#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace xpurt {
namespace {

void write_to_stderr(const std::string& line) { std::fprintf(stderr, "xpuruntime: %s\n", line.c_str()); }

struct FailureLog {
    std::mutex mutex;
    LogSink sink = write_to_stderr;
    std::set<std::string> messages;  // already logged
};

FailureLog& failure_log() {
    static auto* const instance = new FailureLog;  // never freed: destructors of static objects may log
    return *instance;
}

}  // namespace

LogSink set_log_sink(LogSink sink) noexcept {
    FailureLog& log = failure_log();
    const std::lock_guard<std::mutex> lock(log.mutex);
    return std::exchange(log.sink, sink != nullptr ? sink : write_to_stderr);
}

void log_failure(const Status& status) noexcept try {
    constexpr size_t max_messages = 100;
    if (status.ok()) return;
    FailureLog& log = failure_log();
    const std::lock_guard<std::mutex> lock(log.mutex);
    if (log.messages.size() < max_messages && log.messages.insert(status.message).second)
        log.sink(status.message);
} catch (...) {
    // Out of memory: the failure cannot be reported.
}

}  // namespace xpurt
