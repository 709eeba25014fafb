// A cuDNN that needs no device and computes operation graphs on the host as soon as they are executed. It
// refuses what the real library was observed to refuse: attributes of finalized descriptors, shapes that do
// not match, and variant packs that lack a tensor.
//
// Its engines: 5 (not deterministic), 9 (supports no plan), 2 (needs a workspace of 256 bytes), 1.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Dims = std::vector<int64_t>;

struct CudnnObject {
    explicit CudnnObject(int of) : kind(of) {}
    int kind;
    bool finished = false;
    std::map<int, std::vector<char>> values{};

    template <class T>
    std::vector<T> all(int attribute) const {
        const auto entry = values.find(attribute);
        if (entry == values.end()) return {};
        std::vector<T> read(entry->second.size() / sizeof(T));
        std::memcpy(read.data(), entry->second.data(), read.size() * sizeof(T));
        return read;
    }
    template <class T>
    T one(int attribute) const {
        const auto read = all<T>(attribute);
        return read.empty() ? T{} : read[0];
    }
    const CudnnObject* object(int attribute) const { return one<const CudnnObject*>(attribute); }
    // For tensors.
    Dims shape() const { return all<int64_t>(902); }
    bool inner() const { return one<char>(907) != 0; }
    int type() const { return one<int>(901); }
};

thread_local std::string reason;
std::atomic<int> plans{0};  // that were built; those from a text do not count
int unknown_attribute = -1;

// The texts of plans, and the configurations that they mean. What is destroyed after the first text is kept.
struct PlanTexts {
    std::mutex mutex;
    std::map<std::string, const CudnnObject*> configs;
    std::vector<std::unique_ptr<CudnnObject>> destroyed;
} texts;

struct InvalidParameter : std::runtime_error {
    using runtime_error::runtime_error;
};
void require(bool ok, const char* message) {
    if (!ok) throw InvalidParameter(message);
}
template <class Work>
int guarded(Work work) {
    try {
        work();
        return 0;
    } catch (const InvalidParameter& error) {
        reason = error.what();
        return 2000;  // CUDNN_STATUS_BAD_PARAM
    }
}

size_t count_of(const Dims& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return static_cast<size_t>(count);
}
Dims position_of(size_t index, const Dims& shape) {
    Dims position(shape.size());
    auto left = static_cast<int64_t>(index);
    for (size_t i = shape.size(); i-- > 0; left /= shape[i]) position[i] = left % shape[i];
    return position;
}
// The index of an element in a tensor whose dims of extent 1 are broadcast.
size_t index_in(const Dims& position, const Dims& shape) {
    int64_t index = 0;
    for (size_t i = 0; i < shape.size(); ++i) index = index * shape[i] + (shape[i] == 1 ? 0 : position[i]);
    return static_cast<size_t>(index);
}

