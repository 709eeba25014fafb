// cuda/libraries/cudnn_graph.h: cuDNN's graph API: building descriptors and operation graphs, choosing an
// engine, and running the plan.
//
// cudnn.cpp has the library; cudnn_conv.cpp and cudnn_attention.cpp build the graphs.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backends/cuda/libraries/vendor_library.h"

namespace xpurt::cuda {

// Values from cudnn_graph.h, unchanged since 9.0.
namespace dnn {

using Handle = void*;
using Object = void*;
constexpr int success = 0, not_supported = 3000;
// Attribute types.
constexpr int type_handle = 0, type_data = 1, type_bool = 2, type_int = 3, type_float = 4, type_double = 5,
              type_pointer = 6, type_mode = 7, type_heuristic = 8, type_nan = 10, type_note = 11,
              type_pointwise = 14, type_object = 15, type_reduction = 18, type_char = 24;
// Descriptors.
constexpr int pointwise = 0, convolution = 1, engine = 2, config = 3, heuristic = 4, plan = 5,
              op_convolution = 10, op_pointwise = 13, graph = 15, pack = 16, tensor = 17, matmul = 18,
              op_matmul = 19, reduction = 21, op_reduction = 22;
// Attributes.
constexpr int pointwise_mode = 0, pointwise_math = 1, pointwise_nan = 2, relu_upper = 4, relu_slope = 5,
              pointwise_axis = 9;
constexpr int conv_type = 100, conv_mode = 101, conv_dilation = 102, conv_stride = 103, conv_end = 104,
              conv_begin = 105, conv_dims = 106;
constexpr int heuristic_mode = 200, heuristic_graph = 201, heuristic_results = 202;
constexpr int config_engine = 300, plan_handle = 400, plan_config = 401, plan_workspace = 402,
              plan_json = 405;
constexpr int conv_alpha = 700, conv_beta = 701, conv_desc = 702, conv_w = 703, conv_x = 704, conv_y = 705;
constexpr int point_desc = 750, point_x = 751, point_b = 752, point_y = 753, point_t = 758;
constexpr int graph_handle = 800, graph_ops = 801, graph_engines = 802;
constexpr int tensor_alignment = 900, tensor_type = 901, tensor_shape = 902, tensor_strides = 903,
              tensor_id = 906, tensor_virtual = 907, tensor_by_value = 908;
constexpr int pack_ids = 1000, pack_pointers = 1001, pack_workspace = 1003;
constexpr int engine_graph = 1300, engine_index = 1301, engine_notes = 1303;
constexpr int matmul_type = 1500, matmul_a = 1520, matmul_b = 1521, matmul_y = 1522, matmul_desc = 1523;
constexpr int reduction_operator = 1600, reduction_type = 1601, reduce_x = 1610, reduce_y = 1611,
              reduce_desc = 1612;
// Values.
constexpr int cross_correlation = 1, keep_nan = 1;
constexpr int mode_fallback = 2, mode_a = 3;
constexpr int note_tensor_core = 0, note_down_convert = 1, note_reduced_sums = 2, note_undetermined = 4,
              note_winograd = 5, note_winograd_last = 8, notes = 10;
constexpr int data_float = 0, data_double = 1, data_half = 2, data_int32 = 4, data_bfloat = 9, data_bool = 11;
constexpr int add = 0, multiply = 1, divide = 6, subtract = 9, exponential = 13, logarithm = 15,
              greater_or_equal = 303, make_index = 501, select = 601;
constexpr int sum = 0, largest = 3;

}  // namespace dnn

#define XPURT_CUDNN_SYMBOLS(X)                                                               \
    X(cudnnGetVersion, size_t())                                                             \
    X(cudnnCreate, ResultCode(dnn::Handle*))                                                 \
    X(cudnnSetStream, ResultCode(dnn::Handle, CUstream))                                     \
    X(cudnnGetErrorString, const char*(int))                                                 \
    X(cudnnGetLastErrorString, void(char*, size_t))                                          \
    X(cudnnBackendCreateDescriptor, ResultCode(int, dnn::Object*))                           \
    X(cudnnBackendDestroyDescriptor, ResultCode(dnn::Object))                                \
    X(cudnnBackendFinalize, ResultCode(dnn::Object))                                         \
    X(cudnnBackendSetAttribute, ResultCode(dnn::Object, int, int, int64_t, const void*))     \
    X(cudnnBackendGetAttribute, ResultCode(dnn::Object, int, int, int64_t, int64_t*, void*)) \
    X(cudnnBackendExecute, ResultCode(dnn::Handle, dnn::Object, dnn::Object))

struct CudnnApi {
#define XPURT_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
    XPURT_CUDNN_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit CudnnApi(const Library& library) {
        size_t index = 0;
#define XPURT_FILL(name, type) name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_CUDNN_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }
};

// cuDNN's value for a dtype; -1 if it has none.
int cudnn_type(const std::string& dtype);

class CudnnPlan;

// The plans of a device and its handles: one for runs, and one for each thread that builds plans. One thread
// at a time uses a handle. Equal calls share a plan while one of them lives. The most recent plans are kept
// beyond that, since a compiler prepares a call before a session does, and compiling a plan of attention
// takes 0.4 s.
struct CudnnShared {
    static constexpr size_t max_recent = 128;
    struct Entry {
        std::weak_ptr<const CudnnPlan> plan;
        std::unordered_set<std::string> stores;  // names of those that were given the plan or have it
    };
    std::mutex mutex;
    dnn::Handle handle = nullptr;
    std::vector<dnn::Handle> idle;  // of threads that have built their plans
    std::unordered_map<std::string, Entry> plans;
    std::unordered_set<std::string> building;
    std::condition_variable built;
    std::deque<std::shared_ptr<const CudnnPlan>> recent;
};

// An operation graph under construction. It keeps the first failure with its descriptor and attribute; later
// calls do nothing. The descriptors live as long as the plan that is created from the graph.
class CudnnGraph {
  public:
    CudnnGraph(const CudnnApi& f, dnn::Handle handle, std::vector<int64_t> alignment)
        : f_(f), handle_(handle), alignment_(std::move(alignment)) {}

