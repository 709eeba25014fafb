// bindings/bind_memory.cpp: the host memory pool, and memory as arrays and DLPack capsules.
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <vector>

#include "bindings.h"
#include "xpurt/memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

// A block of host memory as a byte array. The block returns to the pool with the last array over it.
nb::object host_block(size_t bytes) {
    void* const block = MemoryPool::host().allocate(bytes);
    if (block == nullptr) throw std::bad_alloc();
    nb::capsule owner(block, [](void* p) noexcept { MemoryPool::host().release(p); });
    return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(block, {bytes}, owner));
}

// Memory as a DLPack capsule of any dtype. `strides` are in elements.
nb::object dlpack_capsule(uintptr_t address, const std::vector<size_t>& shape,
                          const std::vector<int64_t>& strides, uint8_t code, uint8_t bits, nb::object owner) {
    const nb::dlpack::dtype dtype{code, bits, 1};
    return nb::cast(nb::ndarray<>(reinterpret_cast<void*>(address), shape.size(), shape.data(), owner,
                                  strides.data(), dtype, nb::device::cpu::value, 0));
}

// A bfloat16 tensor as uint16 words over the same memory, since NumPy cannot import bfloat16 through DLPack.
nb::object bfloat_words(const nb::ndarray<nb::device::cpu>& tensor) {
    if (tensor.dtype().code != static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) || tensor.itemsize() != 2)
        throw nb::type_error("bfloat_words: the tensor is not bfloat16");
    std::vector<size_t> shape;
    std::vector<int64_t> strides;
    for (size_t d = 0; d < tensor.ndim(); ++d) {
        shape.push_back(tensor.shape(d));
        strides.push_back(tensor.stride(d));
    }
    const nb::capsule owner(new nb::ndarray<nb::device::cpu>(tensor),
                            [](void* p) noexcept { delete static_cast<nb::ndarray<nb::device::cpu>*>(p); });
    return nb::cast(
        nb::ndarray<nb::numpy, uint16_t>(tensor.data(), shape.size(), shape.data(), owner, strides.data()));
}

}  // namespace

void bind_memory(nb::module_& m) {
    nb::class_<MemoryStatistics>(m, "MemoryStatistics", "Statistics of a memory pool, in bytes.")
        .def_ro("live_bytes", &MemoryStatistics::live_bytes)
        .def_ro("peak_bytes", &MemoryStatistics::peak_bytes)
        .def_ro("cached_bytes", &MemoryStatistics::cached_bytes)
        .def_ro("allocations", &MemoryStatistics::allocations)
        .def_ro("reuses", &MemoryStatistics::reuses);
    m.def("host_block", &host_block, "bytes"_a,
          "Allocate a block of the host's pool as a byte array, 64-byte aligned.",
          nb::sig("def host_block(bytes: int) -> NDArray[numpy.uint8]"));
    m.def(
        "address",
        [](const nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& bytes) {
            return reinterpret_cast<uintptr_t>(bytes.data());
        },
        "bytes"_a, nb::sig("def address(bytes: NDArray[numpy.uint8]) -> int"),
        "Return the address of a byte array.");
    m.def("dlpack_capsule", &dlpack_capsule, "address"_a, "shape"_a, "strides"_a, "code"_a, "bits"_a,
          "owner"_a, "Return memory as a DLPack capsule; owner keeps it alive.",
          nb::sig("def dlpack_capsule(address: int, shape: Sequence[int], strides: Sequence[int], code: int, "
                  "bits: int, "
                  "owner: object) -> object"));
    m.def("bfloat_words", &bfloat_words, "tensor"_a,
          "Return a uint16 view of a bfloat16 tensor of any library.",
          nb::sig("def bfloat_words(tensor: object) -> NDArray[numpy.uint16]"));
    m.def(
        "host_memory", [] { return MemoryPool::host().statistics(); },
        "Return statistics of the host's pool.");
    m.def(
        "trim_host_memory", [] { return MemoryPool::host().trim(); }, NoGil(),
        "Free cached blocks; return the number of bytes.");
}

}  // namespace xpurt::bindings
