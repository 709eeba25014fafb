# One word each; every word is a script of the same name. VENV=.venv PYTHON=python3 can be set.
.PHONY: help setup develop test test-cpp test-sanitize test-min test-core test-all coverage mutants conformance fuzz lint check docs demo bench bench-check clean
help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' Makefile
setup:  ## .venv with everything pinned and the package as a wheel
	@scripts/setup
develop:  ## the same with the package editable
	@EDITABLE=1 scripts/setup
test:  ## the gate: C++ and Python tests; heavy ones run a sample that the commit draws
	@scripts/test
test-cpp: setup  ## the C++ tests, plain and under sanitizers
	@PATH="$(CURDIR)/$${VENV:-.venv}/bin:$$PATH" scripts/test-cpp
test-sanitize: setup  ## the C++ harness under the thread, address and undefined-behavior sanitizers
	@PATH="$(CURDIR)/$${VENV:-.venv}/bin:$$PATH" scripts/test-cpp "address,undefined thread"
test-min:  ## the engines' tests with the oldest supported vendors
	@scripts/test-min
test-core:  ## the core alone in an empty environment, on each Python that is here
	@scripts/test-core
test-all:  ## every test, those of kernels under each instruction-set level of this machine, and the third-party suites
	@scripts/test-all
coverage:  ## line coverage of the gate and of all tests, into build/coverage
	@scripts/coverage
mutants: setup  ## the share of drawn faults that the gate finds; needs make coverage
	@$${VENV:-.venv}/bin/python scripts/mutants.py
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
