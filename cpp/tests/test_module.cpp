// Loading object code, and its requirements.
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "xpurt/backend.h"
#include "xpurt/device.h"
#include "xpurt/kernel.h"

using namespace xpurt;

namespace {

std::vector<char> kernels() {
    std::ifstream file(PROBES "/libprobe_kernels.so", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Code load_code(const std::vector<char>& bytes) { return load_module(bytes.data(), bytes.size()).status.code; }

}  // namespace

TEST_CASE("objects are loaded from memory and from files, each with its own code") {
    const std::vector<char> bytes = kernels();
    for (const MapBy how : {MapBy::memfd, MapBy::file, MapBy::any}) {
        const auto first = load_module(bytes.data(), bytes.size(), how);
        const auto second = load_module(bytes.data(), bytes.size(), how);
        REQUIRE(first.status.ok());
        REQUIRE(second.status.ok());
        CHECK(std::string(first.value->mapped_by()) == (how == MapBy::file ? "file" : "memfd"));
        CHECK(first.value->symbol("add") != nullptr);
        CHECK(first.value->symbol("add") != second.value->symbol("add"));
        CHECK(first.value->symbol("absent") == nullptr);
    }
    // Closed and opened again: the loader must not confuse the objects.
    for (int i = 0; i < 20; ++i)
        REQUIRE(load_module(bytes.data(), bytes.size()).value->symbol("scale") != nullptr);
}

TEST_CASE("object code for another machine is refused before the loader is called") {
    std::vector<char> bytes = kernels();
    CHECK(load_code({}) == Code::invalid);
    CHECK(load_code({'t', 'e', 'x', 't'}) == Code::invalid);
    CHECK(load_code(std::vector<char>(4096, 0)) == Code::invalid);
    bytes[18] = static_cast<char>(0xf3);  // e_machine: RISC-V
    bytes[19] = 0;
    const auto other = load_module(bytes.data(), bytes.size());
    CHECK(other.status.code == Code::unsupported);
    CHECK(other.status.message.find("machine 243") != std::string::npos);
}

TEST_CASE("truncated object code is refused at every length") {
    const std::vector<char> whole = kernels();
    for (size_t size = 1; size < whole.size(); size += size < 600 ? 1 : whole.size() / 97) {
        const std::vector<char> bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
        for (const MapBy how : {MapBy::memfd, MapBy::file}) {
            const auto cut = load_module(bytes.data(), bytes.size(), how);
            CAPTURE(size);
            CHECK(cut.status.code == Code::invalid);
        }
    }
    std::vector<char> bytes = whole;
    for (const size_t field : {32U, 40U}) {  // e_phoff, e_shoff: past the end, by integer overflow
        std::memset(bytes.data() + field, 0xff, 8);
        const auto cut = load_module(bytes.data(), bytes.size());
        CHECK(cut.status.message.find("headers extend past its end") != std::string::npos);
        bytes = whole;
    }
}

TEST_CASE("the loader's error is a status with its message") {
    std::vector<char> bytes = kernels();
    bytes[56] = bytes[57] = 0;  // e_phnum: a complete object without segments
    const auto cut = load_module(bytes.data(), bytes.size());
    CHECK(cut.status.code == Code::unreadable);
    CHECK(cut.status.message.find("the loader rejected the object code") != std::string::npos);
    CHECK(cut.status.message.find("and from memory") != std::string::npos);
}

TEST_CASE("code in memory is named and read as it is in the file") {
    const std::vector<char> bytes = kernels();
    const auto module = load_module(bytes.data(), bytes.size());
    REQUIRE(module.status.ok());
    const auto* const add = static_cast<const char*>(module.value->symbol("add"));
    const CalledCode called = code_at(add);
    const std::string file(bytes.begin(), bytes.end()), text = module.value->text();
    CHECK(called.symbol == "add");
    CHECK(!called.code.empty());
    CHECK(file.find(called.code) != std::string::npos);
    CHECK(text.find(called.code) != std::string::npos);
    CHECK(file.find(text) != std::string::npos);
    CHECK(code_at(module.value->symbol("scale")).code != called.code);
    CHECK(code_at(add + 1).symbol.empty());  // inside a function
    CHECK(code_at(bytes.data()).symbol.empty());
}

namespace {

class Twelve final : public KernelLibrary {
  public:
    std::string version() const override { return "12.4"; }
    Result<std::unique_ptr<LibraryKernel>> prepare(const KernelCall&, int) override {
        return Status{Code::unsupported, "no kernels", ""};
    }
};

}  // namespace

TEST_CASE("missing requirements are named") {
    CHECK(missing_requirements({}).empty());
    for (const std::string& flag : cpu_facts().flags)  // AMX may be present without permission
        CHECK((flag.rfind("amx-", 0) == 0 || missing_requirements({flag}).empty()));
    CHECK(missing_requirements({"avx9999", "lib:nothing", "lib:nothing>=1"}) ==
          std::vector<std::string>{"avx9999", "lib:nothing", "lib:nothing>=1"});
    register_kernel_library("twelve", std::make_unique<Twelve>());
    CHECK(missing_requirements({"lib:twelve", "lib:twelve>=12", "lib:twelve>=12.4", "lib:twelve>=11.9"})
              .empty());
    CHECK(missing_requirements({"lib:twelve>=12.5", "lib:twelve>=13", "lib:twelve>=12.4.1"}).size() == 3);
}
