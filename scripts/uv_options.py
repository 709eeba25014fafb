#!/usr/bin/env python3
"""Print the options of `uv pip install` that give it pip's settings, one word a line.

    python -m pip config list | scripts/uv_options.py

Exit with 1 and a reason for a setting that uv has no equal of. scripts/setup then installs with pip.
"""

from __future__ import annotations

import ast
import sys

OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
NO_MATTER = {
    "cert",  # scripts/setup hands it on as SSL_CERT_FILE
    "break-system-packages", "cache-dir", "debug", "default-timeout", "disable-pip-version-check", "no-cache-dir", "no-color",
    "no-compile", "no-input", "prefer-binary", "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action",
    "timeout", "verbose",
}  # fmt: skip
"""Settings of pip that change neither what is installed nor where it comes from."""
SECTIONS = ("global", "install", ":env:")  # later ones override earlier ones, as in pip


def settings(lines: list[str]) -> dict[str, str]:
    """Return what applies to `pip install` in the output of `pip config list`."""
    sections: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
    for line in filter(str.strip, lines):
        name, _, value = line.strip().partition("=")
        section, _, key = name.rpartition(".")
        if section in sections:
            sections[section][key] = ast.literal_eval(value)
    return {key: value for name in SECTIONS for key, value in sections[name].items()}


def options(found: dict[str, str]) -> list[str]:
    """Return uv's options for pip's settings; raise ValueError for a setting without an equal."""
    words = []
    for key, value in found.items():
        if key == "no-index":
            words += ["--no-index"] if value.lower() in ("1", "true", "yes", "on") else []
        elif key in OPTIONS:
            words += [word for each in value.split() for word in (OPTIONS[key], each)]
        elif key not in NO_MATTER:
            raise ValueError(f"pip's setting {key}={value!r} has no equal in uv")
    return words


if __name__ == "__main__":
    found = settings(sys.stdin.readlines())
    if sys.argv[1:] == ["--cert"]:
        print(found.get("cert", ""))
        sys.exit()
    try:
        words = options(found)
    except ValueError as error:
        sys.exit(f"uv_options: {error}")
    print(*words, sep="\n")
