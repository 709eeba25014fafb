// cuda/libraries/cudnn_attention.cpp: softmax(scale q k^T) v as the graph that cuDNN recognizes as fused
// attention: product, scale, causal mask from row and column indices, softmax in five steps, product.
//
// The options of a call: q_shape, q_strides, k_shape, k_strides, v_shape, v_strides, y_shape, y_strides
// (batch, head, position, element), scale, causal, offset (query i sees keys up to i + offset), in (dtype).
// Arguments: q, k, v, y. The number of key heads divides the number of query heads.
#include <limits>

#include "backends/cuda/libraries/cudnn_graph.h"

namespace xpurt::cuda {
namespace {

// Older versions mask with the lowest finite number, and 9.10.0 and 9.10.1 compute wrong results (release
// notes of cuDNN 9.10.2).
constexpr size_t min_version = 91002;

}  // namespace

Status check_attention_call(const KernelCall& call, const std::string& in) {
    const Dims none;
    const auto dims = [&](const char* name) { return option(call, name, none); };
    XPURT_TRY(check_arguments(call, 4));
    const Dims q = dims("q_shape"), k = dims("k_shape"), v = dims("v_shape"), y = dims("y_shape");
    XPURT_TRY(check_operands(call, {{"q", 0, in, q, dims("q_strides")},
                                    {"k", 1, in, k, dims("k_strides")},
                                    {"v", 2, in, v, dims("v_strides")},
                                    {"y", 3, in, y, dims("y_strides")}}));
    const bool good = q.size() == 4 && k.size() == 4 && v.size() == 4 && y.size() == 4 && k[0] == q[0] &&
                      v[0] == q[0] && q[1] % k[1] == 0 && v[1] == k[1] && v[2] == k[2] && k[3] == q[3] &&
                      y == Dims{q[0], q[1], q[2], v[3]};
    return good ? Status{} : inconsistent(call, "the shapes of q, k, v and y do not match");
}

void build_attention(CudnnGraph& graph, const KernelCall& call, size_t version) {
    if (version < min_version) return graph.fail("cuDNN is older than 9.10.2");
    // The kernels load 16 bytes at a time regardless of the descriptors: 9.19 also creates plans for 8-byte
    // alignment.
    if (!graph.aligned()) return graph.fail("an operand is not aligned to 16 bytes");
    const Dims none;
    const int type = cudnn_type(option<std::string>(call, "in", "bfloat16"));
    const Dims q_shape = option(call, "q_shape", none), v_shape = option(call, "v_shape", none);
    Dims k_shape = option(call, "k_shape", none), k_strides = option(call, "k_strides", none);
    if (q_shape.size() != 4 || v_shape.size() != 4 || k_shape.size() != 4 || k_strides.size() != 4)
        return graph.fail("q, k and v need four dims");
    const int64_t batch = q_shape[0], heads = q_shape[1], queries = q_shape[2], keys = k_shape[2];
    std::swap(k_shape[2], k_shape[3]);  // cuDNN takes the keys transposed
    std::swap(k_strides[2], k_strides[3]);
    const dnn::Object q = graph.argument(q_shape, option(call, "q_strides", none), type);
    const dnn::Object k = graph.argument(k_shape, k_strides, type);
    const dnn::Object v = graph.argument(v_shape, option(call, "v_strides", none), type);
    const dnn::Object y =
        graph.argument(option(call, "y_shape", none), option(call, "y_strides", none), type);

    const auto scores = [&](int of) {
        return graph.intermediate({batch, heads, queries, keys},
                                  {heads * queries * keys, queries * keys, keys, 1}, of);
    };
    const auto rows = [&] {
        return graph.intermediate({batch, heads, queries, 1}, {heads * queries, queries, 1, 1},
                                  dnn::data_float);
    };
    const dnn::Object product =
        graph.make(dnn::matmul).set(dnn::matmul_type, dnn::type_data, 1, &dnn::data_float).finalize();
    const auto multiply = [&](dnn::Object a, dnn::Object b, dnn::Object to) {
        CudnnGraph::Builder builder = graph.make(dnn::op_matmul);
        builder.object(dnn::matmul_a, a).object(dnn::matmul_b, b).object(dnn::matmul_y, to);
        builder.object(dnn::matmul_desc, product);
        graph.operation(builder);
        return to;
    };
    const auto reduce = [&](int how, dnn::Object x) {
        const dnn::Object description = graph.make(dnn::reduction)
                                            .set(dnn::reduction_type, dnn::type_data, 1, &dnn::data_float)
                                            .set(dnn::reduction_operator, dnn::type_reduction, 1, &how)
                                            .finalize();
        const dnn::Object to = rows();
        CudnnGraph::Builder builder = graph.make(dnn::op_reduction);
        builder.object(dnn::reduce_x, x).object(dnn::reduce_y, to).object(dnn::reduce_desc, description);
        graph.operation(builder);
        return to;
    };
    const auto pointwise_op = [&](int mode, dnn::Object x, dnn::Object b, int of = dnn::data_float) {
        return graph.pointwise_op(mode, dnn::data_float, x, scores(of), b);
    };

    dnn::Object current = multiply(q, k, scores(dnn::data_float));
    current =
        pointwise_op(dnn::multiply, current, graph.scalar(static_cast<float>(option(call, "scale", 1.0)), 4));
    if (option(call, "causal", false)) {
        const auto index_along = [&](int64_t axis) {
            return graph.pointwise_op(dnn::make_index, dnn::data_float, current, scores(dnn::data_int32),
                                      nullptr, nullptr, axis);
        };
        dnn::Object row = index_along(2);
        const dnn::Object column = index_along(3);
        const auto add_offset = [&](int mode, int64_t by) {
            row = graph.pointwise_op(mode, dnn::data_int32, row, scores(dnn::data_int32),
                                     graph.scalar(static_cast<int32_t>(by), 4));
        };
        // If the last query sees the last key, cuDNN recognizes the mask only in these two steps.
        const int64_t offset = int_option(call, "offset");
        if (offset != 0 && offset == keys - queries) {
            add_offset(dnn::add, keys);
            add_offset(dnn::subtract, queries);
        } else if (offset != 0) {
            add_offset(dnn::add, offset);
        }
        const dnn::Object visible =
            graph.pointwise_op(dnn::greater_or_equal, dnn::data_bool, row, scores(dnn::data_bool), column);
        const dnn::Object masked_value = graph.scalar(-std::numeric_limits<float>::infinity(), 4);
        current = graph.pointwise_op(dnn::select, dnn::data_float, current, scores(dnn::data_float),
                                     masked_value, visible);
    }
    const dnn::Object row_max = reduce(dnn::largest, current);
    const dnn::Object exponentials =
        pointwise_op(dnn::exponential, pointwise_op(dnn::subtract, current, row_max), nullptr);
    const dnn::Object row_sum = reduce(dnn::sum, exponentials);
    // The results of these two operations are unused, but cuDNN recognizes softmax by them.
    const dnn::Object logs = graph.pointwise_op(dnn::logarithm, dnn::data_float, row_sum, rows());
    graph.pointwise_op(dnn::add, dnn::data_float, row_max, rows(), logs);
    multiply(pointwise_op(dnn::divide, exponentials, row_sum, type), v, y);
}

}  // namespace xpurt::cuda
