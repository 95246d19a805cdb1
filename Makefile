# Verbs only. Each does its whole set-up: a virtual environment in .venv with what pyproject.toml asks for, and the library.
#
#   make verify [OPS=name,family,pattern]   check every operation against its specification on this machine
#   make test   [OPS=...]                   the test suite
#   make cuda                               build the CUDA library (nvcc, and cuBLAS and cuFFT from CUDA_HOME or PyPI)
#   make emulated [OPS=...]                 check the CUDA kernels on an emulated device, without a GPU (CUDA's headers)
#   make install PREFIX=/usr/local          install the library, its headers and what pkg-config and CMake read (KIND=cuda)
#   make uninstall PREFIX=/usr/local        remove what that installed
#   make wheel                              a wheel with the manylinux tag that fits, into dist/ (KIND=cuda)
#   make check                              formatting, lint, types, generated files, sanitizers of the C core
#   make sanitize [OPS=...]                 the tests with the CPU library under AddressSanitizer and UBSan
#   make exhaustive [OPS=name STRIDE=1]     scalar formulas against float64 on every (STRIDE-th) float32 input
#   make bench  [OPS=...]                   times beside NumPy (and PyTorch where installed)
#   make gpu                                build, test, verify and benchmark on a GPU machine; writes out/gpu.jsonl
#   make site                               the documentation site, into out/site
#   make new OP=name FAMILY=...             the skeleton of an operation (SIGNATURE="x[rows, cols] -> out[rows]")
#   make abi                                regenerate what the registry's rows and the evidence determine
#   make fmt                                format the Python, C and CUDA code
#
# SYSTEM_PYTHON=1 uses $(PYTHON) as it is, without a virtual environment.

PYTHON ?= python3
OPS ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

ifdef SYSTEM_PYTHON
  PY := $(PYTHON)
  ENV_TEST :=
  ENV_DEV :=
  ENV_CUDA :=
  ENV_SITE :=
else
  PY := .venv/bin/python
  ENV_TEST := .venv/.test .venv/.audit
  ENV_DEV := .venv/.dev
  ENV_CUDA := .venv/.cuda
  ENV_SITE := .venv/.site
endif

# what clang-format keeps in shape: C and CUDA written by hand
C_SOURCES := find native/src native/torch native/include/torchlean_cuda.h native/tools native/emulator tests/native examples/c \
    -name "*.[ch]" -o -name "*.cpp" -o -name "*.cu" -o -name "*.cuh"

.DEFAULT_GOAL := help
.PHONY: help verify test lib cuda emulated install uninstall wheel check sanitize sanitized exhaustive bench gpu site new abi fmt clean

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

# Tests start hundreds of processes, in each of which compiling the packages again takes longer than what is tested.
unexport PYTHONDONTWRITEBYTECODE

