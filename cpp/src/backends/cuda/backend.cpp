// cuda/backend.cpp: the Backend interface for a CUDA device.
#include <algorithm>
#include <mutex>
#include <thread>

#include "backends/cuda/run_state.h"
#include "base/elf.h"
#include "xpurt/cuda.h"

namespace xpurt {
namespace cuda {
namespace {

CUdeviceptr address_of(Memory memory) { return reinterpret_cast<uintptr_t>(memory); }

class CudaBackendImpl final : public CudaBackend {
  public:
    explicit CudaBackendImpl(std::shared_ptr<Device> device) : device_(std::move(device)) {}

    const char* name() const noexcept override { return "cuda"; }
    int index() const noexcept override { return device_->index; }
    int capability() const noexcept override { return device_->capability; }
    const std::string& device_name() const noexcept override { return device_->name; }
    bool is_asynchronous() const noexcept override { return true; }
    bool supports_observation() const noexcept override { return true; }

    // ---- memory

    Result<Memory> allocate(size_t bytes) override {
        XPURT_ASSIGN_OR_RETURN(auto address, allocate_now(bytes));
        return reinterpret_cast<Memory>(static_cast<uintptr_t>(address));
    }
    void release(Memory memory) noexcept override { device_->release(address_of(memory), device_->home); }

    Result<std::shared_ptr<CudaBlock>> block(size_t bytes, const StreamOrder& order) override {
        XPURT_ASSIGN_OR_RETURN(auto address,
                               order.on_caller_stream
                                   ? device_->allocate(bytes, static_cast<CUstream>(order.stream))
                                   : allocate_now(bytes));
        auto block = std::make_shared<CudaBlock>(device_, address, bytes);
        if (order.on_caller_stream) block->used_on(order.stream);
        return block;
    }

    Status upload(uint64_t to, const void* from, size_t bytes) override {
        if (bytes == 0) return {};
        const ScopedContext current(*device_);
        XPURT_TRY(device_->check(device_->driver.cuMemcpyHtoDAsync_v2(to, from, bytes, device_->home),
                                 "cuMemcpyHtoDAsync_v2"));
        return synchronize_home();
    }
    Status download(void* to, uint64_t from, size_t bytes) override {
        if (bytes == 0) return {};
        const ScopedContext current(*device_);
        XPURT_TRY(device_->check(device_->driver.cuMemcpyDtoHAsync_v2(to, from, bytes, device_->home),
                                 "cuMemcpyDtoHAsync_v2"));
        return synchronize_home();
    }
    Status clear(uint64_t memory, size_t bytes) override {
        if (bytes == 0) return {};
        const ScopedContext current(*device_);
        XPURT_TRY(device_->check(device_->driver.cuMemsetD8Async(memory, 0, bytes, device_->home),
                                 "cuMemsetD8Async"));
        return synchronize_home();
    }

    Result<bool> reaches_peer(CudaBackend& peer) override {
        return device_->reaches_peer(*static_cast<CudaBackendImpl&>(peer).device_);
    }
    Status copy_from_peer(uint64_t to, void* stream, CudaBackend& peer, uint64_t from, void* peer_stream,
                          size_t bytes) override {
        if (bytes == 0) return {};
        return device_->copy_from_peer(to, static_cast<CUstream>(stream),
                                       *static_cast<CudaBackendImpl&>(peer).device_, from,
                                       static_cast<CUstream>(peer_stream), bytes);
    }

    Status copy(Memory to, size_t to_offset, Memory from, size_t from_offset, size_t bytes,
                RunState* state) override {
        if (bytes == 0) return {};
        const ScopedContext current(*device_);
        const CUstream stream = state == nullptr ? device_->home : of(*state).current();
        const CUresult result = device_->driver.cuMemcpyDtoDAsync_v2(
            address_of(to) + to_offset, address_of(from) + from_offset, bytes, stream);
        return device_->check(result, "cuMemcpyDtoDAsync_v2");
    }
    Status send(Memory to, size_t offset, const void* from, size_t bytes, RunState& state) override {
        return of(state).send(address_of(to) + offset, from, bytes);
    }
    Status fetch(void* to, Memory from, size_t offset, size_t bytes, RunState& state) override {
        return of(state).fetch(to, address_of(from) + offset, bytes);
    }

