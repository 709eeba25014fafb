// xpurt/library.h: a vendor's shared library as a table of symbols, loaded at first use.
//
// The core links to no vendor. Each library is described once, as data (LibrarySpec): its file names, its
// symbols with the version that introduced each, and what to tell a reader who lacks it. A library or a
// symbol that is absent is a Status, never a crash, and nothing loads before somebody calls open().
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "xpurt/status.h"

namespace xpurt {

enum class Need { required, optional };

struct Symbol {
    const char* name;
    int since;  // version that introduced it, 1000 * major + 10 * minor; 0 = always there
    Need need;
};

struct LibrarySpec {
    const char* name;                // our name: "cuda"
    const char* title;               // a reader's name: "NVIDIA CUDA driver"
    const char* variable;            // environment variable that overrides the search, for the advice
    std::vector<const char*> files;  // names to try, in this order
    std::vector<Symbol> symbols;
    const char* advice;  // what to do when it is absent
};

// Where to look. The core reads no environment: its caller hands both in.
struct Search {
    std::string override_path{};         // this file and no other, when not empty
    std::vector<std::string> folders{};  // tried after the loader's own search, for each file name
};

struct LibraryInfo {
    Status status{};
    std::string path{};                 // the file that is mapped, links resolved
    std::string file_version{};         // what follows ".so." in its name: "580.65.06"
    std::vector<std::string> absent{};  // optional symbols that this version lacks
};

class Library {
  public:
    explicit Library(LibrarySpec spec);
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    // Loads the library and fills the table, once; any thread may call it at any time. A failure is not
    // remembered as final: a later call with another search tries again. Once loaded, `search` is ignored.
    Status open(const Search& search = {});

    bool loaded() const noexcept { return loaded_.load(std::memory_order_acquire); }

    // Address of the symbol at `index` in the spec, or null: not loaded, or optional and absent.
    void* address(size_t index) const noexcept;

    // What open() found so far. Loads nothing.
    LibraryInfo info() const;

    // The Status for a call that needs the optional symbol at `index` while it is absent.
    Status absent(size_t index) const;

    const LibrarySpec& spec() const noexcept { return spec_; }

  private:
    Status load(const std::string& candidate, bool is_path);

    const LibrarySpec spec_;
    mutable std::mutex mutex_;  // guards everything below until loaded_ is true; constant after
    std::atomic<bool> loaded_{false};
    std::vector<void*> addresses_;
    LibraryInfo info_;
};

// The libraries that this core knows, each a process-wide instance. They are never unloaded: drivers
// install exit handlers, and a pointer into them may live as long as the process.
Library& cuda_library();
Library& nvtx_library();
Library& cupti_library();
Library& nvrtc_library();
Library& onednn_library();
Library& cublas_library();
Library& cublaslt_library();
Library& cudnn_library();
std::vector<Library*> libraries();

}  // namespace xpurt
