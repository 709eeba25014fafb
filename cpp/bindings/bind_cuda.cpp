// bindings/bind_cuda.cpp: NVRTC and CUDA devices.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings.h"
#include "xpurt/cuda.h"
#include "xpurt/nvrtc.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

using ByteArray = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstByteArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Call without the GIL; return the value, or the Status if there is none.
template <class Call>
nb::object value_or_status(Call call) {
    auto result = [&] {
        const nb::gil_scoped_release no_gil;
        return call();
    }();
    if (!result.status.ok()) return nb::cast(std::move(result.status));
    return nb::cast(std::move(result.value));
}

StreamOrder order_of(std::optional<uintptr_t> stream) {
    return stream ? StreamOrder{true, reinterpret_cast<void*>(*stream)} : StreamOrder{};
}

// The fields of a DLPack tensor (address, shape, strides in elements, device, code, bits), and an object that
// keeps it alive.
nb::tuple read_capsule(const nb::ndarray<nb::ro>& tensor) {
    nb::list shape, strides;
    for (size_t d = 0; d < tensor.ndim(); ++d) {
        shape.append(tensor.shape(d));
        strides.append(tensor.stride(d));
    }
    const auto dtype = tensor.dtype();
    const nb::capsule owner(new nb::ndarray<nb::ro>(tensor),
                            [](void* p) noexcept { delete static_cast<nb::ndarray<nb::ro>*>(p); });
    return nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.data()), nb::tuple(shape), nb::tuple(strides),
                          nb::make_tuple(tensor.device_type(), tensor.device_id()), dtype.code, dtype.bits,
                          owner);
}

// A block of page-locked host memory as a byte array; None if there is no memory.
nb::object pinned_block(std::shared_ptr<CudaBackend> self, size_t bytes) {
    struct Owner {
        std::shared_ptr<CudaBackend> backend;
        void* block;
    };
    void* const block = [&] {
        const nb::gil_scoped_release no_gil;
        return self->allocate_pinned(bytes);
    }();
    if (block == nullptr) return nb::none();
    nb::capsule owner(new Owner{std::move(self), block}, [](void* p) noexcept {
        const std::unique_ptr<Owner> held(static_cast<Owner*>(p));
        held->backend->release_pinned(held->block);
    });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(block, {bytes}, owner));
}

// Device memory as a DLPack capsule. `strides` are in elements.
nb::object cuda_capsule(uintptr_t address, const std::vector<size_t>& shape,
                        const std::vector<int64_t>& strides, uint8_t code, uint8_t bits, int device,
                        nb::object owner) {
    const nb::dlpack::dtype dtype{code, bits, 1};
    return nb::cast(nb::ndarray<>(reinterpret_cast<void*>(address), shape.size(), shape.data(), owner,
                                  strides.data(), dtype, nb::device::cuda::value, device));
}

void bind_objects(nb::module_& m) {
    nb::class_<CudaBlock>(m, "CudaBlock", "A block of CUDA device memory, freed after the work that uses it.")
        .def_prop_ro("address", &CudaBlock::address)
        .def_prop_ro("bytes", &CudaBlock::bytes)
        .def(
            "used_on",
            [](CudaBlock& self, uintptr_t stream) { self.used_on(reinterpret_cast<void*>(stream)); },
            "stream"_a, "Record that work queued on a stream uses the block.");
    nb::class_<CudaStream>(m, "CudaStream", "A CUDA stream.")
        .def_prop_ro("handle",
                     [](const CudaStream& self) { return reinterpret_cast<uintptr_t>(self.handle()); })
        .def("synchronize", &CudaStream::synchronize, NoGil())
        .def(
            "done", [](const CudaStream& self) { return value_or_status([&] { return self.done(); }); },
            nb::sig("def done(self) -> bool | Status"));
    nb::class_<CudaEvent>(m, "CudaEvent", "A CUDA event.")
        .def("record", &CudaEvent::record, "stream"_a)
        .def("wait", &CudaEvent::wait, "stream"_a, "Make a stream wait for the event.")
        .def("synchronize", &CudaEvent::synchronize, NoGil())
        .def(
            "done", [](const CudaEvent& self) { return value_or_status([&] { return self.done(); }); },
            nb::sig("def done(self) -> bool | Status"))
        .def(
            "since",
            [](const CudaEvent& self, const CudaEvent& start) {
                return value_or_status([&] { return self.since(start); });
            },
            "start"_a, nb::sig("def since(self, start: CudaEvent) -> float | Status"),
            "Return the milliseconds from another event to this one.");
    nb::class_<CudaCounters>(m, "CudaCounters", "Counts of graph launches and single launches.")
        .def_ro("captures", &CudaCounters::captures)
        .def_ro("updates", &CudaCounters::updates)
        .def_ro("replays", &CudaCounters::replays)
        .def_ro("plain", &CudaCounters::plain);
}

