// bindings/dlpack_exchange.h: DLPack's table of C functions (DLPack 1.3, "DLPackExchangeAPI"), through which
// tensors are read and created without a call into Python. A tensor type offers it as the capsule
// `__dlpack_c_exchange_api__`.
#pragma once

#include <cstdint>

namespace xpurt::bindings::exchange {

struct DlpackDevice {
    int32_t type;
    int32_t index;
};
struct DlpackDataType {
    uint8_t code, bits;
    uint16_t lanes;
};
struct DlpackTensor {
    void* data;
    DlpackDevice device;
    int32_t rank;
    DlpackDataType dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};
struct DlpackVersion {
    uint32_t major, minor;
};
struct DlpackManagedTensor {
    DlpackVersion version;
    void* context;
    void (*deleter)(DlpackManagedTensor*);
    uint64_t flags;
    DlpackTensor tensor;
};

using SetError = void (*)(void* context, const char* kind, const char* message);

// Each function returns 0, or -1 with a Python error set (allocate: after calling SetError).
struct DlpackExchangeApi {
    static constexpr const char* capsule = "dlpack_exchange_api";
    static constexpr const char* attribute = "__dlpack_c_exchange_api__";
    static constexpr uint32_t major = 1;

    DlpackVersion version;
    DlpackExchangeApi* older;  // a table of an older version, or null
    int (*allocate)(DlpackTensor* prototype, DlpackManagedTensor** out, void* context, SetError set_error);
    int (*export_tensor)(void* object, DlpackManagedTensor** out);
    int (*import_tensor)(DlpackManagedTensor* tensor, void** object);  // takes ownership of the tensor
    int (*show)(void* object, DlpackTensor* out);                      // borrows; may be null
    int (*current_stream)(int32_t device_type, int32_t device_index, void** stream);
};
static_assert(sizeof(DlpackTensor) == 48 && sizeof(DlpackManagedTensor) == 80, "as DLPack lays them out");

}  // namespace xpurt::bindings::exchange
