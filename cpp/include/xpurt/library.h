// xpurt/library.h: vendors' shared libraries as tables of symbols, loaded on first use.
//
// The core links to no vendor library. Each library is described once as data (LibrarySpec): its file names,
// its symbols with the version that introduced each, and advice for users who lack it. An absent library or
// symbol is a Status, and nothing is loaded before open().
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
    int since;  // version that introduced it, 1000 * major + 10 * minor; 0 = all versions
    Need need;
};

struct LibrarySpec {
    const char* name;                // internal name: "cuda"
    const char* title;               // display name: "NVIDIA CUDA driver"
    const char* variable;            // environment variable that overrides the search, named in the advice
    std::vector<const char*> files;  // file names, tried in this order
    std::vector<Symbol> symbols;
    const char* advice;  // what to do if the library is absent
};

// Where to look for a library. The core reads no environment variables: the caller passes both fields.
struct Search {
    std::string override_path{};         // if not empty: the only file that is tried
    std::vector<std::string> folders{};  // tried after the loader's own search, for each file name
};

struct LibraryInfo {
    Status status{};
    std::string path{};                 // the mapped file, with links resolved
    std::string file_version{};         // the part of its name after ".so.": "580.65.06"
    std::vector<std::string> absent{};  // optional symbols that this version lacks
};

class Library {
  public:
    explicit Library(LibrarySpec spec);
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    // Load the library and fill the table, once. Thread-safe. A failure is not final: a later call with
    // another search tries again. Once loaded, `search` is ignored.
    Status open(const Search& search = {});

    bool loaded() const noexcept { return loaded_.load(std::memory_order_acquire); }

    // The address of the symbol at `index` in the spec; null if the library is not loaded or lacks an
    // optional symbol.
    void* address(size_t index) const noexcept;

    // The result of the last open(). Loads nothing.
    LibraryInfo info() const;

    // The error for a call that needs the absent optional symbol at `index`.
    Status absent(size_t index) const;

    const LibrarySpec& spec() const noexcept { return spec_; }

  private:
    Status load(const std::string& candidate, bool is_path);

    const LibrarySpec spec_;
    mutable std::mutex
        mutex_;  // guards the members below until loaded_ is true; they are constant afterwards
    std::atomic<bool> loaded_{false};
    std::vector<void*> addresses_;
    LibraryInfo info_;
};

// The libraries that the core knows, one instance per process. They are never unloaded: drivers install exit
// handlers, and function pointers may live as long as the process.
Library& cuda_library();
Library& nvtx_library();
Library& cupti_library();
Library& nvrtc_library();
Library& onednn_library();
Library& cublas_library();
Library& cublaslt_library();
Library& cudnn_library();
Library& nccl_library();
std::vector<Library*> libraries();

}  // namespace xpurt
