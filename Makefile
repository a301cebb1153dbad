# Everything works on a machine that has only Python 3.11 or later and make: what is needed is installed into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PYTEST_ARGS ?=
JOBS ?= 2000
FAULTS ?=
CASES ?=
BENCH_ARGS ?=
# Other interpreters that are on the path try the suite too, without the explorer, which is the same on each.
OTHERS ?= 3.11 3.12 3.13 3.14

# Most long tests wait for a process that starts or ends, so two cores serve five processes.
PROCESSES ?= 5
# REST=1: `make test-all` leaves out what passed in this checkout before.
REST ?=

# The core: what most changes touch.
QUICK = tests/client tests/queue tests/jobs tests/worker tests/lifecycle/test_child_death.py tests/lifecycle/test_stopping.py \
	tests/model/test_mutants.py tests/test_layers.py tests/test_lua_headers.py
# What depends on the interpreter: signatures and types, threads, fork, signals, the end of a process.
INTERPRETED = tests/client tests/jobs tests/worker tests/observe tests/queue/test_outage.py tests/queue/test_durability.py \
	tests/testing/test_kit.py tests/testing/test_rehearsal.py tests/lifecycle/test_child_death.py tests/django/test_project.py
# These need a Cluster or Sentinel, and no other Python tries them.
DEPLOYED = tests/client/test_deployments.py

, := ,

# `make -n` runs every line that names $(MAKE) itself: parts that follow it in one line would run too.
SELF = $(MAKE) --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help demo pipeline quick test test-spark test-all test-pythons check pictures vendor lock docs bench chaos soak release clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; say make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@$(call installed,-e '.[all]',jobq)

# Each target installs what it runs, and says how long that took.
installed = began=$$(date +%s); $(BIN)/python -m pip install -q $(1) || exit 1; \
	touch $@; echo "installed what $(2) needs in $$(( $$(date +%s) - began )) s"

$(VENV)/.spark: pyproject.toml $(VENV)/.installed
	@echo "Spark and what it needs take 1.1 GB; the first time takes minutes"
	@$(call installed,-e '.[all$(,)spark]',Spark)

$(VENV)/.tested: pyproject.toml $(VENV)/.installed
	@$(call installed,--group test,make test)

$(VENV)/.tested-spark: pyproject.toml $(VENV)/.tested
	@echo "Spark and what it needs take 1.1 GB; the first time takes minutes"
	@$(call installed,--group spark,make test-spark)

$(VENV)/.tested-all: pyproject.toml $(VENV)/.tested-spark
	@$(call installed,--group all,make test-all)

$(VENV)/.checked: pyproject.toml $(VENV)/.tested-spark
	@$(call installed,--group check --group docs,make check)

$(VENV)/.released: pyproject.toml | $(VENV)/bin/python
	@$(call installed,--group release,make release)

demo: $(VENV)/.installed ## see it work: thousands of real files, one child killed in the middle
	$(BIN)/jobq demo

pipeline: $(VENV)/.spark ## the same with Spark: its history in a lake, 100,000 rows of a DataFrame as jobs, a page of reports
	$(BIN)/jobq demo --pipeline

