// cuda/libraries/nccl.cpp: collectives between GPUs by NCCL.
//
// The calls are queued on the caller's stream and can be captured into graphs. Options of a call: ranks,
// communicator (the id of an open one).
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "backends/cuda/libraries/vendor_library.h"
#include "runtime/collectives.h"

namespace xpurt::cuda {
namespace {

// Values of nccl.h, which are part of the stable ABI.
namespace nccl {

using Comm = void*;
struct UniqueId {
    char bytes[128];
};
constexpr int success = 0, in_progress = 7, sum = 0;

int data_type(ElementType type) {
    switch (type) {
        case ElementType::int32:
            return 2;
        case ElementType::int64:
            return 4;
        case ElementType::float16:
            return 6;
        case ElementType::float32:
            return 7;
        case ElementType::float64:
            return 8;
        case ElementType::bfloat16:
            return 9;
    }
    return -1;
}

}  // namespace nccl

#define XPURT_NCCL_SYMBOLS(X)                                                                \
    X(ncclGetVersion, ResultCode(int*))                                                      \
    X(ncclGetErrorString, const char*(int))                                                  \
    X(ncclGetLastError, const char*(nccl::Comm))                                             \
    X(ncclGetUniqueId, ResultCode(nccl::UniqueId*))                                          \
    X(ncclCommInitRank, ResultCode(nccl::Comm*, int, nccl::UniqueId, int))                   \
    X(ncclCommAbort, ResultCode(nccl::Comm))                                                 \
    X(ncclCommGetAsyncError, ResultCode(nccl::Comm, int*))                                   \
    X(ncclAllReduce, ResultCode(const void*, void*, size_t, int, int, nccl::Comm, CUstream)) \
    X(ncclAllGather, ResultCode(const void*, void*, size_t, int, nccl::Comm, CUstream))      \
    X(ncclReduceScatter, ResultCode(const void*, void*, size_t, int, int, nccl::Comm, CUstream))

struct NcclApi {
#define XPURT_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
    XPURT_NCCL_SYMBOLS(XPURT_MEMBER)
#undef XPURT_MEMBER

    explicit NcclApi(const Library& library) {
        size_t index = 0;
#define XPURT_FILL(name, type) name = reinterpret_cast<std::add_pointer_t<type>>(library.address(index++));
        XPURT_NCCL_SYMBOLS(XPURT_FILL)
#undef XPURT_FILL
    }

    Status failed(const char* call, int result, nccl::Comm comm) const {
        std::string message = std::string(call) + ": " + ncclGetErrorString(result);
        if (const char* const detail = ncclGetLastError(comm); detail != nullptr && *detail != '\0')
            message += std::string(": ") + detail;
        return {Code::call_failed, message, "Set NCCL_DEBUG=WARN to see NCCL's own messages."};
    }
    std::string version() const {
        int v = 0;
        if (ncclGetVersion(&v) != nccl::success) return "";
        return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
               std::to_string(v % 100);
    }
};

const NcclApi* nccl_api(Status* reason) { return load_api<NcclApi>(nccl_library(), reason); }

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(const NcclApi& api, std::shared_ptr<Device> device, nccl::Comm comm, int rank, int size)
        : Communicator(rank, size), api_(api), device_(std::move(device)), comm_(comm) {}

    // Aborting does not wait for other ranks, which may have ended.
    ~NcclCommunicator() override { abort("the communicator is closed"); }

    int device() const noexcept override { return device_->index; }
    std::string implementation(Collective collective) const override {
        const char* const name = collective == Collective::all_reduce   ? "ncclAllReduce"
                                 : collective == Collective::all_gather ? "ncclAllGather"
                                                                        : "ncclReduceScatter";
        return std::string(name) + " of NCCL " + api_.version() + ", rank " + std::to_string(rank()) +
               " of " + std::to_string(size());
    }

    Status run(Collective collective, const void* in, void* out, size_t count, ElementType type,
               void* stream) override {
        const ScopedContext current(*device_);
        const std::lock_guard<std::timed_mutex> lock(in_use_);
        XPURT_TRY(reason());
        auto* const on = static_cast<CUstream>(stream);
        const int kind = nccl::data_type(type);
        int result = nccl::success;
        switch (collective) {
            case Collective::all_reduce:
                result = api_.ncclAllReduce(in, out, count, kind, nccl::sum, comm_, on);
                break;
            case Collective::all_gather:
                result = api_.ncclAllGather(in, out, count, kind, comm_, on);
                break;
            case Collective::reduce_scatter:
                result = api_.ncclReduceScatter(in, out, count / static_cast<size_t>(size()), kind, nccl::sum,
                                                comm_, on);
                break;
        }
        return result == nccl::success ? Status{} : api_.failed(name_of(collective), result, comm_);
    }

    Status check() override {
        XPURT_TRY(reason());
        const std::unique_lock<std::timed_mutex> lock(in_use_, std::try_to_lock);
        if (!lock.owns_lock() || comm_ == nullptr) return reason();
        int result = nccl::success;
        if (const int asked = api_.ncclCommGetAsyncError(comm_, &result); asked != nccl::success)
            return api_.failed("ncclCommGetAsyncError", asked, comm_);
        if (result == nccl::success || result == nccl::in_progress) return {};
        return api_.failed("a collective", result, comm_);
    }