    // A descriptor under construction.
    class Builder {
      public:
        Builder(CudnnGraph& graph, int kind);
        Builder& set(int attribute, int type, int64_t count, const void* values);
        // Set an attribute that older versions lack; its refusal is not a failure.
        Builder& set_if_supported(int attribute, int type, int64_t count, const void* values);
        Builder& object(int attribute, dnn::Object value) {
            return set(attribute, dnn::type_object, 1, &value);
        }
        Builder& dims(int attribute, const Dims& values) {
            return set(attribute, dnn::type_int, static_cast<int64_t>(values.size()), values.data());
        }
        dnn::Object finalize();  // finalize the descriptor, so that others may use it; null after a failure

      private:
        void check(int result, const char* call, int attribute = -1);
        CudnnGraph& graph_;
        int kind_;
        VendorHandle object_;
    };
    Builder make(int kind) { return {*this, kind}; }

    // The tensor of the call's next argument.
    dnn::Object argument(const Dims& shape, const Dims& strides, int type);
    // An intermediate tensor, which exists inside the plan only.
    dnn::Object intermediate(const Dims& shape, const Dims& strides, int type);
    // A scalar tensor of `rank` dims, whose value is passed at launch.
    dnn::Object scalar(float value, size_t rank) { return scalar(&value, dnn::data_float, rank); }
    dnn::Object scalar(int32_t value, size_t rank) { return scalar(&value, dnn::data_int32, rank); }

    void operation(Builder& builder) { operations_.push_back(builder.finalize()); }
    // y = mode(x), mode(x, b) or select(t, x, b), computed in `math`; unused operands are null.
    dnn::Object pointwise_op(int mode, int math, dnn::Object x, dnn::Object y, dnn::Object b = nullptr,
                             dnn::Object t = nullptr, int64_t axis = -1);

    // True if every argument is aligned to 16 bytes.
    bool aligned() const;

    bool failed() const { return !failure_.empty(); }
    const std::string& failure() const { return failure_; }
    void fail(std::string reason) {
        if (failure_.empty()) failure_ = std::move(reason);
    }

  private:
    friend class CudnnPlan;
    dnn::Object tensor(int64_t id, const Dims& shape, const Dims& strides, int type, bool is_virtual,
                       bool by_value);
    dnn::Object scalar(const void* value, int type, size_t rank);

    const CudnnApi& f_;
    dnn::Handle handle_;
    std::vector<int64_t> alignment_;  // alignment of each argument in bytes
    std::string failure_;
    int64_t arguments_ = 0, intermediates_ = 0;
    std::vector<VendorHandle> descriptors_;
    std::vector<dnn::Object> operations_;
    std::vector<uint32_t> scalars_;  // bits of the scalar values
};

// A graph with the engine that computes it. Immutable; run from several threads.
class CudnnPlan {
  public:
    // Choose the first engine that computes with the required precision in the allowed workspace: those of
    // the heuristic, of its fallback mode, then all engines. If the call names an engine, choose that one.
    // `what` describes the computation in errors.
    static Result<std::shared_ptr<const CudnnPlan>> choose(CudnnGraph graph, const KernelCall& call,
                                                           const char* what);

    // Number of the rules by which choose() rejects engines. Raise it with them: it is part of stored keys.
    static constexpr int format = 1;
    // The plan of a call's graph from text() of an equal one; null if this cuDNN does not take it, or if it
    // needs more workspace than the call allows.
    static std::shared_ptr<const CudnnPlan> restore(CudnnGraph graph, const KernelCall& call,
                                                    const std::string& text);
    // The plan with its compiled code, for restore(); "" if this cuDNN cannot write it.
    std::string text() const;

    Status run(CudnnShared& shared, const std::string& kernel, void* const* args, void* workspace,
               CUstream stream) const;
    size_t arguments() const { return graph_.alignment_.size(); }
    int64_t workspace() const { return workspace_; }
    const std::string& implementation() const { return implementation_; }

  private:
    explicit CudnnPlan(CudnnGraph graph) : graph_(std::move(graph)) {}
    std::string try_build(dnn::Object config, int64_t limit);

    CudnnGraph graph_;
    VendorHandle config_, plan_;
    int64_t workspace_ = 0;
    std::string implementation_;
};

// Check the call's options, with dtype `in`, against its buffers.
using CudnnCheck = Status (*)(const KernelCall& call, const std::string& in);
Status check_convolution_call(const KernelCall& call, const std::string& in);
Status check_attention_call(const KernelCall& call, const std::string& in);

// Build the graph of a call. An operation that cuDNN lacks is a failure of the graph.
using CudnnBuild = void (*)(CudnnGraph& graph, const KernelCall& call, size_t version);
void build_convolution(CudnnGraph& graph, const KernelCall& call, size_t version);
void build_attention(CudnnGraph& graph, const KernelCall& call, size_t version);

}  // namespace xpurt::cuda
