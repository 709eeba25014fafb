# One word each; every word is a script of the same name. VENV=.venv PYTHON=python3 can be set.
.PHONY: help setup develop test test-cpp test-sanitize test-min test-core test-all conformance fuzz lint check docs demo bench bench-check clean
help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' Makefile
setup:  ## .venv with everything pinned and the package as a wheel
	@scripts/setup
develop:  ## the same with the package editable
	@EDITABLE=1 scripts/setup
test:  ## every test, C++ and Python
	@scripts/test
test-cpp: setup  ## the C++ tests, plain and under sanitizers
	@PATH="$(CURDIR)/$${VENV:-.venv}/bin:$$PATH" scripts/test-cpp
test-sanitize: setup  ## the C++ harness under the thread, address and undefined-behaviour sanitizers
	@PATH="$(CURDIR)/$${VENV:-.venv}/bin:$$PATH" scripts/test-cpp "address,undefined thread"
test-min:  ## the engines' tests with the oldest supported vendors
	@scripts/test-min
test-core:  ## the core alone in an empty environment, on each Python that is here
	@scripts/test-core
test-all:  ## the Python tests under each instruction-set level of this machine
	@scripts/test-all
conformance:  ## foreign suites as a whole: PyTorch's op samples, the onnx package's cases
	@scripts/conformance
fuzz: setup  ## ten minutes of coverage-guided fuzzing of everything that reads files
	@scripts/fuzz
lint: setup  ## format, lint, strict types
	@scripts/lint
check:  ## lint and test: what must hold before a change goes in
	@scripts/check
docs:  ## the documentation site into build/site, links checked
	@scripts/docs
demo:  ## real models on every engine of this machine
	@scripts/demo
bench: setup  ## measure this machine into benchmarks/results
	@scripts/bench
bench-check: setup  ## the bounds on times, which no test asserts; wants a quiet machine
	@scripts/bench-check
clean:  ## remove what was built; keep .venv
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
