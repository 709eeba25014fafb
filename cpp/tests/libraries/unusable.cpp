// A version older than the required function.
extern "C" int probe_optional() { return 6; }
