// bindings/python_backend.cpp: adapter from Backend to a Python driver. Device memory is a Python object;
// Memory is its address.
#include "python_backend.h"

#include <nanobind/stl/string.h>

#include <optional>

namespace nb = nanobind;

namespace xpurt::bindings {
namespace {

thread_local std::optional<nb::python_error> pending;

// Run `call` with the GIL. A Python exception is kept for raise_pending() on this thread.
template <class Call>
Status guarded(Call call) {
    const nb::gil_scoped_acquire gil;
    try {
        call();
        return {};
    } catch (nb::python_error& error) {
        Status status{Code::call_failed, error.what(), ""};
        pending.emplace(std::move(error));
        return status;
    } catch (const std::exception& error) {
        return {Code::call_failed, error.what(), ""};
    }
}

// A Python reference that may be released without holding the GIL.
struct GilSafeObject {
    nb::object object;
    ~GilSafeObject() {
        const nb::gil_scoped_acquire gil;
        object.reset();
    }
};
struct PyKernel final : PreparedKernel, GilSafeObject {};
struct PyRecording final : Recording, GilSafeObject {};

nb::object borrowed(Memory memory) {
    return memory == nullptr ? nb::none() : nb::borrow(static_cast<PyObject*>(memory));
}

class PythonBackend final : public Backend {
  public:
    explicit PythonBackend(nb::object driver) { driver_.object = std::move(driver); }
    const char* name() const noexcept override { return "python"; }
    bool has_addresses() const noexcept override { return false; }

    Result<Memory> allocate(size_t bytes) override {
        Memory memory = nullptr;
        Status status = guarded([&] { memory = driver_.object.attr("allocate")(bytes).release().ptr(); });
        if (!status.ok()) return status;
        return memory;
    }
    void release(Memory memory) noexcept override {
        if (memory == nullptr) return;
        const nb::gil_scoped_acquire gil;
        Py_DECREF(static_cast<PyObject*>(memory));
    }
    Status copy(Memory to, size_t to_offset, Memory from, size_t from_offset, size_t bytes,
                RunState*) override {
        return guarded([&] {
            driver_.object.attr("copy")(borrowed(to), to_offset, borrowed(from), from_offset, bytes);
        });
    }
    Result<std::unique_ptr<PreparedKernel>> prepare(const KernelCall& call,
                                                    const std::shared_ptr<const Module>&) override {
        auto kernel = std::make_unique<PyKernel>();
        Status status = guarded([&] { kernel->object = driver_.object.attr("prepare")(call.position); });
        if (!status.ok()) return status;
        return std::unique_ptr<PreparedKernel>(std::move(kernel));
    }
    Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>& calls) override {
        auto recording = std::make_unique<PyRecording>();
        Status status = guarded([&] {
            nb::list list;
            for (const RecordedCall& item : calls) {
                nb::list refs;
                for (const BufferRef& ref : item.call->args)
                    refs.append(nb::make_tuple(ref.slot, ref.offset));
                list.append(
                    nb::make_tuple(static_cast<const PyKernel&>(*item.kernel).object, nb::tuple(refs)));
            }
            recording->object = driver_.object.attr("record")(list);
        });
        if (!status.ok()) return status;
        return std::unique_ptr<Recording>(std::move(recording));
    }
    Status submit(const Recording& recording, const Submission& submission) override {
        if (submission.is_cancelled()) return {Code::cancelled, "the run was cancelled", ""};
        return guarded([&] {
            nb::list memory;
            for (size_t i = 0; i < submission.slot_count; ++i) memory.append(borrowed(submission.slots[i]));
            driver_.object.attr("submit")(static_cast<const PyRecording&>(recording).object, memory);
        });
    }
    Status synchronize(RunState*) override {
        return guarded([&] { driver_.object.attr("synchronize")(); });
    }

  private:
    GilSafeObject driver_;
};

}  // namespace

std::shared_ptr<Backend> python_backend(nb::object driver) {
    return std::make_shared<PythonBackend>(std::move(driver));
}

void raise_pending() {
    if (!pending) return;
    nb::python_error error = std::move(*pending);
    pending.reset();
    throw error;
}

}  // namespace xpurt::bindings
