// runtime/fault_injection.cpp: deliberate errors in the outputs of kernels.
#include "fault_injection.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace xpurt {
namespace {

size_t element_bytes(const std::string& dtype) {
    const size_t digit = dtype.find_first_of("0123456789");
    const int bits = digit == std::string::npos ? 8 : std::atoi(dtype.c_str() + digit);
    return static_cast<size_t>(std::max(bits, 8)) / 8;
}

// Change the middle element by more than any rounding error could.
template <typename T>
void move_element(T* values, size_t count) {
    T largest = 0;
    for (size_t i = 0; i < count; ++i)
        if (std::isfinite(values[i])) largest = std::max(largest, std::abs(values[i]));
    values[count / 2] += 2 * largest + 1;
}

class FaultInjectingKernel final : public LibraryKernel {
  public:
    FaultInjectingKernel(Fault fault, const KernelCall& call, KernelFunction function,
                         std::unique_ptr<LibraryKernel> library)
        : fault_(fault), call_(call), function_(function), library_(std::move(library)) {
        const ArgumentSpec& spec = call.specs[static_cast<size_t>(call.inputs)];
        dtype_ = spec.dtype;
        size_ = element_bytes(spec.dtype);
        std::vector<std::pair<int64_t, int64_t>> dims;  // (stride, extent), outermost first
        for (size_t d = 0; d < spec.shape.size(); ++d) {
            count_ *= static_cast<size_t>(spec.shape[d]);
            if (spec.shape[d] > 1) dims.emplace_back(spec.strides[d], spec.shape[d]);
        }
        std::sort(dims.rbegin(), dims.rend());
        if (!dims.empty()) columns_ = static_cast<size_t>(dims.back().second);
        if (dims.size() > 1) rows_ = static_cast<size_t>(dims[dims.size() - 2].second);
    }

    Status execute(void* const* args, void* scratch) const override {
        if (library_) {
            XPURT_TRY(library_->execute(args, scratch));
        } else {
            function_(args, call_.params.data(), 0, call_.tasks, scratch);
        }
        if (count_ > 0) spoil(static_cast<char*>(args[call_.inputs]));
        return {};
    }
    std::string implementation() const override { return "fault injection"; }
    int64_t scratch_bytes() const override { return library_ ? library_->scratch_bytes() : 0; }

  private:
    void spoil(char* output) const {
        if (fault_ == Fault::element) return move(output);
        if (fault_ == Fault::tile) {
            const size_t tile = std::min<size_t>(64, (count_ + 1) / 2);
            std::memset(output + (count_ - tile) / 2 * size_, 0, tile * size_);
            return;
        }
        // A wrong stride: exchange rows and columns of the last matrix, or reverse a vector.
        const std::vector<char> correct(output, output + rows_ * columns_ * size_);
        const size_t last = rows_ * columns_ - 1;
        for (size_t i = 0; i <= last; ++i) {
            const size_t from = rows_ > 1 ? (i % rows_) * columns_ + i / rows_ : last - i;
            std::memcpy(output + i * size_, correct.data() + from * size_, size_);
        }
    }

    void move(char* output) const {
        if (dtype_ == "float32") return move_element(reinterpret_cast<float*>(output), count_);
        if (dtype_ == "float64") return move_element(reinterpret_cast<double*>(output), count_);
        output[(count_ / 2 + 1) * size_ - 1] ^= 0x40;  // the top bit of a float's exponent
    }

    const Fault fault_;
    const KernelCall& call_;
    const KernelFunction function_;
    const std::unique_ptr<LibraryKernel> library_;
    std::string dtype_;
    size_t size_ = 0, count_ = 1, rows_ = 1, columns_ = 1;
};

}  // namespace

Fault fault_for(const KernelCall& call) {
    const char* const text = std::getenv("XPU_TEST_WRONG_KERNEL");
    const size_t outputs = call.args.size() - static_cast<size_t>(call.inputs);
    if (text == nullptr || outputs == 0 || call.specs.size() != call.args.size()) return Fault::none;
    const std::string request = text;
    const size_t colon = request.rfind(':');
    if (colon == std::string::npos) return Fault::none;
    const std::string target = request.substr(0, colon), fault = request.substr(colon + 1);
    const bool by_node =
        call.nodes == target ||
        (target.rfind("node ", 0) == 0 && call.nodes.rfind("nodes " + target.substr(5) + " and ", 0) == 0);
    if (target != call.kernel && target != call.kernel + "@" + std::to_string(call.position) && !by_node)
        return Fault::none;
    if (fault == "element") return Fault::element;
    if (fault == "tile") return Fault::tile;
    return fault == "stride" ? Fault::stride : Fault::none;
}

std::string symbol_for(const KernelCall& call) {
    const char* const text = std::getenv("XPU_TEST_SWAP_KERNEL");
    const std::string request = text == nullptr ? "" : text, position = std::to_string(call.position) + "=";
    return request.rfind(position, 0) == 0 ? request.substr(position.size()) : call.symbol;
}

std::unique_ptr<LibraryKernel> inject_fault(Fault fault, const KernelCall& call, KernelFunction function,
                                            std::unique_ptr<LibraryKernel> library) {
    return std::make_unique<FaultInjectingKernel>(fault, call, function, std::move(library));
}

}  // namespace xpurt
