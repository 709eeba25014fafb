"""The native engine: where our compiler meets our runtime. ``engine`` has the functions that every engine has."""
