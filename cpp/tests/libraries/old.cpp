// An older version: usable, without the optional function.
extern "C" int probe_required() { return 41; }