// float32, int32, bfloat16.
float read(const void* from, int64_t at, int type) {
    if (type == 0) return static_cast<const float*>(from)[at];
    if (type == 4) return static_cast<float>(static_cast<const int32_t*>(from)[at]);
    const uint32_t bits = uint32_t{static_cast<const uint16_t*>(from)[at]} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
void write(void* to, int64_t at, int type, float value) {
    if (type == 0) {
        static_cast<float*>(to)[at] = value;
        return;
    }
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    static_cast<uint16_t*>(to)[at] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

using Values = std::map<const CudnnObject*, std::vector<float>>;

float pointwise_value(const CudnnObject& how, float x, float b, bool t, const Dims& position) {
    switch (how.one<int>(0)) {
        case 0:
            return x + b;
        case 1:
            return x * b;
        case 6:
            return x / b;
        case 9:
            return x - b;
        case 13:
            return std::exp(x);
        case 15:
            return std::log(x);
        case 100: {
            const auto upper = static_cast<float>(how.one<double>(4));
            if (std::isnan(x)) return how.one<int>(2) == 1 ? x : 0;  // like the engines of the real library
            return std::min(std::max(x, 0.0f), upper > 0 ? upper : INFINITY);
        }
        case 303:
            return x >= b ? 1 : 0;
        case 501:
            return static_cast<float>(position[static_cast<size_t>(how.one<int64_t>(9))]);
        case 601:
            return t ? x : b;
        default:
            throw InvalidParameter("no such pointwise mode");
    }
}

void point(const CudnnObject& op, Values& values) {
    const CudnnObject *x = op.object(751), *b = op.object(752), *y = op.object(753), *t = op.object(758);
    const Dims shape = y->shape();
    std::vector<float> result(count_of(shape));
    for (size_t i = 0; i < result.size(); ++i) {
        const Dims position = position_of(i, shape);
        const auto at = [&](const CudnnObject* from) {
            return from == nullptr ? 0.0f : values.at(from)[index_in(position, from->shape())];
        };
        result[i] = pointwise_value(*op.object(750), at(x), at(b), at(t) != 0, position);
    }
    values[y] = result;
}

void multiply(const CudnnObject& op, Values& values) {
    const CudnnObject *a = op.object(1520), *b = op.object(1521), *y = op.object(1522);
    const Dims shape = y->shape(), left = a->shape(), right = b->shape();
    const int64_t group = left[1] / right[1];  // query heads per key head
    std::vector<float> result(count_of(shape));
    for (size_t i = 0; i < result.size(); ++i) {
        const Dims p = position_of(i, shape);
        for (int64_t k = 0; k < left[3]; ++k)
            result[i] += values.at(a)[index_in({p[0], p[1], p[2], k}, left)] *
                         values.at(b)[index_in({p[0], p[1] / group, k, p[3]}, right)];
    }
    values[y] = result;
}

void reduce(const CudnnObject& op, Values& values) {
    const CudnnObject *x = op.object(1610), *y = op.object(1611);
    const bool largest = op.object(1612)->one<int>(1600) == 3;
    const Dims from = x->shape(), shape = y->shape();
    std::vector<float> result(count_of(shape), largest ? -INFINITY : 0);
    for (size_t i = 0; i < count_of(from); ++i) {
        float& to = result[index_in(position_of(i, from), shape)];
        to = largest ? std::max(to, values.at(x)[i]) : to + values.at(x)[i];
    }
    values[y] = result;
}

// Two spatial dims, without groups.
void convolve(const CudnnObject& op, Values& values) {
    const CudnnObject *how = op.object(702), *w = op.object(703), *x = op.object(704), *y = op.object(705);
    const Dims in = x->shape(), kernel = w->shape(), shape = y->shape();
    const Dims dilation = how->all<int64_t>(102), stride = how->all<int64_t>(103),
               begin = how->all<int64_t>(105);
    std::vector<float> result(count_of(shape));
    for (size_t i = 0; i < result.size(); ++i) {
        const Dims p = position_of(i, shape), taps = {kernel[1], kernel[2], kernel[3]};
        for (size_t k = 0; k < count_of(taps); ++k) {
            const Dims tap = position_of(k, taps);
            const int64_t row = p[2] * stride[0] + tap[1] * dilation[0] - begin[0];
            const int64_t column = p[3] * stride[1] + tap[2] * dilation[1] - begin[1];
            if (row < 0 || column < 0 || row >= in[2] || column >= in[3]) continue;
            result[i] += values.at(x)[index_in({p[0], tap[0], row, column}, in)] *
                         values.at(w)[index_in({p[1], tap[0], tap[1], tap[2]}, kernel)];
        }
    }
    values[y] = result;
}

struct OperationKind {
    int op;
    std::vector<int> in;  // attributes that hold input tensors
    int out;
    void (*run)(const CudnnObject&, Values&);
};
const OperationKind kinds[] = {{10, {703, 704}, 705, convolve},
                               {13, {751, 752, 758}, 753, point},
                               {19, {1520, 1521}, 1522, multiply},
                               {22, {1610}, 1611, reduce}};
const OperationKind& kind_of(const CudnnObject& op) {
    for (const OperationKind& kind : kinds)
        if (kind.op == op.kind) return kind;
    throw InvalidParameter("no such operation");
}

// The tensors of a graph that are not intermediate.
std::set<const CudnnObject*> tensors_of(const CudnnObject& graph) {
    std::set<const CudnnObject*> entry;
    for (const CudnnObject* op : graph.all<const CudnnObject*>(801)) {
        std::vector<int> attributes = kind_of(*op).in;
        attributes.push_back(kind_of(*op).out);
        for (const int attribute : attributes)
            if (const CudnnObject* tensor = op->object(attribute); tensor != nullptr && !tensor->inner())
                entry.insert(tensor);
    }
    return entry;
}

void check_graph(const CudnnObject& graph) {
    std::set<int64_t> ids;
    for (const CudnnObject* tensor : tensors_of(graph))
        require(ids.insert(tensor->one<int64_t>(906)).second, "two tensors of one id");
    std::set<const CudnnObject*> result;
    for (const CudnnObject* op : graph.all<const CudnnObject*>(801)) {
        for (const int attribute : kind_of(*op).in)
            if (const CudnnObject* tensor = op->object(attribute); tensor != nullptr && tensor->inner())
                require(result.count(tensor) == 1, "an operation reads a tensor that no operation writes");
        result.insert(op->object(kind_of(*op).out));
    }
}

void check(const CudnnObject& object) {
    if (object.kind == 15) check_graph(object);
    if (object.kind == 17)
        require(!object.shape().empty() && object.shape().size() == object.all<int64_t>(903).size(),
                "_nbDims != _nbStrides");
    if (object.kind == 19) {
        const Dims a = object.object(1520)->shape(), b = object.object(1521)->shape(),
                   y = object.object(1522)->shape();
        require(a[3] == b[2] && a[2] == y[2] && b[3] == y[3] && a[1] % b[1] == 0,
                "shapes of a product do not fit");
    }
}

void execute(const CudnnObject& plan, const CudnnObject& pack) {
    const CudnnObject& graph = *plan.object(401)->object(201);
    const auto ids = pack.all<int64_t>(1000);
    const auto pointers = pack.all<void*>(1001);
    const auto tensors = tensors_of(graph);
    require(ids.size() == tensors.size() && pointers.size() == ids.size(), "the pack has other tensors");
    require(plan.one<int64_t>(402) == 0 || pack.one<void*>(1003) != nullptr, "no workspace");
    const auto each = [&](const CudnnObject* tensor, auto work) {
        const auto at = std::find(ids.begin(), ids.end(), tensor->one<int64_t>(906));
        require(at != ids.end(), "the pack lacks a tensor");
        void* const address = pointers[static_cast<size_t>(at - ids.begin())];
        const Dims shape = tensor->shape(), strides = tensor->all<int64_t>(903);
        for (size_t i = 0; i < count_of(shape); ++i) {
            const Dims position = position_of(i, shape);
            int64_t offset = 0;
            for (size_t d = 0; d < shape.size(); ++d) offset += position[d] * strides[d];
            work(i, address, offset);
        }
    };
    Values values;
    for (const CudnnObject* tensor : tensors) {
        std::vector<float> to(count_of(tensor->shape()));
        each(tensor, [&](size_t i, void* from, int64_t at) { to[i] = read(from, at, tensor->type()); });
        values[tensor] = to;
    }
    for (const CudnnObject* op : graph.all<const CudnnObject*>(801)) kind_of(*op).run(*op, values);
    const CudnnObject* const last = graph.all<const CudnnObject*>(801).back();
    const CudnnObject* const out = last->object(kind_of(*last).out);
    each(out, [&](size_t i, void* to, int64_t at) { write(to, at, out->type(), values.at(out)[i]); });
}

struct HostEngine {
    int64_t index;
    std::vector<int> notes;
    int64_t workspace;
};
const std::vector<HostEngine> engines = {{5, {0, 4}, 0}, {9, {0}, 0}, {2, {0}, 256}, {1, {0}, 0}};
const HostEngine& engine_of(const CudnnObject& object) {
    for (const HostEngine& engine : engines)
        if (engine.index == object.one<int64_t>(1301)) return engine;
    throw InvalidParameter("no such engine");
}

CudnnObject* object_of(void* object) { return static_cast<CudnnObject*>(object); }
template <class T>
void put(CudnnObject& object, int attribute, T value) {
    auto& bytes = object.values[attribute];
    bytes.resize(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
}

}  // namespace

extern "C" {

int simulated_plans() { return plans; }
void simulated_knows_not(int attribute) { unknown_attribute = attribute; }

size_t cudnnGetVersion() { return 91900; }
int cudnnCreate(void** handle) { return *handle = &plans, 0; }
int cudnnSetStream(void*, void*) { return 0; }
const char* cudnnGetErrorString(int result) {
    return result == 0 ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char* text, size_t room) {
    text[reason.copy(text, room - 1)] = '\0';
    reason.clear();
}
int cudnnBackendCreateDescriptor(int kind, void** object) { return *object = new CudnnObject(kind), 0; }
int cudnnBackendDestroyDescriptor(void* object) {
    std::unique_ptr<CudnnObject> last(object_of(object));
    const std::lock_guard<std::mutex> lock(texts.mutex);
    if (!texts.configs.empty()) texts.destroyed.push_back(std::move(last));
    return 0;
}
int cudnnBackendSetAttribute(void* object, int attribute, int type, int64_t count, const void* values) {
    return guarded([&] {
        constexpr int sizes[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 8, 4, 4, 4, 1, 1, 1, 1, 1, 1};
        require(attribute != unknown_attribute, "no such attribute");
        require(!object_of(object)->finished, "the descriptor is already finalized");
        for (int64_t i = 0; type == 15 && i < count; ++i) {
            const CudnnObject* const operand = static_cast<CudnnObject* const*>(values)[i];
            require(operand != nullptr && operand->finished, "a descriptor is used before it is finalized");
        }
        const auto* const bytes = static_cast<const char*>(values);
        object_of(object)->values[attribute].assign(bytes, bytes + count * sizes[type]);
        if (attribute == 405) {
            const std::lock_guard<std::mutex> lock(texts.mutex);
            const auto entry = texts.configs.find(std::string(bytes, static_cast<size_t>(count)));
            require(entry != texts.configs.end(), "the text is no plan");
            put(*object_of(object), 401, entry->second);
        }
    });
}
int cudnnBackendFinalize(void* object) {
    return guarded([&] {
        check(*object_of(object));
        if (object_of(object)->kind == 5) {
            const HostEngine& engine = engine_of(*object_of(object)->object(401));
            require(engine.index != 9, "this engine supports no plan");
            plans += object_of(object)->values.count(405) == 0 ? 1 : 0;
            put(*object_of(object), 402, engine.workspace);
        }
        object_of(object)->finished = true;
    });
}
int cudnnBackendGetAttribute(void* object, int attribute, int, int64_t room, int64_t* count, void* values) {
    return guarded([&] {
        const CudnnObject& from = *object_of(object);
        if (attribute == 202) {  // the configurations of a heuristic
            require(from.finished, "the heuristic is not finalized");
            *count = static_cast<int64_t>(engines.size());
            for (int64_t i = 0; i < room && i < *count; ++i) {
                CudnnObject& config = *static_cast<CudnnObject**>(values)[i];
                put(config, 201, from.object(201));
                put(config, 1301, engines[static_cast<size_t>(i)].index);
                config.finished = true;
            }
        } else if (attribute == 300) {
            put(**static_cast<CudnnObject**>(values), 1301, from.one<int64_t>(1301));
            *count = 1;
        } else if (attribute == 405) {
            const std::lock_guard<std::mutex> lock(texts.mutex);
            const std::string text = "{plan " + std::to_string(reinterpret_cast<uintptr_t>(&from)) + "}";
            texts.configs[text] = from.object(401);
            *count = static_cast<int64_t>(text.size());
            if (values != nullptr) text.copy(static_cast<char*>(values), static_cast<size_t>(room));
        } else if (attribute == 1303) {
            const std::vector<int>& notes = engine_of(from).notes;
            *count = static_cast<int64_t>(notes.size());
            std::copy(notes.begin(), notes.end(), static_cast<int*>(values));
        } else {
            const auto entry = from.values.find(attribute);
            require(entry != from.values.end(), "there is no such attribute");
            std::memcpy(values, entry->second.data(), entry->second.size());
        }
    });
}
int cudnnBackendExecute(void*, void* plan, void* pack) {
    return guarded([&] { execute(*object_of(plan), *object_of(pack)); });
}
}
