// bindings/exchange.h: DLPack's table of C functions (DLPack 1.3, "DLPackExchangeAPI"), by which libraries
// show and make tensors without a call into Python. A type offers it as the capsule
// `__dlpack_c_exchange_api__`.
#pragma once

#include <cstdint>

namespace xpurt::bindings::exchange {

struct Device {
    int32_t type;
    int32_t index;
};
struct DataType {
    uint8_t code, bits;
    uint16_t lanes;
};
struct Tensor {
    void* data;
    Device device;
    int32_t rank;
    DataType dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};
struct Version {
    uint32_t major, minor;
};
struct ManagedTensor {
    Version version;
    void* context;
    void (*deleter)(ManagedTensor*);
    uint64_t flags;
    Tensor tensor;
};

using SetError = void (*)(void* context, const char* kind, const char* message);

// Each gives 0, or -1 with a Python error set (allocate: with SetError called).
struct Api {
    static constexpr const char* capsule = "dlpack_exchange_api";
    static constexpr const char* attribute = "__dlpack_c_exchange_api__";
    static constexpr uint32_t major = 1;

    Version version;
    Api* older;  // a table of an older version, or null
    int (*allocate)(Tensor* prototype, ManagedTensor** out, void* context, SetError set_error);
    int (*export_tensor)(void* object, ManagedTensor** out);
    int (*import_tensor)(ManagedTensor* tensor, void** object);  // takes the tensor
    int (*show)(void* object, Tensor* out);                      // owns nothing; may be null
    int (*current_stream)(int32_t device_type, int32_t device_index, void** stream);
};
static_assert(sizeof(Tensor) == 48 && sizeof(ManagedTensor) == 80, "as DLPack lays them out");

}  // namespace xpurt::bindings::exchange
