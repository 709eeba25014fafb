// xpurt/cuda.h: the CUDA backend, and the objects that callers hold of a device: memory blocks, streams and
// events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "xpurt/backend.h"
#include "xpurt/memory.h"

namespace xpurt {

namespace cuda {
class Device;
}

// A block of device memory. It is freed when the last owner releases it, after the work that uses it. A
// caller that queues such work on a stream and does not wait must name the stream with used_on.
class CudaBlock {
  public:
    CudaBlock(std::shared_ptr<cuda::Device> device, uint64_t address, size_t bytes)
        : device_(std::move(device)), address_(address), bytes_(bytes) {}
    ~CudaBlock();
    CudaBlock(const CudaBlock&) = delete;
    CudaBlock& operator=(const CudaBlock&) = delete;

    uint64_t address() const noexcept { return address_; }
    size_t bytes() const noexcept { return bytes_; }
    void used_on(void* stream);

  private:
    const std::shared_ptr<cuda::Device> device_;
    const uint64_t address_;
    const size_t bytes_;
    std::mutex mutex_;
    std::vector<void*> streams_;
};

// A CUDA stream. Work on one stream runs in order; work on two streams may overlap.
class CudaStream {
  public:
    CudaStream(std::shared_ptr<cuda::Device> device, void* handle, bool owned)
        : device_(std::move(device)), handle_(handle), owned_(owned) {}
    ~CudaStream();
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;

    void* handle() const noexcept { return handle_; }
    Status synchronize() const;
    Result<bool> done() const;  // true if no work is pending

  private:
    friend class CudaEvent;
    const std::shared_ptr<cuda::Device> device_;
    void* const handle_;
    const bool owned_;
};

// A CUDA event: streams wait for it, and two events measure the time between them.
class CudaEvent {
  public:
    static Result<std::unique_ptr<CudaEvent>> make(std::shared_ptr<cuda::Device> device, bool timing);
    ~CudaEvent();
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    Status record(const CudaStream& stream) const;
    Status wait(const CudaStream& stream) const;  // later work on the stream waits for the event
    Status synchronize() const;
    Result<bool> done() const;
    Result<float> since(const CudaEvent& start)
        const;  // milliseconds; both events must have been created with `timing` and be complete

  private:
    CudaEvent(std::shared_ptr<cuda::Device> device, void* handle)
        : device_(std::move(device)), handle_(handle) {}
    const std::shared_ptr<cuda::Device> device_;
    void* const handle_;
};

// Counts of the ways in which submissions reached the device, since the backend was created.
struct CudaCounters {
    int64_t captures = 0;  // plans captured into a graph
    int64_t updates = 0;   // graphs whose kernel arguments were updated
    int64_t replays = 0;   // submissions as one graph
    int64_t plain = 0;     // submissions as single launches
};

class CudaBackend : public Backend {
  public:
    virtual int index() const noexcept = 0;
    virtual int capability() const noexcept = 0;  // 10 * major + minor, for example 90
    virtual const std::string& device_name() const noexcept = 0;

    // Load a CUBIN for this device. The bytes are copied.
    virtual Result<std::shared_ptr<const Module>> load(const void* bytes, size_t size) = 0;

    // Allocate memory that may be used on the stream of `order`; by default on any stream.
    virtual Result<std::shared_ptr<CudaBlock>> block(size_t bytes, const StreamOrder& order) = 0;
    // Synchronous copies to and from the device, and fill with zeros.
    virtual Status upload(uint64_t to, const void* from, size_t bytes) = 0;
    virtual Status download(void* to, uint64_t from, size_t bytes) = 0;
    virtual Status clear(uint64_t memory, size_t bytes) = 0;

    // True if copies from the other device need no host memory.
    virtual Result<bool> reaches_peer(CudaBackend& peer) = 0;
    // Queue a copy from the memory of another device that reaches_peer(). It follows the work of
    // `peer_stream`, a stream of that device, whose later work waits for the copy.
    virtual Status copy_from_peer(uint64_t to, void* stream, CudaBackend& peer, uint64_t from,
                                  void* peer_stream, size_t bytes) = 0;

    virtual Result<std::unique_ptr<CudaStream>> stream() = 0;
    virtual std::unique_ptr<CudaStream> wrap(void* handle) = 0;  // a stream that another library owns
    virtual Result<std::unique_ptr<CudaEvent>> event(bool timing) = 0;

    // Return the first error that kernels reported in completed runs that were queued on a caller's stream.
    // Each report is returned once, here or by synchronize(nullptr).
    virtual Status reported() = 0;

    virtual MemoryStatistics memory() = 0;
    virtual MemoryStatistics pinned() = 0;
    // Page-locked host memory, from and to which runs copy directly. Null when memory is exhausted.
    virtual void* allocate_pinned(size_t bytes) noexcept = 0;
    virtual void release_pinned(void* block) noexcept = 0;
    virtual int64_t trim() = 0;  // trims both pools; returns the number of bytes freed
    virtual CudaCounters counters() const = 0;
    // Why plans run as single launches although graphs are enabled; each reason once.
    virtual std::vector<std::string> declined() const = 0;
};

// The backend of the device at `index`. The first call opens the driver and retains the device's primary
// context.
Result<std::shared_ptr<CudaBackend>> cuda_backend(int index, Library& library = cuda_library());

}  // namespace xpurt
