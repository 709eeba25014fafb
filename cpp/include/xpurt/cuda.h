// xpurt/cuda.h: programs on an NVIDIA GPU, and what callers may hold of one: blocks of memory, streams,
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

// Memory of a device. Freed when the last holder lets go, after the work that was queued with it: whoever
// queues work on a stream that nobody waits for says so with used_on.
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

// A queue of work. What is in one runs in order; two run side by side.
class CudaStream {
  public:
    CudaStream(std::shared_ptr<cuda::Device> device, void* handle, bool owned)
        : device_(std::move(device)), handle_(handle), owned_(owned) {}
    ~CudaStream();
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;

    void* handle() const noexcept { return handle_; }
    Status synchronize() const;
    Result<bool> done() const;  // whether nothing is left in it

  private:
    friend class CudaEvent;
    const std::shared_ptr<cuda::Device> device_;
    void* const handle_;
    const bool owned_;
};

// A mark in a stream: others wait for it, and two measure the time between them.
class CudaEvent {
  public:
    static Result<std::unique_ptr<CudaEvent>> make(std::shared_ptr<cuda::Device> device, bool timing);
    ~CudaEvent();
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    Status record(const CudaStream& stream) const;
    Status wait(const CudaStream& stream) const;  // the stream goes on when the mark is reached
    Status synchronize() const;
    Result<bool> done() const;
    Result<float> since(const CudaEvent& start) const;  // milliseconds; both must be timing and reached

  private:
    CudaEvent(std::shared_ptr<cuda::Device> device, void* handle)
        : device_(std::move(device)), handle_(handle) {}
    const std::shared_ptr<cuda::Device> device_;
    void* const handle_;
};

// How runs reached the device since the backend was made.
struct CudaCounters {
    int64_t captures = 0;  // plans made into a graph
    int64_t updates = 0;   // graphs that got other addresses
    int64_t replays = 0;   // submissions as one graph
    int64_t plain = 0;     // submissions kernel by kernel
};

class CudaBackend : public Backend {
  public:
    virtual int index() const noexcept = 0;
    virtual int capability() const noexcept = 0;  // 10 * major + minor: 90
    virtual const std::string& device_name() const noexcept = 0;

    // A CUBIN for this device. The bytes are copied.
    virtual Result<std::shared_ptr<const Module>> load(const void* bytes, size_t size) = 0;

    // Memory in the order of `order`: the caller's stream, or at once.
    virtual Result<std::shared_ptr<CudaBlock>> block(size_t bytes, const StreamOrder& order) = 0;
    // Copies that wait: to the device, back, and zeros.
    virtual Status upload(uint64_t to, const void* from, size_t bytes) = 0;
    virtual Status download(void* to, uint64_t from, size_t bytes) = 0;
    virtual Status clear(uint64_t memory, size_t bytes) = 0;

    virtual Result<std::unique_ptr<CudaStream>> stream() = 0;
    virtual std::unique_ptr<CudaStream> wrap(void* handle) = 0;  // somebody else's stream
    virtual Result<std::unique_ptr<CudaEvent>> event(bool timing) = 0;

    // What kernels of runs that nobody waited for, and that are done by now, could not compute: the first
    // such report, told once. synchronize(nullptr) tells it too.
    virtual Status reported() = 0;

    virtual MemoryStatistics memory() = 0;
    virtual MemoryStatistics pinned() = 0;
    virtual int64_t trim() = 0;  // of both; returns how many bytes
    virtual CudaCounters counters() const = 0;
    // Why plans run kernel by kernel that could have been a graph, each reason once.
    virtual std::vector<std::string> declined() const = 0;
};

// The device at `index`. Opens the driver and the device's primary context at first use.
Result<std::shared_ptr<CudaBackend>> cuda_backend(int index, Library& library = cuda_library());

}  // namespace xpurt
