// A cuDNN that computes nothing and whose engines are given by a table.
//
// XPU_TEST_CUDNN lists them: the list that offers the engine (a: the heuristic, f: its fallback mode, e: all
// engines), its index, and after a colon its numerical notes; "!" if it supports no plan, "~" if its plan
// needs a gigabyte of workspace. "a10:0 a28:5 f8:! e3:" has four engines.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int success = 0, not_supported = 3000;
constexpr int engine_kind = 2, config_kind = 3, heuristic_kind = 4, plan_kind = 5;
constexpr int heuristic_mode = 200, heuristic_results = 202, config_engine = 300, plan_config = 401,
              plan_workspace = 402, graph_engines = 802, engine_index = 1301, engine_notes = 1303;

struct EngineRow {
    char list;
    int64_t engine;
    std::vector<int> notes;
    bool planless, large;
};

std::vector<EngineRow> table() {
    const char* const text = std::getenv("XPU_TEST_CUDNN");
    std::istringstream words(text == nullptr ? "" : text);
    std::vector<EngineRow> rows;
    for (std::string word; words >> word;) {
        EngineRow row{word[0], std::atoll(word.c_str() + 1), {}, false, false};
        for (const char c : word.substr(word.find(':') + 1)) {
            if (c == '!')
                row.planless = true;
            else if (c == '~')
                row.large = true;
            else if (c >= '0' && c <= '9')
                row.notes.push_back(c - '0');
        }
        rows.push_back(row);
    }
    return rows;
}

const EngineRow* engine_row(int64_t engine) {
    static const std::vector<EngineRow> rows = table();
    for (const EngineRow& row : rows)
        if (row.engine == engine) return &row;
    return nullptr;
}

struct TableObject {
    int kind;
    int64_t engine = -1;
    int mode = 0;
};

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return 91900; }
int cudnnCreate(void** handle) {
    static int object;
    return *handle = &object, success;
}
int cudnnSetStream(void*, void*) { return success; }
const char* cudnnGetErrorString(int result) {
    return result == success ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_SUPPORTED";
}
void cudnnGetLastErrorString(char* text, size_t room) { std::strncpy(text, "simulated", room); }
int cudnnBackendCreateDescriptor(int kind, void** object) { return *object = new TableObject{kind}, success; }
int cudnnBackendDestroyDescriptor(void* object) { return delete static_cast<TableObject*>(object), success; }
int cudnnBackendSetAttribute(void* object, int attribute, int, int64_t, const void* values) {
    TableObject& self = *static_cast<TableObject*>(object);
    if (attribute == heuristic_mode) std::memcpy(&self.mode, values, sizeof self.mode);
    if (attribute == engine_index) std::memcpy(&self.engine, values, sizeof self.engine);
    if (attribute == config_engine || attribute == plan_config)
        self.engine = (*static_cast<TableObject* const*>(values))->engine;
    return success;
}
int cudnnBackendFinalize(void* object) {
    const TableObject& self = *static_cast<TableObject*>(object);
    if (self.kind == engine_kind && engine_row(self.engine) == nullptr) return not_supported;
    if (self.kind == plan_kind && engine_row(self.engine)->planless) return not_supported;
    return success;
}
int cudnnBackendGetAttribute(void* object, int attribute, int, int64_t room, int64_t* count, void* values) {
    const TableObject& self = *static_cast<TableObject*>(object);
    if (attribute == heuristic_results) {
        int64_t offered = 0;
        for (const EngineRow& row : table())
            if (row.list == (self.mode == 3 ? 'a' : 'f')) {
                if (offered < room) static_cast<TableObject**>(values)[offered]->engine = row.engine;
                ++offered;
            }
        return *count = offered, success;
    }
    if (attribute == config_engine)
        return (*static_cast<TableObject**>(values))->engine = self.engine, *count = 1, success;
    if (attribute == engine_index)
        return std::memcpy(values, &self.engine, sizeof self.engine), *count = 1, success;
    if (attribute == engine_notes) {
        const std::vector<int>& notes = engine_row(self.engine)->notes;
        std::memcpy(values, notes.data(), notes.size() * sizeof(int));
        return *count = static_cast<int64_t>(notes.size()), success;
    }
    int64_t number = 0;
    if (attribute == graph_engines)
        for (const EngineRow& row : table()) number = row.engine >= number ? row.engine + 1 : number;
    else if (attribute == plan_workspace)
        number = engine_row(self.engine)->large ? int64_t{1} << 30 : 0;
    else
        return not_supported;  // plans have no text
    return std::memcpy(values, &number, sizeof number), *count = 1, success;
}
int cudnnBackendExecute(void*, void*, void*) { return success; }
}
