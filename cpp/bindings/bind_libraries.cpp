// bindings/bind_libraries.cpp: Status, LibraryInfo and the table of libraries.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "xpurt/library.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xpurt::bindings {
namespace {

Library& find_library(const std::string& name) {
    std::string names;
    for (Library* library : libraries()) {
        if (name == library->spec().name) return *library;
        names += (names.empty() ? "" : ", ") + std::string(library->spec().name);
    }
    throw nb::key_error(("no library '" + name + "'; one of " + names).c_str());
}

}  // namespace

void bind_libraries(nb::module_& m) {
    nb::class_<Status>(m, "Status", "The outcome of an operation: a code, a message and advice.")
        .def_prop_ro("code", [](const Status& self) { return code_name(self.code); })
        .def_ro("message", &Status::message)
        .def_ro("advice", &Status::advice)
        .def_prop_ro(
            "refusals",
            [](const Status& self) {
                std::vector<std::tuple<int32_t, std::string, std::string>> result;
                for (const CallRefusal& each : self.refusals)
                    result.emplace_back(each.call, each.reason, each.advice);
                return result;
            },
            "Calls that libraries refused: (position, reason, advice).")
        .def_prop_ro("ok", &Status::ok);

    nb::class_<LibraryInfo>(m, "LibraryInfo", "Facts about a vendor's shared library.")
        .def_ro("status", &LibraryInfo::status)
        .def_ro("path", &LibraryInfo::path)
        .def_ro("file_version", &LibraryInfo::file_version)
        .def_ro("absent", &LibraryInfo::absent);

    nb::class_<Search>(m, "Search", "Where to look for a shared library.")
        .def(
            "__init__",
            [](Search* self, std::string override_path, std::vector<std::string> folders) {
                new (self) Search{std::move(override_path), std::move(folders)};
            },
            "override_path"_a = "", "folders"_a = std::vector<std::string>())
        .def_ro("override_path", &Search::override_path)
        .def_ro("folders", &Search::folders);

    m.def(
        "library_names",
        [] {
            std::vector<std::string> names;
            for (Library* library : libraries()) names.emplace_back(library->spec().name);
            return names;
        },
        "Return the names of the libraries that the core knows.");
    m.def(
        "library_title", [](const std::string& name) { return find_library(name).spec().title; }, "name"_a,
        "Return the display name of a library.");
    m.def(
        "library_variable", [](const std::string& name) { return find_library(name).spec().variable; },
        "name"_a, "Return the environment variable that overrides the search for a library.");
    m.def(
        "library_info", [](const std::string& name) { return find_library(name).info(); }, "name"_a, NoGil(),
        "Return the facts about a library. Loads nothing.");
    m.def(
        "open_library",
        [](const std::string& name, const Search& search) { return find_library(name).open(search); },
        "name"_a, "search"_a, NoGil(), "Load a library, once. An absent one is a Status, not an exception.");
}

}  // namespace xpurt::bindings
