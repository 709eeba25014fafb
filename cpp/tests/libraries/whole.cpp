// A library with all functions of the test's table.
extern "C" int probe_required() { return 42; }
extern "C" int probe_optional() { return 7; }
