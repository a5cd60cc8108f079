# make demo    sets up .venv, then compiles and runs a transformer block
# make test    sets up .venv, then runs the tests that this machine can run, but for those that take long
# make test-all runs the rest: the tests that are marked slow
# make test-whole runs both, with every combination of crossed parameters and more draws, which takes long
# make torch   installs PyTorch (TORCH), and runs the tests of torch.compile(backend="tilec"), those that take long, too
# make bench   times tilec beside the peers that are installed (PEERS="torch jax" installs them first)
# make outside runs the test cases of NumPy, opt_einsum, ONNX and PyTorch, and writes their counts into docs/outside.md
# make fuzz    draws random programs, schedules and texts for MINUTES (60), or CASES of each way, from SEED (0), JOBS processes at
#              a time; TARGET is cpu, stages, emulator, gpu, edits, matrix, sizes, text or all; what fails goes to fuzz-found/
# make fuzz-ptxas draws kernels of PTX for MINUTES, or CASES of them, and holds what ptxas makes of them to PTX's manual; it takes a GPU
# make sanitize runs NVIDIA's Compute Sanitizer over the kernels of every example and of FUZZ (32) drawn programs from SEED;
#              it takes a GPU and the CUDA toolkit
# make lint    ruff, and mypy over the package
# make site    builds the documentation as pages in site/, with a gallery of the examples (python -m http.server -d site)
# make docs    rewrites the figures and tables of README.md and docs/ from the code and benchmarks/results/
#
# Everything happens in $(VENV); PYTHON is what makes it. The tests install the GPU compiler, which needs no GPU; the demo and
# the benchmarks do so where an NVIDIA driver is loaded (or as EXTRAS=cuda and EXTRAS= say).

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= $(shell n=$$(nproc 2>/dev/null || sysctl -n hw.ncpu); echo $$(( n > 8 ? 8 : n )))
EXTRAS ?= $(if $(wildcard /proc/driver/nvidia/version /dev/dxg),cuda)
PEERS  ?=
TORCH  ?= torch==2.13.0 transformers==5.23.0 expecttest
SUITE  ?= cpu

BIN  := $(VENV)/bin
RUN  := $(BIN)/python
BASE := $(VENV)/.base$(addprefix -,$(EXTRAS))
TEST := $(VENV)/.test
# Each process begins with tests that follow one another, which share what a module computes once; who is done takes some of another's.
PYTEST = $(RUN) -m pytest -q -n $(JOBS) --dist worksteal

MINUTES ?= 60
SEED   ?= 0
TARGET ?= all
FUZZ   ?= 32
CASES  ?=

.PHONY: demo test test-all test-whole torch bench fuzz fuzz-ptxas sanitize outside lint docs site clean
.DEFAULT_GOAL := demo

demo: $(BASE)
	$(RUN) examples/demo.py

test: $(TEST)
	$(PYTEST) $(ARGS)

test-all: $(TEST)
	$(PYTEST) -m slow $(ARGS)

test-whole: $(TEST)
	$(PYTEST) --slow --whole $(ARGS)

torch: $(TEST)
	$(RUN) -m pip install -q $(TORCH)
	$(PYTEST) --slow tests/pytorch $(ARGS)

bench: $(BASE)
	$(if $(PEERS),$(RUN) -m pip install -q $(PEERS))
	$(RUN) -m benchmarks $(SUITE) $(ARGS)

outside: $(TEST)
	$(RUN) -m pip install -q -e ".[outside]"
	$(RUN) -m tests.outside --write $(ARGS)

fuzz: $(TEST)
	PYTHONPATH=tests $(RUN) -m fuzz $(if $(CASES),--cases $(CASES),--minutes $(MINUTES)) --seed $(SEED) --target $(TARGET) --jobs $(JOBS) $(ARGS)

fuzz-ptxas: $(TEST)
	PYTHONPATH=tests $(RUN) -m fuzz.instructions $(if $(CASES),--kernels $(CASES),--minutes $(MINUTES)) --seed $(SEED) --jobs $(JOBS) $(ARGS)

sanitize: $(TEST)
	PYTHONPATH=tests $(RUN) -m sanitize --fuzz $(FUZZ) --seed $(SEED) $(ARGS)

lint: $(TEST)
	$(BIN)/ruff check .
	$(RUN) -m mypy -p tilec

docs: $(TEST)
	$(RUN) -m pip install -q "matplotlib>=3.9"
	$(RUN) docs/make_pipeline.py
	$(RUN) -m benchmarks docs

site: $(TEST)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build -q

clean:
	rm -rf $(VENV) *.egg-info build site

# Editable: changed sources need no second install.
$(BASE): pyproject.toml | $(RUN)
	$(RUN) -m pip install -q -e ".$(if $(EXTRAS),[$(EXTRAS)])"
	@touch $@

$(TEST): pyproject.toml | $(RUN)
	$(RUN) -m pip install -q -e ".[test]"
	@touch $@ $(BASE)

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tilec needs Python 3.11 or later; this is $$($(PYTHON) --version 2>&1). Try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "cannot make $(VENV): on Debian and Ubuntu, apt install python3-venv"; exit 1; }
