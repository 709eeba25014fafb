// base/owned_handle.h: ownership of an object that a C library creates and destroys.
#pragma once

#include <string>
#include <utility>

#include "base/log.h"

namespace xpurt {

// The owner of one handle. Movable; the destructor calls the library's destroy function and logs its failure.
template <class Code>
class OwnedHandle {
  public:
    using Destroy = Code (*)(void*);
    OwnedHandle() = default;
    explicit OwnedHandle(Destroy destroy) : destroy_(destroy) {}
    OwnedHandle(OwnedHandle&& other) noexcept
        : object_(std::exchange(other.object_, nullptr)), destroy_(other.destroy_) {}
    OwnedHandle& operator=(OwnedHandle&& other) noexcept {
        std::swap(object_, other.object_);
        std::swap(destroy_, other.destroy_);
        return *this;
    }
    ~OwnedHandle() {
        if (object_ == nullptr || destroy_ == nullptr) return;
        if (const int result = destroy_(object_); result != 0)
            log_failure({::xpurt::Code::call_failed,
                         "a library could not destroy a handle: result " + std::to_string(result), ""});
    }
    void* get() const noexcept { return object_; }
    void** out() noexcept { return &object_; }  // for the library's create function

  private:
    void* object_ = nullptr;
    Destroy destroy_ = nullptr;
};

}  // namespace xpurt
