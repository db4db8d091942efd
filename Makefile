.PHONY: help setup test demo manifests docs format lock
.DEFAULT_GOAL := help

help:       ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
setup:      ## install what the lock files say
	@scripts/setup
test:       ## lint, types, tests; of one file: make test T=tests/test_readme.py
	@scripts/test $(T)
demo:       ## the whole experiment on this machine, emulated
	@./trnspec demo
manifests:  ## render manifests/ from experiments/
	@scripts/setup && .venv/bin/python -m cdk8s_charts
docs:       ## write the schema of experiment files, the generated parts of docs/ and the picture of the rooms
	@scripts/setup && .venv/bin/python -m tests.docs.experiment_pages && .venv/bin/python -m tests.docs.architecture
format:     ## format the code
	@scripts/setup && .venv/bin/ruff check --fix-only --quiet . && .venv/bin/ruff format .
lock:       ## write uv.lock, what is exported from it, and package-lock.json
	@scripts/setup && .venv/bin/uv lock
	@$(EXPORT) --no-default-groups --extra aws --group app --no-emit-project -o requirements.txt
	@$(EXPORT) --only-group tools -o images/tools/requirements.txt
	@$(EXPORT) --only-group lmeval -o images/lmeval/requirements.txt
	@.venv/bin/npm install --package-lock-only --ignore-scripts --no-audit --no-fund --loglevel=error --omit-lockfile-registry-resolved
EXPORT = .venv/bin/uv export --frozen --quiet --no-annotate
