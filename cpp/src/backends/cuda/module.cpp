// cuda/module.cpp: CUBINs, and launch parameters from a call's options.
#include "backends/cuda/module.h"

#include <utility>

namespace xpurt::cuda {
namespace {

class CubinModule final : public Module {
  public:
    CubinModule(std::shared_ptr<Device> device, CUlibrary library)
        : device_(std::move(device)), library_(library) {}
    ~CubinModule() override {
        const ScopedContext current(*device_);
        device_->log_if_failed(device_->driver.cuLibraryUnload(library_), "cuLibraryUnload");
    }
    void* symbol(const char* name) const noexcept override {
        const ScopedContext current(*device_);
        CUkernel kernel = nullptr;
        return device_->driver.cuLibraryGetKernel(&kernel, library_, name) == 0 ? kernel : nullptr;
    }
    const char* mapped_by() const noexcept override { return "cuda"; }
    Status init_reports() {
        auto opened = KernelReports::open(device_, library_);
        reports_ = std::move(opened.value);
        return std::move(opened.status);
    }
    const std::shared_ptr<KernelReports>& reports() const noexcept { return reports_; }

  private:
    const std::shared_ptr<Device> device_;
    const CUlibrary library_;
    std::shared_ptr<KernelReports> reports_;
};

template <class T>
const T* option(const KernelCall& call, const char* name) {
    const auto entry = call.options.find(name);
    return entry == call.options.end() ? nullptr : std::get_if<T>(&entry->second);
}

Status invalid_call(const KernelCall& call, const std::string& reason) {
    return {Code::invalid, "kernel " + call.kernel + " (" + call.symbol + ") " + reason,
            "Compile the model again; if it persists, report the program."};
}

// Read an option of three sizes from 1 to `limits`. Return false if it is present and invalid.
bool read_sizes(const KernelCall& call, const char* name, const int64_t (&limits)[3], unsigned* x,
                unsigned* y, unsigned* z) {
    const auto* const values = option<std::vector<int64_t>>(call, name);
    if (values == nullptr) return true;
    if (values->size() != 3) return false;
    unsigned* const to[] = {x, y, z};
    for (size_t i = 0; i < 3; ++i) {
        if ((*values)[i] < 1 || (*values)[i] > limits[i]) return false;
        *to[i] = static_cast<unsigned>((*values)[i]);
    }
    return true;
}

// True if the driver can encode a tensor map of the matrix, which is one of so many arguments.
bool is_encodable(const TiledMatrix& m, size_t arguments) {
    constexpr int64_t max_rows = int64_t{1} << 31, max_stride = int64_t{1} << 38, max_tile_rows = 256;
    if (m.argument < 0 || m.argument >= static_cast<int64_t>(arguments)) return false;
    if (m.rows < 1 || m.rows > max_rows || m.columns < 1 || m.columns > max_rows) return false;
    if (m.row_stride < m.columns || m.row_stride > max_stride || m.row_stride % 8 != 0) return false;
    return m.tile_rows >= 1 && m.tile_rows <= max_tile_rows;
}

// Read the matrices of tensor maps.
Status read_matrices(const KernelCall& call, std::vector<TiledMatrix>* matrices) {
    const auto* const values = option<std::vector<int64_t>>(call, "tensor_maps");
    if (values == nullptr) return {};
    if (values->size() % 5 != 0)
        return invalid_call(call, "has tensor maps of " + std::to_string(values->size()) +
                                      " numbers, which is no multiple of five");
    for (size_t i = 0; i < values->size(); i += 5) {
        const int64_t* const v = values->data() + i;
        const TiledMatrix m{v[0], v[1], v[2], v[3], v[4]};
        if (!is_encodable(m, call.args.size())) {
            std::string got;
            for (size_t k = 0; k < 5; ++k) got += (k == 0 ? "" : ", ") + std::to_string(v[k]);
            return invalid_call(call,
                                "has a tensor map that no device can encode: argument, rows, columns, row "
                                "stride and rows of a tile are " +
                                    got);
        }
        matrices->push_back(m);
    }
    return {};
}

Status encode(const Device& device, const KernelCall& call, const TiledMatrix& matrix, void* address,
              CUtensorMap* map) {
    *map = {};
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return {};
    const uint64_t sizes[2] = {static_cast<uint64_t>(matrix.columns), static_cast<uint64_t>(matrix.rows)};
    const uint64_t stride = static_cast<uint64_t>(matrix.row_stride) * 2;
    const unsigned tile[2] = {64, static_cast<unsigned>(matrix.tile_rows)}, steps[2] = {1, 1};
    const CUresult result = device.driver.cuTensorMapEncodeTiled(
        map, map_uint16, 2, address, sizes, &stride, tile, steps, 0, map_swizzle_128, map_l2_128, 0);
    Status status = device.check(result, "cuTensorMapEncodeTiled");
    if (!status.ok()) status.message = text_of(call) + ": " + status.message;
    return status;
}

}  // namespace

Result<void**> kernel_params(const Device& device, const KernelCall& call, const LaunchParams& launch,
                             void* const* args) {
    thread_local std::vector<void*> list;
    thread_local std::vector<CUtensorMap> maps;
    list.clear();
    for (size_t i = 0; i < call.args.size(); ++i) list.push_back(const_cast<void**>(args + i));
    for (const uint64_t& param : call.params) list.push_back(const_cast<uint64_t*>(&param));
    maps.resize(launch.matrices.size());
    for (size_t i = 0; i < maps.size(); ++i) {
        const TiledMatrix& matrix = launch.matrices[i];
        XPURT_TRY(encode(device, call, matrix, args[matrix.argument], &maps[i]));
        list.push_back(&maps[i]);
    }
    return list.data();
}

Result<std::shared_ptr<const Module>> load_cubin(std::shared_ptr<Device> device, const void* bytes) {
    const ScopedContext current(*device);
    CUlibrary library = nullptr;
    const CUresult result =
        device->driver.cuLibraryLoadData(&library, bytes, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (Status status = device->check(result, "cuLibraryLoadData"); !status.ok()) {
        status.advice = "The binary is for another device than " + device->name + " (sm_" +
                        std::to_string(device->capability) + ") or is damaged: compile the model again.";
        return status;
    }
    const auto module = std::make_shared<CubinModule>(std::move(device), library);
    XPURT_TRY(module->init_reports());
    return std::shared_ptr<const Module>(module);
}

std::shared_ptr<KernelReports> reports_of(const Module& module) {
    return static_cast<const CubinModule&>(module).reports();
}

Result<LaunchParams> launch_of(const Device& device, const KernelCall& call) {
    LaunchParams params;
    CUlaunchConfig& config = params.config;
    if (!read_sizes(call, "grid", {2147483647, 65535, 65535}, &config.gridDimX, &config.gridDimY,
                    &config.gridDimZ))
        return invalid_call(call, "has a grid that exceeds the device limits");
    if (!read_sizes(call, "block", {1024, 1024, 64}, &config.blockDimX, &config.blockDimY,
                    &config.blockDimZ) ||
        int64_t{config.blockDimX} * config.blockDimY * config.blockDimZ > 1024)
        return invalid_call(call, "has a block that exceeds the device limits");
    if (const auto* const shared = option<int64_t>(call, "shared"); shared != nullptr) {
        if (*shared < 0 || *shared > device.max_shared_bytes)
            return invalid_call(call, "asks for " + std::to_string(*shared) +
                                          " bytes of shared memory, the device has " +
                                          std::to_string(device.max_shared_bytes));
        config.sharedMemBytes = static_cast<unsigned>(*shared);
    }
    CUlaunchAttribute cluster;
    cluster.id = cluster_dimension;
    if (option<std::vector<int64_t>>(call, "cluster") != nullptr) {
        unsigned* const dims = cluster.value.clusterDim;
        if (!read_sizes(call, "cluster", {16, 16, 16}, dims, dims + 1, dims + 2))
            return invalid_call(call, "has a cluster that exceeds the device limits");
        params.attributes[params.attribute_count++] = cluster;
    }
    XPURT_TRY(read_matrices(call, &params.matrices));
    const bool* const pdl = option<bool>(call, "pdl");
    if (pdl != nullptr && *pdl && device.capability >= 90) {
        CUlaunchAttribute overlap;
        overlap.id = programmatic_serialization;
        overlap.value.programmaticStreamSerializationAllowed = 1;
        params.attributes[params.attribute_count++] = overlap;
    }
    return params;
}

Result<CUkernel> kernel_of(const Device& device, const KernelCall& call, const Module& module) {
    const auto kernel = static_cast<CUkernel>(module.symbol(call.symbol.c_str()));
    if (kernel == nullptr)
        return Status{Code::symbol_missing, "the program's CUBIN has no " + call.symbol,
                      "Compile the model again."};
    const auto* const shared = option<int64_t>(call, "shared");
    if (shared != nullptr && *shared > 0) {
        const CUresult result = device.driver.cuKernelSetAttribute(
            max_dynamic_shared, static_cast<int>(*shared), kernel, device.handle);
        XPURT_TRY(device.check(result, "cuKernelSetAttribute"));
    }
    return kernel;
}

}  // namespace xpurt::cuda