    void abort(const std::string& reason) noexcept override {
        {
            const std::lock_guard<std::mutex> lock(reason_mutex_);
            if (!aborted_.ok()) return;
            aborted_ = {Code::call_failed, reason, "Make a new group of ranks."};
        }
        const ScopedContext current(*device_);
        // A call that another thread is in can wait for a rank that has ended; NCCL lets it return.
        const std::unique_lock<std::timed_mutex> lock(in_use_, std::chrono::seconds(1));
        if (const int result = api_.ncclCommAbort(comm_); result != nccl::success)
            log_failure(
                {Code::call_failed, std::string("ncclCommAbort: ") + api_.ncclGetErrorString(result), ""});
    }

  private:
    Status reason() {
        const std::lock_guard<std::mutex> lock(reason_mutex_);
        return aborted_;
    }

    const NcclApi& api_;
    const std::shared_ptr<Device> device_;
    const nccl::Comm comm_;
    std::timed_mutex in_use_;
    std::mutex reason_mutex_;
    Status aborted_;
};

class NcclKernel final : public StreamKernel {
  public:
    NcclKernel(const Device& device, CollectiveCall call) : device_(device), call_(std::move(call)) {}

    Status launch(void* const* args, void*, CUstream stream) const override {
        if (call_.communicator != nullptr)
            return call_.communicator->run(call_.collective, args[0], args[1], call_.count, call_.type,
                                           stream);
        if (args[0] == args[1]) return {};
        const auto address = [](void* memory) {
            return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(memory));
        };
        return device_.check(
            device_.driver.cuMemcpyDtoDAsync_v2(address(args[1]), address(args[0]), call_.bytes(), stream),
            "cuMemcpyDtoDAsync_v2");
    }
    std::string implementation() const override {
        return call_.communicator == nullptr ? "a copy: the group has one rank"
                                             : call_.communicator->implementation(call_.collective);
    }

  private:
    const Device& device_;  // never closed
    const CollectiveCall call_;
};

class NcclLibrary final : public StreamLibrary {
  public:
    std::string version() const override {
        const NcclApi* const api = nccl_api(nullptr);
        return api == nullptr ? "" : api->version();
    }
    Result<std::unique_ptr<StreamKernel>> prepare(const KernelCall& call, Device& device) override {
        XPURT_ASSIGN_OR_RETURN(auto checked, CollectiveCall::of(call, device.index));
        return std::unique_ptr<StreamKernel>(std::make_unique<NcclKernel>(device, std::move(checked)));
    }
};

}  // namespace

std::unique_ptr<StreamLibrary> make_nccl() { return std::make_unique<NcclLibrary>(); }

}  // namespace xpurt::cuda

namespace xpurt {

using namespace cuda;

Library& nccl_library() {
    static Library& library = *new Library({
        "nccl",
        "NVIDIA NCCL",
        "XPU_LIBNCCL",
        {"libnccl.so.2", "libnccl.so"},
        {
#define XPURT_ROW(name, type) {#name, 2140, Need::required},
            XPURT_NCCL_SYMBOLS(XPURT_ROW)
#undef XPURT_ROW
        },
        "pip install 'xpuruntime[nccl]' brings it, and so do PyTorch's CUDA packages.",
    });
    return library;
}

Result<std::string> nccl_version() {
    Status reason;
    const NcclApi* const api = nccl_api(&reason);
    if (api == nullptr) return reason;
    return api->version();
}

Result<std::string> nccl_group_id() {
    Status reason;
    const NcclApi* const api = nccl_api(&reason);
    if (api == nullptr) return reason;
    nccl::UniqueId id{};
    if (const int result = api->ncclGetUniqueId(&id); result != nccl::success)
        return api->failed("ncclGetUniqueId", result, nullptr);
    return std::string(id.bytes, sizeof id.bytes);
}

Result<std::shared_ptr<Communicator>> nccl_communicator(int device, int rank, int size,
                                                        const std::string& group_id, double timeout_s) {
    Status reason;
    const NcclApi* const api = nccl_api(&reason);
    if (api == nullptr) return reason;
    nccl::UniqueId id{};
    if (group_id.size() != sizeof id.bytes)
        return Status{Code::invalid, "a group id has " + std::to_string(sizeof id.bytes) + " bytes", ""};
    std::memcpy(id.bytes, group_id.data(), sizeof id.bytes);
    XPURT_ASSIGN_OR_RETURN(auto opened, Device::open(device));

    // ncclCommInitRank waits for all ranks without a limit, so it runs in a thread of its own, which outlives
    // this call if a rank does not come.
    struct Joining {
        std::mutex mutex;
        std::condition_variable ended;
        bool done = false;
        int result = 0;
        nccl::Comm comm = nullptr;
    };
    const auto joining = std::make_shared<Joining>();
    std::thread([joining, api, opened, id, rank, size] {
        const ScopedContext current(*opened);
        nccl::Comm comm = nullptr;
        const int result = api->ncclCommInitRank(&comm, size, id, rank);
        const std::lock_guard<std::mutex> lock(joining->mutex);
        joining->result = result;
        joining->comm = comm;
        joining->done = true;
        joining->ended.notify_all();
    }).detach();
    std::unique_lock<std::mutex> lock(joining->mutex);
    const auto limit = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
    if (!joining->ended.wait_for(lock, limit, [&] { return joining->done; }))
        return Status{Code::call_failed,
                      "rank " + std::to_string(rank) + " waited " + std::to_string(limit.count() / 1000) +
                          " s for the other " + std::to_string(size - 1) + " ranks to join",
                      "Start all ranks, each with another rank number."};
    if (joining->result != nccl::success) return api->failed("ncclCommInitRank", joining->result, nullptr);
    auto communicator =
        std::make_shared<NcclCommunicator>(*api, std::move(opened), joining->comm, rank, size);
    register_communicator(communicator);
    return std::shared_ptr<Communicator>(std::move(communicator));
}

}  // namespace xpurt
