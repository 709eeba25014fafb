// cpu/onednn_api.h: the part of oneDNN 3's C API that the core uses, declared without its headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/owned_handle.h"

namespace xpurt::dnnl {

// Values from dnnl_types.h, which are part of the stable ABI.
using Object = void*;  // any handle
enum [[nodiscard]] Result : int { success = 0, unimplemented = 3 };
constexpr int cpu = 1, default_flags = 1, tag_any = 1, forward_inference = 96, convolution_auto = 3;
constexpr int query_impl_info_str = 8, query_weights_md = 131, query_scratchpad_md = 136;
constexpr int binary_add = 0x1fff0, scratchpad_user = 1;
constexpr int arg_src = 1, arg_dst = 17, arg_weights = 33, arg_bias = 41, arg_scratchpad = 80;
constexpr int arg_from = 1, arg_to = 17, arg_src_1 = 2, post_op_base = 32768;

struct Argument {
    int which;
    Object memory;
};

struct OneDnnVersion {
    int major, minor, patch;
};

// name, type
#define XPURT_DNNL_FUNCTIONS(X)                                                                           \
    X(dnnl_version, const OneDnnVersion*())                                                               \
    X(dnnl_engine_create, Result(Object*, int, size_t))                                                   \
    X(dnnl_stream_create, Result(Object*, Object, unsigned))                                              \
    X(dnnl_stream_wait, Result(Object))                                                                   \
    X(dnnl_stream_destroy, Result(Object))                                                                \
    X(dnnl_memory_desc_create_with_strides, Result(Object*, int, const int64_t*, int, const int64_t*))    \
    X(dnnl_memory_desc_create_with_tag, Result(Object*, int, const int64_t*, int, int))                   \
    X(dnnl_memory_desc_destroy, Result(Object))                                                           \
    X(dnnl_memory_desc_equal, int(Object, Object))                                                        \
    X(dnnl_memory_desc_get_size, size_t(Object))                                                          \
    X(dnnl_memory_create, Result(Object*, Object, Object, void*))                                         \
    X(dnnl_memory_set_data_handle, Result(Object, void*))                                                 \
    X(dnnl_memory_destroy, Result(Object))                                                                \
    X(dnnl_primitive_attr_create, Result(Object*))                                                        \
    X(dnnl_primitive_attr_set_post_ops, Result(Object, Object))                                           \
    X(dnnl_primitive_attr_set_scratchpad_mode, Result(Object, int))                                       \
    X(dnnl_primitive_attr_destroy, Result(Object))                                                        \
    X(dnnl_post_ops_create, Result(Object*))                                                              \
    X(dnnl_post_ops_append_eltwise, Result(Object, int, float, float))                                    \
    X(dnnl_post_ops_append_binary, Result(Object, int, Object))                                           \
    X(dnnl_post_ops_destroy, Result(Object))                                                              \
    X(dnnl_matmul_primitive_desc_create, Result(Object*, Object, Object, Object, Object, Object, Object)) \
    X(dnnl_convolution_forward_primitive_desc_create,                                                     \
      Result(Object*, Object, int, int, Object, Object, Object, Object, const int64_t*, const int64_t*,   \
             const int64_t*, const int64_t*, Object))                                                     \
    X(dnnl_reorder_primitive_desc_create, Result(Object*, Object, Object, Object, Object, Object))        \
    X(dnnl_primitive_desc_query, Result(Object, int, int, void*))                                         \
    X(dnnl_primitive_desc_query_md, Object(Object, int, int))                                             \
    X(dnnl_primitive_desc_destroy, Result(Object))                                                        \
    X(dnnl_primitive_create, Result(Object*, Object))                                                     \
    X(dnnl_primitive_execute, Result(Object, Object, int, const Argument*))                               \
    X(dnnl_primitive_destroy, Result(Object))                                                             \
    X(omp_set_num_threads, void(int))

// The functions of the loaded library, by name.
struct OneDnnApi {
#define XPURT_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
    XPURT_DNNL_FUNCTIONS(XPURT_MEMBER)
#undef XPURT_MEMBER
    Object engine = nullptr;  // of the host processor; lives as long as the process
};

using Handle = OwnedHandle<Result>;

}  // namespace xpurt::dnnl
