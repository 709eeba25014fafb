// Library: present, old, damaged and absent shared libraries.
#include "doctest/doctest.h"

#include <thread>

#include "xpurt/library.h"

using namespace xpurt;

namespace {

const std::string folder = PROBES;

LibrarySpec probe(std::vector<const char*> files) {
    return {"probe",
            "Probe library",
            "XPU_LIBPROBE",
            std::move(files),
            {{"probe_required", 2000, Need::required}, {"probe_optional", 11040, Need::optional}},
            "Build the tests."};
}

int call(const Library& library, size_t index) {
    return reinterpret_cast<int (*)()>(library.address(index))();
}

}  // namespace

TEST_CASE("nothing is loaded before open") {
    Library library(probe({"libprobe_whole.so"}));
    CHECK_FALSE(library.loaded());
    CHECK(library.address(0) == nullptr);
    CHECK(library.info().status.code == Code::not_loaded);
    CHECK(library.info().path == "");
}

TEST_CASE("a library is found in a folder of the search") {
    Library library(probe({"libprobe_whole.so"}));
    REQUIRE(library.open({"", {"/nonexistent", folder}}).ok());
    CHECK(call(library, 0) == 42);
    CHECK(call(library, 1) == 7);
    CHECK(library.address(2) == nullptr);
    CHECK(library.info().path == folder + "/libprobe_whole.so");
    CHECK(library.info().absent.empty());
}

TEST_CASE("file names are tried in order") {
    Library library(probe({"libprobe_absent.so", "libprobe_old.so", "libprobe_whole.so"}));
    REQUIRE(library.open({"", {folder}}).ok());
    CHECK(call(library, 0) == 41);
}

TEST_CASE("a missing optional symbol is listed, and gives a Status when it is needed") {
    Library library(probe({"libprobe_old.so"}));
    REQUIRE(library.open({"", {folder}}).ok());
    CHECK(library.address(1) == nullptr);
    REQUIRE(library.info().absent.size() == 1);
    CHECK(library.info().absent[0] == "probe_optional (since 11.4)");
    const Status status = library.absent(1);
    CHECK(status.code == Code::symbol_missing);
    CHECK(status.message == folder + "/libprobe_old.so has no probe_optional (since 11.4)");
    CHECK(status.advice == "Update the Probe library.");
}

TEST_CASE("a library without a required symbol is refused") {
    Library library(probe({"libprobe_unusable.so"}));
    const Status status = library.open({"", {folder}});
    CHECK(status.code == Code::symbol_missing);
    CHECK(status.message ==
          "Probe library: " + folder + "/libprobe_unusable.so has no probe_required (since 2.0)");
    CHECK(status.advice == "Update it: Build the tests.");
    CHECK_FALSE(library.loaded());
    CHECK(library.address(1) == nullptr);
}

TEST_CASE("the error of a missing library lists what was tried") {
    Library library(probe({"libprobe_absent.so"}));
    const Status status = library.open({"", {folder}});
    CHECK(status.code == Code::not_found);
    CHECK(status.message ==
          "Probe library: no file found; tried libprobe_absent.so, " + folder + "/libprobe_absent.so");
    CHECK(status.advice == "Build the tests. Or set XPU_LIBPROBE to the path of the library.");
    CHECK(library.info().status.code == Code::not_found);
}

TEST_CASE("a corrupt file is unreadable, with the loader's message") {
    Library library(probe({"libprobe_corrupt.so"}));
    const Status status = library.open({"", {folder}});
    CHECK(status.code == Code::unreadable);
    CHECK(status.message.find("libprobe_corrupt.so") != std::string::npos);
    SUBCASE("a later call with a better search succeeds") {
        CHECK(library.open({folder + "/libprobe_whole.so", {}}).ok());
        CHECK(call(library, 0) == 42);
        CHECK(library.info().status.ok());
    }
}

TEST_CASE("an override is used or is an error") {
    Library library(probe({"libprobe_whole.so"}));
    const Status status = library.open({folder + "/libprobe_absent.so", {folder}});
    CHECK(status.code == Code::not_found);
    CHECK(status.advice == "XPU_LIBPROBE names this file; correct it, or unset it to search as usual.");
    CHECK(library.open({folder + "/libprobe_old.so", {folder}}).ok());
    CHECK(call(library, 0) == 41);
}

TEST_CASE("an override without a slash is a path, not a search") {
    Library library(probe({"libprobe_whole.so"}));
    CHECK(library.open({"libc.so.6", {}}).code == Code::not_found);
}

TEST_CASE("threads that open a library at once share one table") {
    for (int round = 0; round < 20; ++round) {
        Library library(probe({"libprobe_whole.so"}));
        std::vector<std::thread> threads;
        std::atomic<int> good{0};
        for (int i = 0; i < 8; ++i)
            threads.emplace_back([&] {
                if (library.open({"", {folder}}).ok() && call(library, 0) == 42 && call(library, 1) == 7)
                    ++good;
            });
        for (std::thread& thread : threads) thread.join();
        CHECK(good == 8);
    }
}