    // ---- kernels

    Result<std::shared_ptr<const Module>> load(const void* bytes, size_t size) override {
        if (const std::string damage = elf_damage(bytes, size); !damage.empty())
            return Status{Code::unreadable, "the program's binary is not a CUBIN: " + damage,
                          "Compile the model again."};
        return load_cubin(device_, bytes);
    }

    Result<std::unique_ptr<PreparedKernel>> prepare(const KernelCall& call,
                                                    const std::shared_ptr<const Module>& module) override {
        const ScopedContext current(*device_);
        auto prepared = std::make_unique<CudaKernel>();
        if (!call.library.empty()) {
            StreamLibrary* const library = find_stream_library(call.library);
            if (library == nullptr)
                return Status{Code::not_found, "kernel " + call.kernel + " needs the library " + call.library,
                              "Install it, or compile with a policy that forbids the kernel."};
            XPURT_ASSIGN_OR_RETURN(auto kernel, library->prepare(call, *device_));
            prepared->library = std::move(kernel);
        } else if (call.tasks > 0) {
            if (module == nullptr)
                return Status{Code::symbol_missing, "the program has no CUBIN for " + call.symbol,
                              "Compile the model again."};
            XPURT_ASSIGN_OR_RETURN(auto launch, launch_of(*device_, call));
            XPURT_ASSIGN_OR_RETURN(auto kernel, kernel_of(*device_, call, *module));
            prepared->kernel = kernel;
            prepared->launch = launch;
            prepared->module = module;
            if (call.scratch_bytes > 0) prepared->reports = reports_of(*module);
        }
        return std::unique_ptr<PreparedKernel>(std::move(prepared));
    }

    // cuDNN needs 0.1 to 0.5 s for each plan that it compiles. Each thread has a handle with 9 MB on the
    // device, hence the limit. Handles stay open: destroying one returns no memory.
    int preparing_threads() const override {
        constexpr unsigned most = 8;
        return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, most));
    }

    Result<std::unique_ptr<Recording>> record(const std::vector<RecordedCall>& calls) override {
        auto recording = std::make_unique<CudaRecording>();
        if (!calls.empty()) recording->first_arg = calls.front().first_arg;
        for (const RecordedCall& item : calls) {
            const auto& kernel = static_cast<const CudaKernel&>(*item.kernel);
            recording->calls.push_back({&kernel, item.call, item.first_arg, item.workspace_offset});
            recording->args += item.call->args.size();
            recording->has_workspace |= kernel.workspace_bytes() > 0;
            if (kernel.reports != nullptr) {
                recording->reports = kernel.reports;
                recording->reporters.push_back(item.call);
            }
        }
        return std::unique_ptr<Recording>(std::move(recording));
    }

    // ---- runs

    Result<std::unique_ptr<RunState>> open() override { return CudaRunState::open(device_, watch_list_); }
    uint64_t capture_of(const StreamOrder& order) override {
        return capture_id(device_->driver, static_cast<CUstream>(order.stream));
    }
    Status begin(RunState& state, const StreamOrder& order) override { return of(state).begin(order); }
    Status end(RunState& state) override { return of(state).end(); }
    Status mark(RunState& state, std::unique_ptr<StreamMark>& mark) override {
        if (mark == nullptr) {
            XPURT_ASSIGN_OR_RETURN(auto event, CudaEvent::make(device_, false));
            mark = std::make_unique<CudaMark>(std::move(event));
        }
        return event_of(*mark).record(stream_of(state));
    }
    Status follow(RunState& state, const StreamMark& mark) override {
        return event_of(mark).wait(stream_of(state));
    }
    Status wait(const StreamMark& mark) override { return event_of(mark).synchronize(); }