void bind_backend(nb::module_& m) {
    nb::class_<CudaBackend, Backend>(m, "CudaBackend", "An NVIDIA GPU.")
        .def_prop_ro("index", &CudaBackend::index)
        .def_prop_ro("capability", &CudaBackend::capability)
        .def_prop_ro("device_name", &CudaBackend::device_name)
        .def(
            "load",
            [](CudaBackend& self, const nb::bytes& cubin) -> nb::object {
                auto loaded = [&] {
                    const nb::gil_scoped_release no_gil;
                    return self.load(cubin.data(), cubin.size());
                }();
                if (!loaded.status.ok()) return nb::cast(loaded.status);
                return nb::cast(std::const_pointer_cast<Module>(loaded.value));
            },
            "cubin"_a, nb::sig("def load(self, cubin: bytes) -> Module | Status"),
            "Load a CUBIN for this device.")
        .def(
            "block",
            [](CudaBackend& self, size_t bytes, std::optional<uintptr_t> stream) {
                return value_or_status([&] { return self.block(bytes, order_of(stream)); });
            },
            "bytes"_a, "stream"_a = nb::none(),
            nb::sig("def block(self, bytes: int, stream: int | None = None) -> CudaBlock | Status"),
            "Allocate memory, for any stream or for one stream.")
        .def(
            "upload",
            [](CudaBackend& self, uint64_t to, const ConstByteArray& from) {
                const nb::gil_scoped_release no_gil;
                return self.upload(to, from.data(), from.size());
            },
            "to"_a, "from_"_a, nb::sig("def upload(self, to: int, from_: NDArray[numpy.uint8]) -> Status"))
        .def(
            "download",
            [](CudaBackend& self, const ByteArray& to, uint64_t from) {
                const nb::gil_scoped_release no_gil;
                return self.download(to.data(), from, to.size());
            },
            "to"_a, "from_"_a, nb::sig("def download(self, to: NDArray[numpy.uint8], from_: int) -> Status"))
        .def("clear", &CudaBackend::clear, "memory"_a, "bytes"_a, NoGil())
        .def(
            "reaches_peer",
            [](CudaBackend& self, CudaBackend& peer) {
                return value_or_status([&] { return self.reaches_peer(peer); });
            },
            "peer"_a, nb::sig("def reaches_peer(self, peer: CudaBackend) -> bool | Status"),
            "Return True if copies from the other device need no host memory.")
        .def(
            "copy_from_peer",
            [](CudaBackend& self, uint64_t to, uintptr_t stream, CudaBackend& peer, uint64_t from,
               uintptr_t peer_stream, size_t bytes) {
                const nb::gil_scoped_release no_gil;
                return self.copy_from_peer(to, reinterpret_cast<void*>(stream), peer, from,
                                           reinterpret_cast<void*>(peer_stream), bytes);
            },
            "to"_a, "stream"_a, "peer"_a, "from_"_a, "peer_stream"_a, "bytes"_a,
            "Queue a copy from another device's memory, after the work of its stream.")
        .def(
            "synchronize", [](CudaBackend& self) { return self.synchronize(nullptr); }, NoGil())
        .def("reported", &CudaBackend::reported, NoGil(),
             "Return the first error that kernels of completed queued runs reported, once.")
        .def(
            "stream", [](CudaBackend& self) { return value_or_status([&] { return self.stream(); }); },
            nb::sig("def stream(self) -> CudaStream | Status"))
        .def(
            "wrap",
            [](CudaBackend& self, uintptr_t handle) { return self.wrap(reinterpret_cast<void*>(handle)); },
            "handle"_a, "Wrap a stream that another library owns.")
        .def(
            "event",
            [](CudaBackend& self, bool timing) {
                return value_or_status([&] { return self.event(timing); });
            },
            "timing"_a = true, nb::sig("def event(self, timing: bool = True) -> CudaEvent | Status"))
        .def("memory", &CudaBackend::memory, NoGil(), "Return statistics of the device's pool.")
        .def("pinned", &CudaBackend::pinned, NoGil(), "Return statistics of the page-locked pool.")
        .def("pinned_block", &pinned_block, "bytes"_a,
             "Allocate a block of page-locked memory as a byte array; it returns to the pool with the last "
             "array.",
             nb::sig("def pinned_block(self, bytes: int) -> NDArray[numpy.uint8] | None"))
        .def("trim", &CudaBackend::trim, NoGil(), "Free cached memory; return the number of bytes.")
        .def("counters", &CudaBackend::counters)
        .def("declined", &CudaBackend::declined,
             "Return why plans run as single launches although graphs are enabled.");
    m.def(
        "cuda_backend",
        [](int index, const Search& search) {
            return value_or_status([&]() -> Result<std::shared_ptr<CudaBackend>> {
                XPURT_TRY(cuda_library().open(search));
                return cuda_backend(index);
            });
        },
        "index"_a, "search"_a,
        nb::sig("def cuda_backend(index: int, search: Search) -> CudaBackend | Status"),
        "Open the device at an index.");
    m.def("cuda_capsule", &cuda_capsule, "address"_a, "shape"_a, "strides"_a, "code"_a, "bits"_a, "device"_a,
          "owner"_a, "Return CUDA memory as a DLPack capsule; owner keeps it alive.",
          nb::sig("def cuda_capsule(address: int, shape: Sequence[int], strides: Sequence[int], code: int, "
                  "bits: int, device: int, owner: object) -> object"));
    m.def(
        "read_capsule", &read_capsule, "tensor"_a,
        nb::sig("def read_capsule(tensor: object) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, "
                "int], int, int, object]"),
        "Return the fields of a DLPack tensor or capsule: address, shape, strides, device, code, bits, "
        "owner.");
}

}  // namespace

