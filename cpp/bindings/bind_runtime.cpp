// bindings/bind_runtime.cpp: modules, backends, plans and the executor.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>

#include "bindings.h"
#include "python_backend.h"
#include "runtime_objects.h"
#include "xpurt/executor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

bool trust_arrays(nb::handle type, nb::handle probe, uintptr_t address, nb::handle descr, int64_t first_dim) {
    const auto* const fields = reinterpret_cast<const ArrayFields*>(probe.ptr());
    const bool right =
        reinterpret_cast<PyObject*>(Py_TYPE(probe.ptr())) == type.ptr() &&
        reinterpret_cast<uintptr_t>(fields->data) == address && fields->nd == 2 &&
        fields->dims[0] == first_dim && fields->descr == descr.ptr() &&
        (fields->flags & (c_contiguous | aligned | writeable)) == (c_contiguous | aligned | writeable);
    array_type = right ? reinterpret_cast<PyTypeObject*>(type.ptr()) : nullptr;
    return right;
}

using PyPlace = std::tuple<int32_t, int64_t>;
using PySpec = std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>>;

void add_call(Plan& plan, std::string kernel, std::string symbol, const std::vector<PyPlace>& args,
              int32_t inputs, const nb::list& params, int64_t tasks, int64_t grain, int64_t scratch_bytes,
              std::string library, Options options, const std::vector<PySpec>& specs, std::string nodes) {
    KernelCall call;
    call.kernel = std::move(kernel);
    call.symbol = std::move(symbol);
    call.library = std::move(library);
    call.nodes = std::move(nodes);
    call.options = std::move(options);
    for (const auto& [slot, offset] : args) call.args.push_back({slot, offset});
    for (const auto& [dtype, shape, strides] : specs) call.specs.push_back({dtype, shape, strides});
    call.inputs = inputs;
    for (const nb::handle param : params) {
        uint64_t bits = 0;
        if (nb::isinstance<nb::float_>(param)) {
            const double value = nb::cast<double>(param);
            std::memcpy(&bits, &value, sizeof bits);
        } else {
            bits = static_cast<uint64_t>(nb::cast<int64_t>(param));
        }
        call.params.push_back(bits);
    }
    call.position = static_cast<int32_t>(plan.calls.size());
    call.tasks = tasks;
    call.grain = grain;
    call.scratch_bytes = scratch_bytes;
    plan.calls.push_back(std::move(call));
}

// An array for the nanoseconds of each call.
using Times = std::optional<nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

nb::object finish(const Status& status) {
    if (status.ok()) return nb::none();
    raise_pending();
    return nb::cast(status);
}

Status run(PyExecutor& self, const PyWeightBindings& weights, const Memory* memory, const Times& times,
           EventRing* ring, const StopFlag* stop, bool host, const StreamOrder& order,
           Observation* observation = nullptr) {
    if (times && times->size() < self.core->plan().calls.size())
        throw nb::value_error("times: the array is shorter than the number of calls");
    Executor::Run run;
    run.weights = &weights.core;
    run.inputs = memory;
    run.outputs = memory + self.core->plan().inputs;
    run.times = times ? times->data() : nullptr;
    run.ring = ring;
    run.stop = stop == nullptr ? nullptr : &stop->set;
    run.host = host;
    run.order = order;
    run.observation = observation;
    const nb::gil_scoped_release no_gil;
    return self.core->run(run);
}

// The addresses of one run's inputs and outputs. Thread-local: it allocates only in the first run on a
// thread, and the executor copies it before other code can run on this thread.
std::vector<Memory>& io_memory(size_t count) {
    thread_local std::vector<Memory> memory;
    memory.resize(count);
    return memory;
}