    Status submit(const Recording& recording, const Submission& submission) override {
        std::string declined;
        CudaCounters counted;
        Status status =
            of(*submission.state)
                .submit(static_cast<const CudaRecording&>(recording), submission, declined, counted);
        const std::lock_guard<std::mutex> lock(mutex_);
        counters_.captures += counted.captures;
        counters_.updates += counted.updates;
        counters_.replays += counted.replays;
        counters_.plain += counted.plain;
        if (!declined.empty() && std::find(declined_.begin(), declined_.end(), declined) == declined_.end())
            declined_.push_back(std::move(declined));
        return status;
    }

    Status synchronize(RunState* state) override {
        if (state != nullptr) return of(*state).synchronize();
        const ScopedContext current(*device_);
        XPURT_TRY(device_->check(device_->driver.cuCtxSynchronize(), "cuCtxSynchronize"));
        return reported();
    }
    Status reported() override { return watch_list_->check(); }

    // ---- objects for callers

    Result<std::unique_ptr<CudaStream>> stream() override {
        const ScopedContext current(*device_);
        CUstream handle = nullptr;
        XPURT_TRY(
            device_->check(device_->driver.cuStreamCreate(&handle, stream_non_blocking), "cuStreamCreate"));
        return std::make_unique<CudaStream>(device_, handle, true);
    }
    std::unique_ptr<CudaStream> wrap(void* handle) override {
        return std::make_unique<CudaStream>(device_, handle, false);
    }
    Result<std::unique_ptr<CudaEvent>> event(bool timing) override {
        return CudaEvent::make(device_, timing);
    }

    MemoryStatistics memory() override { return device_->statistics(); }
    MemoryStatistics pinned() override { return device_->pinned().statistics(); }
    void* allocate_pinned(size_t bytes) noexcept override { return device_->allocate_pinned(bytes); }
    void release_pinned(void* block) noexcept override { device_->release_pinned(block); }
    int64_t trim() override { return device_->trim() + device_->pinned().trim(); }
    CudaCounters counters() const override {
        const std::lock_guard<std::mutex> lock(mutex_);
        return counters_;
    }
    std::vector<std::string> declined() const override {
        const std::lock_guard<std::mutex> lock(mutex_);
        return declined_;
    }

  private:
    struct CudaMark final : StreamMark {
        explicit CudaMark(std::unique_ptr<CudaEvent> made) : event(std::move(made)) {}
        const std::unique_ptr<CudaEvent> event;
    };
    static const CudaEvent& event_of(const StreamMark& mark) {
        return *static_cast<const CudaMark&>(mark).event;
    }
    CudaStream stream_of(RunState& state) const { return {device_, of(state).current(), false}; }
    static CudaRunState& of(RunState& state) { return static_cast<CudaRunState&>(state); }

    // Allocate memory that any stream may use immediately.
    Result<CUdeviceptr> allocate_now(size_t bytes) {
        const RelaxedCapture relaxed(device_->driver);
        XPURT_ASSIGN_OR_RETURN(auto prepared, device_->allocate(bytes, device_->home));
        const ScopedContext current(*device_);
        XPURT_TRY(synchronize_home());
        return prepared;
    }
    Status synchronize_home() const {
        return device_->check(device_->driver.cuStreamSynchronize(device_->home), "cuStreamSynchronize");
    }

    const std::shared_ptr<Device> device_;
    const std::shared_ptr<ReportWatchList> watch_list_ = std::make_shared<ReportWatchList>();
    mutable std::mutex mutex_;
    CudaCounters counters_;
    std::vector<std::string> declined_;
};

}  // namespace
}  // namespace cuda

Result<std::shared_ptr<CudaBackend>> cuda_backend(int index, Library& library) {
    XPURT_ASSIGN_OR_RETURN(auto device, cuda::Device::open(index, library));
    return std::shared_ptr<CudaBackend>(std::make_shared<cuda::CudaBackendImpl>(std::move(device)));
}

}  // namespace xpurt