# What an extra of pyproject.toml asks for, without installing the project itself: the tree is run in place.
.venv/.%: pyproject.toml
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "installing what the extra '$*' needs into .venv"
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	    $$(.venv/bin/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    e = p["optional-dependencies"]; print(*e["runtime"], *e[sys.argv[1]])' $*)
	@touch $@

# The CPU library; where a CUDA one has been built, it is kept current too, because it is the one that loads.
lib:
	@$(MAKE) --no-print-directory -C native -j$(JOBS)
	@test ! -e native/build/cuda/libtorchlean_cuda.so || $(MAKE) --no-print-directory cuda

verify: $(ENV_TEST) lib
	$(PY) -m tlrt verify $(if $(OPS),--ops '$(OPS)') $(VERIFY)

# The pages of NumPy's large arrays stay with the process, which spends a third of its time on getting them otherwise.
verify emulated: export MALLOC_MMAP_THRESHOLD_ = 1073741824
verify emulated: export MALLOC_TRIM_THRESHOLD_ = 2147483648

# Tests run in as many processes as there are cores: products of NumPy and operators of PyTorch take one thread in each.
test sanitize: export OPENBLAS_NUM_THREADS = 1
test sanitize: export OMP_NUM_THREADS = 1

test: $(ENV_TEST) lib
	OPS='$(OPS)' $(PY) -m pytest -n $(JOBS) --dist worksteal $(PYTEST)

cuda: $(ENV_CUDA)
	@$(MAKE) --no-print-directory -C native -j$(JOBS) cuda PYTHON=$(abspath $(PY))

# The second pass runs blocks, and the threads of a block, in an order that no result may depend on.
ORDERS ?= forwards shuffled
emulated: $(ENV_TEST) $(ENV_CUDA)
	@$(MAKE) --no-print-directory -C native -j$(JOBS) emulated PYTHON=$(abspath $(PY))
	for order in $(ORDERS); do \
	    TORCHLEAN_EMULATOR_ORDER=$$order TORCHLEAN_CUDA_LIBRARY=$(CURDIR)/native/build/emulated/libtorchlean_cuda.so \
	    $(PY) -m tlrt verify --device cuda:0 $(if $(OPS),--ops '$(OPS)') $(VERIFY) || exit 1; done

install uninstall:
	@$(MAKE) --no-print-directory -C native -j$(JOBS) $@ PYTHON=$(abspath $(PY)) 'FROM=$(CURDIR)'

# CUDA's libraries come with the packages that the wheel depends on.
KIND ?= cpu
wheel: .venv/.wheel $(if $(filter cuda,$(KIND)),.venv/.cuda)
	@rm -rf build/wheel && mkdir -p build/wheel
	TORCHLEAN_BUILD=$(KIND) TORCHLEAN_VARIANTS=all .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	    --no-build-isolation -w build/wheel .
	PATH="$(abspath .venv/bin):$$PATH" .venv/bin/auditwheel repair --plat auto -w dist build/wheel/*.whl \
	    $(addprefix --exclude ,libcublas.so.13 libcublasLt.so.13 libcufft.so.12 libcuda.so.1)

bench: $(ENV_TEST) lib
	$(PY) -m bench $(if $(OPS),--ops '$(OPS)') $(BENCH)

gpu:
	$(PY) -m bench.gpu $(GPU)

check: $(ENV_DEV) $(ENV_TEST) lib
	$(PY) -m ruff format --check .
	$(C_SOURCES) | xargs $(dir $(PY))clang-format --dry-run -Werror
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m codegen --check
	$(MAKE) --no-print-directory -C native check

# Worst distance from the correctly rounded result, misrounded inputs, special values; then equal bits in the variant base.
STRIDE ?= 1
EXHAUSTIVE = $(PY) -m audit exhaustive --device cpu --stride $(STRIDE) $(if $(OPS),--ops '$(OPS)')
exhaustive: $(ENV_TEST) lib
	@mkdir -p native/build/exhaustive
	$(EXHAUSTIVE) --json native/build/exhaustive/best.json
	TORCHLEAN_CPU_VARIANT=base $(EXHAUSTIVE) --against native/build/exhaustive/best.json

# Leak checking is the C tests' part (make check): the interpreter's own allocations never end. Nor is the fake stack used:
# gcc 13 misaligns vectors of 64 bytes on it (GCC bug 110027).
SANITIZED ?= tests/kernels tests/runtime
sanitize: $(ENV_TEST) sanitized
	OPS='$(OPS)' LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=halt_on_error=1 \
	    TORCHLEAN_CUDA_LIBRARY=$(abspath native/build/asan/libtorchlean_cuda.so) \
	    $(PY) -m pytest -n $(JOBS) --dist worksteal $(SANITIZED) $(PYTEST)

# The tests call these two SIMD variants alone.
sanitized:
	@$(MAKE) --no-print-directory -C native -j$(JOBS) SANITIZE=address,undefined VARIANTS=native

# Needs no network once its packages are there.
site: $(ENV_SITE) lib
	$(PY) -m pages

new: $(ENV_TEST)
	$(PY) -m codegen.new '$(OP)' '$(FAMILY)' $(if $(SIGNATURE),'$(SIGNATURE)')

abi: $(ENV_TEST)
	$(PY) -m codegen
	$(PY) -m bench.results

fmt: $(ENV_DEV)
	.venv/bin/ruff format .
	$(C_SOURCES) | xargs .venv/bin/clang-format -i
	.venv/bin/ruff check --fix .

clean:
	$(MAKE) -C native clean
	rm -rf build dist out
