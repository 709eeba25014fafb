// bindings/python_backend.h: a backend whose driver is a Python object.
#pragma once

#include <memory>

#include "bindings.h"
#include "xpurt/backend.h"

namespace xpurt::bindings {

// `driver` has allocate(bytes), copy(to, to_offset, from, from_offset, bytes), prepare(position),
// record(calls), submit(recorded, memory) and synchronize(). It is called once per submission, never once per
// kernel.
std::shared_ptr<Backend> python_backend(nanobind::object driver);

// Raise the last exception of the driver on this thread, if there is one.
void raise_pending();

}  // namespace xpurt::bindings
