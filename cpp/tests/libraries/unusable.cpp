// A version from before the required function.
extern "C" int probe_optional() { return 6; }
