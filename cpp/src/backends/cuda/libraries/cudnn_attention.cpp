// cuda/libraries/cudnn_attention.cpp: softmax(scale q k^T) v in the operations that cuDNN's fused attention
// is recognised by: product, factor, causal mask of row and column numbers, softmax of its five steps,
// product.
//
// A call's options: q_shape, q_strides, k_shape, k_strides, v_shape, v_strides, y_shape, y_strides (batch,
// head, position, element), scale, causal, offset (query i sees keys up to i + offset), in (dtype).
// Arguments: q, k, v, y. Key heads divide query heads.
#include <limits>

#include "backends/cuda/libraries/cudnn_graph.h"

namespace xpurt::cuda {
namespace {

// Before it masks took the least number for what is hidden, and 9.10.0 and 9.10.1 compute wrongly (release
// notes of cuDNN 9.10.2).
constexpr size_t least_version = 91002;

}  // namespace

Status check_attention_call(const KernelCall& call, const std::string& in) {
    const Dims none;
    const auto dims = [&](const char* name) { return option(call, name, none); };
    if (Status status = check_arguments(call, 4); !status.ok()) return status;
    const Dims q = dims("q_shape"), k = dims("k_shape"), v = dims("v_shape"), y = dims("y_shape");
    if (Status status = check_operands(call, {{"q", 0, in, q, dims("q_strides")},
                                              {"k", 1, in, k, dims("k_strides")},
                                              {"v", 2, in, v, dims("v_strides")},
                                              {"y", 3, in, y, dims("y_strides")}});
        !status.ok())
        return status;
    const bool good = q.size() == 4 && k.size() == 4 && v.size() == 4 && y.size() == 4 && k[0] == q[0] &&
                      v[0] == q[0] && q[1] % k[1] == 0 && v[1] == k[1] && v[2] == k[2] && k[3] == q[3] &&
                      y == Dims{q[0], q[1], q[2], v[3]};
    return good ? Status{} : inconsistent(call, "q, k, v and y are not those of one attention");
}

void build_attention(CudnnGraph& graph, const KernelCall& call, size_t version) {
    if (version < least_version) return graph.fail("it is older than 9.10.2");
    // Its kernels load 16 bytes at a time whatever the descriptors say: 9.19 makes plans for 8, too.
    if (!graph.aligned()) return graph.fail("an operand starts at no multiple of 16 bytes");
    const Dims none;
    const int type = cudnn_type(option<std::string>(call, "in", "bfloat16"));
    const Dims q_shape = option(call, "q_shape", none), v_shape = option(call, "v_shape", none);
    Dims k_shape = option(call, "k_shape", none), k_strides = option(call, "k_strides", none);
    if (q_shape.size() != 4 || v_shape.size() != 4 || k_shape.size() != 4 || k_strides.size() != 4)
        return graph.fail("the call has no shapes of four dims");
    const int64_t batch = q_shape[0], heads = q_shape[1], queries = q_shape[2], keys = k_shape[2];
    std::swap(k_shape[2], k_shape[3]);  // keys are handed in transposed
    std::swap(k_strides[2], k_strides[3]);
    const dnn::Object q = graph.argument(q_shape, option(call, "q_strides", none), type);
    const dnn::Object k = graph.argument(k_shape, k_strides, type);
    const dnn::Object v = graph.argument(v_shape, option(call, "v_strides", none), type);
    const dnn::Object y =
        graph.argument(option(call, "y_shape", none), option(call, "y_strides", none), type);

    const auto scores = [&](int of) {
        return graph.inner({batch, heads, queries, keys}, {heads * queries * keys, queries * keys, keys, 1},
                           of);
    };
    const auto rows = [&] {
        return graph.inner({batch, heads, queries, 1}, {heads * queries, queries, 1, 1}, dnn::data_float);
    };
    const dnn::Object product =
        graph.make(dnn::matmul).set(dnn::matmul_type, dnn::type_data, 1, &dnn::data_float).keep();
    const auto multiply = [&](dnn::Object a, dnn::Object b, dnn::Object to) {
        CudnnGraph::Builder made = graph.make(dnn::op_matmul);
        made.object(dnn::matmul_a, a).object(dnn::matmul_b, b).object(dnn::matmul_y, to);
        made.object(dnn::matmul_desc, product);
        graph.operation(made);
        return to;
    };
    const auto reduce = [&](int how, dnn::Object x) {
        const dnn::Object description = graph.make(dnn::reduction)
                                            .set(dnn::reduction_type, dnn::type_data, 1, &dnn::data_float)
                                            .set(dnn::reduction_operator, dnn::type_reduction, 1, &how)
                                            .keep();
        const dnn::Object to = rows();
        CudnnGraph::Builder made = graph.make(dnn::op_reduction);
        made.object(dnn::reduce_x, x).object(dnn::reduce_y, to).object(dnn::reduce_desc, description);
        graph.operation(made);
        return to;
    };
    const auto point = [&](int mode, dnn::Object x, dnn::Object b, int of = dnn::data_float) {
        return graph.point(mode, dnn::data_float, x, scores(of), b);
    };

    dnn::Object at = multiply(q, k, scores(dnn::data_float));
    at = point(dnn::multiply, at, graph.number(static_cast<float>(option(call, "scale", 1.0)), 4));
    if (option(call, "causal", false)) {
        const auto place = [&](int64_t axis) {
            return graph.point(dnn::make_index, dnn::data_float, at, scores(dnn::data_int32), nullptr,
                               nullptr, axis);
        };
        dnn::Object row = place(2);
        const dnn::Object column = place(3);
        const auto moved = [&](int mode, int64_t by) {
            row = graph.point(mode, dnn::data_int32, row, scores(dnn::data_int32),
                              graph.number(static_cast<int32_t>(by), 4));
        };
        // The last query sees the last key: in the two steps that this mask is known by.
        const int64_t offset = number(call, "offset");
        if (offset != 0 && offset == keys - queries) {
            moved(dnn::add, keys);
            moved(dnn::subtract, queries);
        } else if (offset != 0) {
            moved(dnn::add, offset);
        }
        const dnn::Object seen =
            graph.point(dnn::greater_or_equal, dnn::data_bool, row, scores(dnn::data_bool), column);
        const dnn::Object hidden = graph.number(-std::numeric_limits<float>::infinity(), 4);
        at = graph.point(dnn::select, dnn::data_float, at, scores(dnn::data_float), hidden, seen);
    }
    const dnn::Object most = reduce(dnn::largest, at);
    const dnn::Object powers = point(dnn::exponential, point(dnn::subtract, at, most), nullptr);
    const dnn::Object total = reduce(dnn::sum, powers);
    // Nobody reads these two, but softmax is recognised by them.
    const dnn::Object logs = graph.point(dnn::logarithm, dnn::data_float, total, rows());
    graph.point(dnn::add, dnn::data_float, most, rows(), logs);
    multiply(point(dnn::divide, powers, total, type), v, y);
}

}  // namespace xpurt::cuda
