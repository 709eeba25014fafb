// bindings/python_backend.h: a backend whose driver is a Python object.
#pragma once

#include <memory>

#include "bindings.h"
#include "xpurt/backend.h"

namespace xpurt::bindings {

// `driver` has allocate(bytes), copy(to, to_offset, from, from_offset, bytes), prepare(position),
// record(calls), submit(recorded, memory) and synchronize(). It is entered once per submission, never once
// per kernel.
std::shared_ptr<Backend> python_backend(nanobind::object driver);

// Raises what the driver raised last on this thread, if it did.
void raise_pending();

}  // namespace xpurt::bindings