// Return None after a successful run, the index of the first array that cannot be used in place, or a Status.
nb::object run_arrays(PyExecutor& self, const PyWeightBindings& weights, nb::tuple inputs, nb::tuple outputs,
                      const Times& times, EventRing* ring, const StopFlag* stop, Observation* observation) {
    const size_t in = inputs.size(), out = outputs.size();
    if (in != static_cast<size_t>(self.core->plan().inputs) ||
        out != static_cast<size_t>(self.core->plan().outputs))
        throw nb::value_error("run_arrays: the number of arrays is not the plan's");
    std::vector<Memory>& memory = io_memory(in + out);
    for (size_t i = 0; i < in + out; ++i) {
        const nb::handle array = i < in ? inputs[i] : outputs[i - in];
        memory[i] = self.io_specs[i].memory_if_matching(array.ptr());
        if (memory[i] == nullptr) return nb::int_(i);
    }
    return finish(run(self, weights, memory.data(), times, ring, stop, self.copies_io, {}, observation));
}

// The same with addresses, or with the handles of a Python driver. The caller keeps the memory alive.
nb::object run_memory(PyExecutor& self, const PyWeightBindings& weights, const std::vector<uintptr_t>& inputs,
                      const std::vector<uintptr_t>& outputs, const Times& times, EventRing* ring,
                      const StopFlag* stop, std::optional<uintptr_t> stream) {
    if (inputs.size() != static_cast<size_t>(self.core->plan().inputs) ||
        outputs.size() != static_cast<size_t>(self.core->plan().outputs))
        throw nb::value_error("run_memory: the number of buffers is not the plan's");
    std::vector<Memory> memory;
    for (const auto* const list : {&inputs, &outputs})
        for (const uintptr_t address : *list) memory.push_back(reinterpret_cast<Memory>(address));
    const StreamOrder order = stream ? StreamOrder{true, reinterpret_cast<void*>(*stream)} : StreamOrder{};
    return finish(run(self, weights, memory.data(), times, ring, stop, false, order));
}

// Functions of Python as a plan store. They are called in any thread; what they raise is reported, and counts
// as an absent plan.
std::shared_ptr<PlanStore> plan_store_of(std::string name, nb::callable get, nb::callable put) {
    struct Functions {
        nb::callable get, put;
    };
    auto* const functions =
        new Functions{std::move(get), std::move(put)};  // never freed: any thread may call it
    auto store = std::make_shared<PlanStore>();
    store->name = std::move(name);
    store->get = [functions](const std::string& key) -> std::string {
        const nb::gil_scoped_acquire gil;
        try {
            const auto plan = nb::cast<nb::bytes>(functions->get(key));
            return {plan.c_str(), plan.size()};
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("a plan of a vendor's library in the store");
        } catch (const nb::cast_error&) {
            PyErr_WarnEx(PyExc_RuntimeWarning, "the plan store returned something else than bytes", 1);
            PyErr_Clear();
        }
        return "";
    };
    store->put = [functions](const std::string& key, const std::string& plan) {
        const nb::gil_scoped_acquire gil;
        try {
            functions->put(key, nb::bytes(plan.data(), plan.size()));
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("a plan of a vendor's library for the store");
        }
    };
    return store;
}

nb::object make_executor(std::shared_ptr<Backend> backend, const Plan& plan,
                         const std::vector<std::tuple<nb::object, std::vector<Py_ssize_t>>>& io_specs,
                         int contexts, std::shared_ptr<ArenaPool> arenas) {
    const bool copies_io = backend->is_asynchronous();
    auto result = [&] {
        const nb::gil_scoped_release no_gil;
        return Executor::create(std::move(backend), plan, contexts, std::move(arenas));
    }();
    if (!result.status.ok()) return finish(result.status);
    PyExecutor executor{std::move(result.value), {}, copies_io};
    const size_t inputs = static_cast<size_t>(plan.inputs);
    for (const auto& [dtype, shape] : io_specs)
        executor.io_specs.push_back(
            {dtype, shape, c_contiguous | aligned | (executor.io_specs.size() < inputs ? 0 : writeable)});
    if (executor.io_specs.size() != inputs + static_cast<size_t>(plan.outputs))
        throw nb::value_error("make_executor: io_specs needs one entry for each input and output");
    return nb::cast(std::move(executor));
}

}  // namespace

