// base/log.h: failures that no caller can receive, such as those in destructors.
#pragma once

#include <string>

#include "xpurt/status.h"

namespace xpurt {

// Where log lines go. Called from any thread, under the log's mutex.
using LogSink = void (*)(const std::string& line);

// Replace the sink; null restores the default, which writes to stderr. Return the previous sink.
LogSink set_log_sink(LogSink sink) noexcept;

// Log the message of a status that is not ok. Each message is logged once per process, and at most 100
// messages, so that a lost device does not flood stderr.
void log_failure(const Status& status) noexcept;

}  // namespace xpurt