void bind_cuda(nb::module_& m) {
    bind_objects(m);
    bind_backend(m);
    m.def(
        "nvrtc_version",
        [] {
            Result<NvrtcVersion> result = [] {
                const nb::gil_scoped_release no_gil;
                return nvrtc_version();
            }();
            return std::tuple<Status, int, int>(std::move(result.status), result.value.major,
                                                result.value.minor);
        },
        "Return the version of NVRTC: (status, major, minor).");
    m.def(
        "nvrtc_compile",
        [](const std::string& source, const std::string& name, const std::string& arch,
           const std::vector<std::string>& options) {
            Result<Compiled> result = [&] {
                const nb::gil_scoped_release no_gil;
                return nvrtc_compile(source, name, arch, options);
            }();
            return std::tuple<Status, nb::bytes, std::string>(
                std::move(result.status), nb::bytes(result.value.cubin.data(), result.value.cubin.size()),
                std::move(result.value.log));
        },
        "source"_a, "name"_a, "arch"_a, "options"_a = std::vector<std::string>(),
        nb::sig("def nvrtc_compile(source: str, name: str, arch: str, options: Sequence[str] = []) -> "
                "tuple[Status, bytes, str]"),
        "Compile CUDA C++ to a CUBIN for an architecture (sm_90a): (status, cubin, log). Needs no device.");
}

}  // namespace xpurt::bindings
