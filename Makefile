# Every target sets up what it needs; the first one takes a minute for that.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-quick test-gpu check bench clean

demo: .venv/ready
	@out=$$(mktemp -d)/demo && $(BIN)/purine train --net lenet --data fashion-mini --epochs 10 --lr 0.02 --seed 0 --out $$out && $(BIN)/purine test $$out

test: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-quick: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not multiprocess" tests

test-gpu: .venv/ready
	$(BIN)/python -m pytest -m gpu tests

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

bench: .venv/ready
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/step.py --net nin --batch 64

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
