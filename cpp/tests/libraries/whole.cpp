// A library with everything that the test's table asks for.
extern "C" int probe_required() { return 42; }
extern "C" int probe_optional() { return 7; }