quick: $(VENV)/.tested ## the core on Valkey alone, about a minute: queue, client, jobs, worker, the explorer's mutants
	$(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadfile --server first --deselect $(DEPLOYED) $(QUICK) $(PYTEST_ARGS)

test: $(VENV)/.tested ## every promise, on a real Valkey: about eight minutes; two targets more run the rest
	@$(BIN)/python -m tests.run "make test" --part test --server first -n $(PROCESSES) --dist loadfile $(PYTEST_ARGS)

test-spark: $(VENV)/.tested-spark ## the promises of Spark, in one session: about four minutes, once 1.1 GB are installed
	@$(BIN)/python -m tests.pipeline.archive
	@$(BIN)/python -m tests.run "make test-spark" --part spark --server first -p no:xdist tests/pipeline $(PYTEST_ARGS)

test-all: $(VENV)/.tested-all ## all tests: Redis too, other Pythons, long ones, all of Spark, browser, peers; REST=1: but what passed before
	@command -v sidekiq >/dev/null || echo "Ruby's sidekiq is not installed (apt-get install ruby-sidekiq): tests against it are not run"
	@command -v npm >/dev/null || echo "node and npm are not installed: tests against Node's libraries are not run"
	@# Every part runs, whatever the ones before it found; the end says which failed.
	@failed=; $(BIN)/python -m tests.pipeline.archive; \
	rm -f .pytest_cache/v/cache/lastfailed; \
	$(BIN)/python -m tests.run "make test-all" -n $(PROCESSES) --dist loadfile $(if $(REST),--rest) $(PYTEST_ARGS) || $(BIN)/python -m tests.again || failed="$$failed tests"; \
	$(SELF) test-pythons || failed="$$failed test-pythons"; \
	[ -z "$$failed" ] || { echo "make test-all: failed:$$failed" >&2; exit 1; }

test-pythons: $(VENV)/.tested ## what depends on the interpreter, on every other Python 3.11 to 3.14 that is on the path
	@failed=; here=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	for version in $(OTHERS); do \
		[ $$version = $$here ] && continue; \
		venv=$(VENV)-$$version; python=; \
		for found in $$(which -a python$$version 2>/dev/null); do \
			$$found -c 'import venv, ensurepip' 2>/dev/null && { python=$$found; break; }; \
		done; \
		[ "$$python" ] || { echo "Python $$version is not on the path: not tried"; continue; }; \
		echo "Python $$version:"; \
		if [ ! $$venv/.tested -nt pyproject.toml ]; then \
			{ [ -x $$venv/bin/python ] || $$python -m venv $$venv; } && \
			$$venv/bin/python -m pip install -q --upgrade pip && \
			$$venv/bin/python -m pip install -q -e '.[all]' --group engine && \
			touch $$venv/.tested || { failed="$$failed $$version"; continue; }; \
		fi; \
		rm -f .pytest_cache/v/cache/lastfailed; \
		$$venv/bin/python -m pytest -q -n $(PROCESSES) --dist loadfile --server first \
			--deselect $(DEPLOYED) $(INTERPRETED) || $$venv/bin/python -m tests.again --server first || \
			failed="$$failed $$version"; \
	done; \
	[ -z "$$failed" ] || { echo "make test-pythons: failed:$$failed" >&2; exit 1; }

check: $(VENV)/.checked ## ruff, mypy, pyright, bandit, pip-audit, layers, Lua headers, docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/bandit -q -r jobq -ll
	$(BIN)/python -m tests.security.audit
	$(BIN)/python -m pytest -q -p no:xdist tests/test_layers.py tests/test_lua_headers.py tests/test_house.py tests/test_shape.py
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

pictures: $(VENV)/.tested-all ## make the pictures of the dashboard that the documentation shows
	$(BIN)/python docs/make_pictures.py

vendor: $(VENV)/.installed ## fetch the JavaScript of others again, and compare it with vendor.toml
	$(BIN)/python -m tests.web.vendored

lock: $(VENV)/.checked ## write the versions installed here to .ci/constraints.txt, which CI installs
	{ echo '# The versions that CI installs, for each Python: `make lock` writes them anew.'; \
		$(BIN)/python -m pip freeze --exclude-editable; } > .ci/constraints.txt

release: $(VENV)/.released ## build wheel and sdist twice, check them, run the wheel in a bare venv, and write the SBOM: dist/
	.ci/release $(VENV)

docs: $(VENV)/.checked ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build -W -b html docs docs/_build/html

bench: $(VENV)/.tested-all ## beside nine peers, about 20 minutes; CASES="drain2 cpu" for some, BENCH_ARGS="--only own --runs 3"
	$(BIN)/python -m bench $(BENCH_ARGS) $(CASES)
	$(BIN)/python -m bench --report

chaos: $(VENV)/.tested ## every fault, with a ledger, and the long forms of its tests; JOBS=20000 FAULTS="--fault reset" for more or less
	@broken=0; \
	$(BIN)/jobq chaos --jobs $(JOBS) $(FAULTS) || broken=1; \
	if command -v redis-server >/dev/null; then \
		$(BIN)/jobq chaos --jobs $(JOBS) --server redis-server $(FAULTS) || broken=1; \
	else echo "redis-server is not installed: rehearsed on Valkey alone"; fi; \
	if [ ! "$(FAULTS)" ]; then JOBQ_CHAOS_JOBS=$(JOBS) $(BIN)/python -m pytest --timeout 1800 tests/chaos \
		--ignore tests/chaos/test_rounds.py --ignore tests/chaos/test_network_rounds.py \
		--ignore tests/chaos/test_shard_gone.py || broken=1; fi; \
	exit $$broken

soak: $(VENV)/.tested-all ## what make test-all has in short form, at full size: make chaos, and the explorer with one enqueue more, for a night
	@failed=; \
	$(SELF) chaos || failed="$$failed chaos"; \
	JOBQ_MODEL=large JOBQ_LIMITS=large $(BIN)/python -m pytest tests/model tests/limits -n 2 --dist loadfile $(PYTEST_ARGS) || failed="$$failed tests/model"; \
	JOBQ_EXAMPLES=new $(BIN)/python -m pytest -m hypothesis tests -n 2 --dist loadfile $(PYTEST_ARGS) || failed="$$failed examples"; \
	JOBQ_BURSTS=soak $(BIN)/python -m pytest tests/lifecycle/test_unique_bursts.py $(PYTEST_ARGS) || failed="$$failed unique"; \
	JOBQ_COUNTED_JOBS=10000 $(BIN)/python -m pytest tests/lifecycle/test_counted.py $(PYTEST_ARGS) || failed="$$failed counters"; \
	JOBQ_KIT=large $(BIN)/python -m pytest tests/testing $(PYTEST_ARGS) || failed="$$failed tests/testing"; \
	JOBQ_KEYS=soak $(BIN)/python -m pytest tests/queue/test_crowded_keys.py $(PYTEST_ARGS) || failed="$$failed keys"; \
	JOBQ_FLOWS=soak $(BIN)/python -m pytest tests/flows/test_histories.py $(PYTEST_ARGS) || failed="$$failed flows"; \
	JOBQ_SCHEDULES=whole $(BIN)/python -m pytest tests/schedules $(PYTEST_ARGS) || failed="$$failed tests/schedules"; \
	JOBQ_DJANGO=soak $(BIN)/python -m pytest tests/django $(PYTEST_ARGS) || failed="$$failed tests/django"; \
	JOBQ_OUTBOX=soak $(BIN)/python -m pytest tests/outbox $(PYTEST_ARGS) || failed="$$failed tests/outbox"; \
	JOBQ_WEB=soak $(BIN)/python -m pytest tests/web/test_budget.py tests/web/test_explored_states.py $(PYTEST_ARGS) || failed="$$failed web"; \
	JOBQ_PIPELINE=soak $(BIN)/python -m pytest --timeout 7200 tests/pipeline/test_source_kills.py tests/pipeline/lake/test_kills.py tests/pipeline/lake/test_lost_tasks.py tests/pipeline/lake/test_bucket.py tests/pipeline/test_lake_examples.py $(PYTEST_ARGS) || failed="$$failed pipeline"; \
	JOBQ_LAKE=soak $(BIN)/python -m pytest tests/pipeline/report/test_reference.py tests/pipeline/report/test_expired.py tests/pipeline/lake/test_job_runs.py $(PYTEST_ARGS) || failed="$$failed lake"; \
	[ -z "$$failed" ] || { echo "make soak: failed:$$failed" >&2; exit 1; }

clean: ## remove what make made
	rm -rf $(VENV) $(VENV)-3.* jobq-demo.html .bench .interop docs/_build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
