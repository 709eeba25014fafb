// cuda/libraries/cudnn_conv.cpp: convolution, residual, bias and activation in one plan.
//
// The options of a call: x_shape, x_strides, w_shape, w_strides, y_shape, y_strides (n, c, space; filters,
// channels, space), r_strides (equal to y_strides) if there is a residual, stride, dilation, begin, end
// (padding of each spatial dim), bias, residual, act, in (dtype). Arguments: x, weight, then bias and
// residual if the options say so, then y.
#include <algorithm>

#include "backends/cuda/libraries/cudnn_graph.h"

namespace xpurt::cuda {
namespace {

struct Activation {
    const char* name;
    int mode;
    double upper, slope;  // of a clipped or leaky relu; 0 = none
};
constexpr int relu = 100;
constexpr Activation activations[] = {
    {"relu", relu, 0, 0},   {"relu6", relu, 6, 0}, {"leaky_relu", relu, 0, 0.01}, {"tanh", 101, 0, 0},
    {"sigmoid", 102, 0, 0}, {"gelu", 104, 0, 0},   {"silu", 106, 0, 0},           {"gelu_tanh", 107, 0, 0},
};

}  // namespace

Status check_convolution_call(const KernelCall& call, const std::string& in) {
    const Dims none;
    const auto dims = [&](const char* name) { return option(call, name, none); };
    const bool bias = option(call, "bias", false), residual = option(call, "residual", false);
    XPURT_TRY(check_arguments(call, 3U + bias + residual));
    const Dims x = dims("x_shape"), w = dims("w_shape"), y = dims("y_shape");
    if (x.size() < 3 || w.size() < 3) return inconsistent(call, "x and weight need at least three dims");
    const int64_t groups = w[1] < 1 ? 0 : x[1] / w[1];
    XPURT_TRY(check_convolution(call, x, w, y, {dims("stride"), dims("dilation"), dims("begin"), dims("end")},
                                groups));
    const size_t last = call.specs.size() - 1;
    Status status = check_operands(call, {{"x", 0, in, x, dims("x_strides")},
                                          {"weight", 1, in, w, dims("w_strides")},
                                          {"y", last, in, y, dims("y_strides")}});
    if (status.ok() && bias) status = check_operands(call, {{"bias", 2, in, {y[1]}, {1}}});
    if (status.ok() && residual)
        status = check_operands(call, {{"residual", last - 1, in, y, dims("r_strides")}});
    return status;
}

// The output of each step is the input of the next one; the output of the last step is y.
void build_convolution(CudnnGraph& graph, const KernelCall& call, size_t) {
    const Dims none;
    const Dims y_shape = option(call, "y_shape", none), y_strides = option(call, "y_strides", none);
    if (y_shape.size() < 3) return graph.fail("y needs at least three dims");
    const auto act = option<std::string>(call, "act", "none");
    const bool bias = option(call, "bias", false), residual = option(call, "residual", false);
    const int type = cudnn_type(option<std::string>(call, "in", "float32"));
    const bool wide = type == dnn::data_double;
    const int sums = wide ? dnn::data_double : dnn::data_float;
    const dnn::Object x =
        graph.argument(option(call, "x_shape", none), option(call, "x_strides", none), type);
    const dnn::Object w =
        graph.argument(option(call, "w_shape", none), option(call, "w_strides", none), type);
    dnn::Object b = nullptr, r = nullptr;
    if (bias) {
        Dims shape(y_shape.size(), 1), strides(y_shape.size(), y_shape[1]);
        shape[1] = y_shape[1];
        strides[1] = 1;
        b = graph.argument(shape, strides, type);
    }
    if (residual) {
        const Dims r_strides = option(call, "r_strides", none);
        // Engine 8 of cuDNN 9.19 reads a float32 residual with the strides of the output, whatever its own
        // are.
        if (r_strides != y_strides) graph.fail("the strides of the residual and the output differ");
        r = graph.argument(y_shape, r_strides, type);
    }
    const dnn::Object y = graph.argument(y_shape, y_strides, type);
    int steps = 1 + bias + residual + (act != "none");
    const auto out = [&] { return --steps == 0 ? y : graph.intermediate(y_shape, y_strides, sums); };

    const Dims stride = option(call, "stride", none);
    const auto space = static_cast<int64_t>(stride.size());
    const dnn::Object description = graph.make(dnn::convolution)
                                        .set(dnn::conv_type, dnn::type_data, 1, &sums)
                                        .set(dnn::conv_mode, dnn::type_mode, 1, &dnn::cross_correlation)
                                        .set(dnn::conv_dims, dnn::type_int, 1, &space)
                                        .dims(dnn::conv_stride, stride)
                                        .dims(dnn::conv_dilation, option(call, "dilation", none))
                                        .dims(dnn::conv_begin, option(call, "begin", none))
                                        .dims(dnn::conv_end, option(call, "end", none))
                                        .finalize();
    dnn::Object value = out();
    const float one = 1, zero = 0;
    const double wide_one = 1, wide_zero = 0;
    const int factor = wide ? dnn::type_double : dnn::type_float;
    CudnnGraph::Builder builder = graph.make(dnn::op_convolution);
    builder.object(dnn::conv_desc, description)
        .object(dnn::conv_x, x)
        .object(dnn::conv_w, w)
        .object(dnn::conv_y, value)
        .set(dnn::conv_alpha, factor, 1, wide ? static_cast<const void*>(&wide_one) : &one)
        .set(dnn::conv_beta, factor, 1, wide ? static_cast<const void*>(&wide_zero) : &zero);
    graph.operation(builder);

    if (residual) value = graph.pointwise_op(dnn::add, sums, value, out(), r);
    if (bias) value = graph.pointwise_op(dnn::add, sums, value, out(), b);
    if (act == "none") return;
    const auto* const activation_row = std::find_if(std::begin(activations), std::end(activations),
                                                    [&](const Activation& a) { return act == a.name; });
    if (activation_row == std::end(activations)) return graph.fail("cuDNN has no activation " + act);
    CudnnGraph::Builder how = graph.make(dnn::pointwise);
    how.set(dnn::pointwise_mode, dnn::type_pointwise, 1, &activation_row->mode)
        .set(dnn::pointwise_math, dnn::type_data, 1, &sums);
    // Without this attribute some engines turn NaN into 0. It changes neither the engines offered nor their
    // times (cuDNN 9.19, H200).
    if (activation_row->mode == relu)
        how.set_if_supported(dnn::pointwise_nan, dnn::type_nan, 1, &dnn::keep_nan);
    if (activation_row->upper != 0) how.set(dnn::relu_upper, dnn::type_double, 1, &activation_row->upper);
    if (activation_row->slope != 0) how.set(dnn::relu_slope, dnn::type_double, 1, &activation_row->slope);
    const dnn::Object activation = how.finalize();
    CudnnGraph::Builder last = graph.make(dnn::op_pointwise);
    last.object(dnn::point_desc, activation).object(dnn::point_x, value).object(dnn::point_y, out());
    graph.operation(last);
}

}  // namespace xpurt::cuda