void bind_runtime(nb::module_& m) {
    nb::enum_<MapBy>(m, "MapBy", "The kind of file that object code is mapped from.")
        .value("ANY", MapBy::any)
        .value("MEMFD", MapBy::memfd)
        .value("FILE", MapBy::file);
    nb::class_<Module>(m, "Module", nb::is_weak_referenceable(), "Object code, mapped into this process.")
        .def_prop_ro("mapped_by", &Module::mapped_by)
        .def(
            "has",
            [](const Module& self, const std::string& name) { return self.symbol(name.c_str()) != nullptr; },
            "symbol"_a)
        .def(
            "text",
            [](const Module& self) {
                const std::string text = self.text();
                return nb::bytes(text.data(), text.size());
            },
            nb::sig("def text(self) -> bytes"), "Return the executable segments as they are in memory now.");
    m.def(
        "load_module",
        [](const nb::bytes& code, MapBy how) -> nb::object {
            auto loaded = [&] {
                const nb::gil_scoped_release no_gil;
                return load_module(code.data(), code.size(), how);
            }();
            if (!loaded.status.ok()) return nb::cast(loaded.status);
            return nb::cast(std::const_pointer_cast<Module>(loaded.value));
        },
        "code"_a, "how"_a = MapBy::any,
        nb::sig("def load_module(code: bytes, how: MapBy = ...) -> Module | Status"),
        "Map an ELF shared object. The caller must have checked its digest.");
    m.def("missing_requirements", &missing_requirements, "required"_a, NoGil(),
          "Return those of the instruction sets and libraries that this machine lacks.");

    nb::class_<Backend>(m, "Backend", "A device driver.")
        .def_prop_ro("name", &Backend::name)
        .def_prop_ro("threads", &Backend::threads);
    nb::class_<NullBackend::Dispatch>(m, "Dispatch", "A kernel call that the null backend recorded.")
        .def_ro("kernel", &NullBackend::Dispatch::kernel)
        .def_ro("symbol", &NullBackend::Dispatch::symbol)
        .def_ro("tasks", &NullBackend::Dispatch::tasks)
        .def_ro("args", &NullBackend::Dispatch::args)
        .def_ro("params", &NullBackend::Dispatch::params);
    nb::class_<NullBackend, Backend>(m, "NullBackend",
                                     "A backend that computes nothing and records every dispatch.")
        .def("dispatches", &NullBackend::dispatches)
        .def("forget", &NullBackend::forget);
    m.def("cpu_backend", &cpu_backend, "threads"_a, NoGil(), "Return the CPU backend on that many threads.");
    m.def("null_backend", &null_backend);
    m.def("python_backend", &python_backend, "driver"_a, "Return a backend whose driver is a Python object.",
          nb::sig("def python_backend(driver: object) -> Backend"));

    nb::class_<PlanStore>(m, "PlanStore", "Where compiled plans of vendors' libraries are kept.")
        .def_ro("name", &PlanStore::name);
    m.def("plan_store", &plan_store_of, "name"_a, "get"_a, "put"_a,
          nb::sig("def plan_store(name: str, get: collections.abc.Callable[[str], bytes], "
                  "put: collections.abc.Callable[[str, bytes], None]) -> PlanStore"),
          "Keep plans by functions. ``get`` returns no bytes for an absent plan. Stores of one name have the "
          "same entries.");
    nb::class_<Plan>(m, "Plan", "Calls over slots of memory: arena, inputs, outputs, weights and states.")
        .def(
            "__init__",
            [](Plan* self, std::string name, int64_t arena_bytes, int32_t inputs, int32_t outputs,
               int32_t weights, int32_t batch, std::shared_ptr<Module> module,
               std::vector<int64_t> io_bytes) {
                new (self) Plan();
                self->name = std::move(name);
                self->arena_bytes = arena_bytes;
                self->inputs = inputs;
                self->outputs = outputs;
                self->weights = weights;
                self->batch = batch;
                self->module = std::move(module);
                self->io_bytes = std::move(io_bytes);
            },
            "name"_a, "arena_bytes"_a, "inputs"_a, "outputs"_a, "weights"_a, "batch"_a, "module"_a.none(),
            "io_bytes"_a = std::vector<int64_t>())
        .def("add_call", &add_call, "kernel"_a, "symbol"_a, "args"_a, "inputs"_a, "params"_a, "tasks"_a,
             "grain"_a, "scratch_bytes"_a, "library"_a = "", "options"_a = Options{},
             "specs"_a = std::vector<PySpec>{}, "nodes"_a = "",
             nb::sig(
                 "def add_call(self, kernel: str, symbol: str, args: Sequence[tuple[int, int]], inputs: int, "
                 "params: list[int | float], tasks: int, grain: int, scratch_bytes: int, library: str = '', "
                 "options: dict[str, object] = {}, "
                 "specs: Sequence[tuple[str, Sequence[int], Sequence[int]]] = [], nodes: str = '') -> None"))
        .def(
            "set_own_module",
            [](Plan& self, std::shared_ptr<Module> module) {
                self.calls.back().own_module = std::move(module);
            },
            "module"_a.none(), "Set the module of the last call, if it is not the plan's.")
        .def(
            "keep_plans_in",
            [](Plan& self, const std::shared_ptr<PlanStore>& store) {
                for (KernelCall& call : self.calls) call.plan_store = store;
            },
            "store"_a, "Set where libraries keep the plans that they compile for the calls so far.")
        .def(
            "add_arena_part",
            [](Plan& self, int64_t offset, int64_t bytes, int64_t first, int64_t last) {
                self.arena_parts.push_back({offset, bytes, first, last});
            },
            "offset"_a, "bytes"_a, "first"_a, "last"_a,
            "Add a part of the arena that calls from the first to the last use.")
        .def(
            "add_output_copy",
            [](Plan& self, const PyPlace& from, int32_t output, int64_t bytes) {
                self.output_copies.push_back({{std::get<0>(from), std::get<1>(from)}, output, bytes});
            },
            "from_"_a, "output"_a, "bytes"_a);

    nb::class_<PyWeightBindings>(m, "WeightBindings", "The addresses of a plan's weights and states.")
        .def(
            "__init__",
            [](PyWeightBindings* self, const std::vector<uintptr_t>& memory, bool exclusive,
               nb::object owner) {
                std::vector<Memory> handles;
                for (const uintptr_t address : memory) handles.push_back(reinterpret_cast<Memory>(address));
                new (self) PyWeightBindings{WeightBindings(std::move(handles), exclusive), std::move(owner)};
            },
            "memory"_a, "exclusive"_a, "owner"_a,
            nb::sig("def __init__(self, memory: Sequence[int], exclusive: bool, owner: object) -> None"))
        .def(
            "share_state_lock",
            [](PyWeightBindings& self, const PyWeightBindings& other) {
                self.core.share_state_lock(other.core);
            },
            "other"_a);

    nb::class_<Counters>(m, "Counters", "Counts of an executor.")
        .def_ro("runs", &Counters::runs)
        .def_ro("dispatches", &Counters::dispatches)
        .def_ro("prepared", &Counters::prepared)
        .def_ro("allocations", &Counters::allocations)
        .def_ro("copies", &Counters::copies)
        .def_ro("contexts", &Counters::contexts)
        .def_ro("sent", &Counters::sent)
        .def_ro("fetched", &Counters::fetched);
    nb::class_<StopFlag>(m, "Stop", "A flag that stops the runs it is passed to after their current kernel.")
        .def(nb::init<>())
        .def("set", [](StopFlag& self) { self.set.store(true); })
        .def("clear", [](StopFlag& self) { self.set.store(false); });
    nb::class_<PyExecutor>(m, "Executor", "A plan that is ready to run.")
        .def("run_arrays", &run_arrays, "weights"_a, "inputs"_a, "outputs"_a, "times"_a = nb::none(),
             "ring"_a = nb::none(), "stop"_a = nb::none(), "observation"_a = nb::none(),
             nb::sig("def run_arrays(self, weights: WeightBindings, inputs: tuple[object, ...], "
                     "outputs: tuple[object, ...], times: NDArray[numpy.int64] | None = None, ring: "
                     "EventRing | None = None, stop: Stop | None = None, observation: Observation | None = "
                     "None) -> int | Status | None"))
        .def("run_memory", &run_memory, "weights"_a, "inputs"_a, "outputs"_a, "times"_a = nb::none(),
             "ring"_a = nb::none(), "stop"_a = nb::none(), "stream"_a = nb::none(),
             nb::sig("def run_memory(self, weights: WeightBindings, inputs: Sequence[int], outputs: "
                     "Sequence[int], "
                     "times: NDArray[numpy.int64] | None = None, ring: EventRing | None = None, "
                     "stop: Stop | None = None, stream: int | None = None) -> Status | None"))
        .def("cancel", [](PyExecutor& self) { self.core->cancel(); })
        .def(
            "close", [](PyExecutor& self) { self.core->close(); }, NoGil())
        .def_prop_ro("implementations", [](const PyExecutor& self) { return self.core->implementations(); })
        .def_prop_ro(
            "called_code",
            [](const PyExecutor& self) {
                nb::list calls;
                for (const CalledCode& call : self.core->called_code())
                    calls.append(nb::make_tuple(call.symbol, nb::bytes(call.code.data(), call.code.size())));
                return calls;
            },
            nb::sig("def called_code(self) -> list[tuple[str, bytes]]"),
            "For each call, the name and the machine code of the function that a run calls.")
        .def(
            "run_bytes", [](const PyExecutor& self, bool host) { return self.core->run_bytes(host); },
            "host"_a, "Return the bytes that a run takes from a pool; host: with copies of host arrays.")
        .def_prop_ro("counters", [](const PyExecutor& self) { return self.core->counters(); });
    nb::class_<ArenaPool>(m, "ArenaPool", "Memory of runs that several executors of one device share.")
        .def(nb::init<std::shared_ptr<Backend>>(), "backend"_a)
        .def("set_limit", &ArenaPool::set_limit, "bytes"_a, "Limit the bytes of all arenas; 0 = no limit.")
        .def("trim", &ArenaPool::trim, NoGil(), "Free idle arenas; return the number of bytes.")
        .def_prop_ro("held_bytes", [](const ArenaPool& self) { return self.statistics().held_bytes; })
        .def_prop_ro("peak_bytes", [](const ArenaPool& self) { return self.statistics().peak_bytes; })
        .def_prop_ro("arenas", [](const ArenaPool& self) { return self.statistics().arenas; });
    m.def("make_executor", &make_executor, "backend"_a, "plan"_a, "io_specs"_a, "contexts"_a,
          "arenas"_a = nb::none(),
          nb::sig("def make_executor(backend: Backend, plan: Plan, io_specs: Sequence[tuple[object, "
                  "Sequence[int]]], "
                  "contexts: int, arenas: ArenaPool | None = None) -> Executor | Status"));
    m.def("trust_arrays", &trust_arrays, "type"_a, "probe"_a, "address"_a, "dtype"_a, "first_dim"_a,
          nb::sig("def trust_arrays(type: object, probe: object, address: int, dtype: object, first_dim: "
                  "int) -> bool"),
          "Check the layout of NumPy arrays on one of them; return True if they can be read in place.");
}

}  // namespace xpurt::bindings
