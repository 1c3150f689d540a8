# Common tasks in a working copy. `make` without a target lists them.

CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help run dist testkit up down status test services tools verify mutations check audit loadtest bench bench-locks bench-test

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target text; do printf '%-17s %s\n' "$$target" "$$text"; done

run: ## build the service and run it in lab mode, with an embedded database
	$(CARGO) run --release --locked -- lab

# The build for production, and what starts the private servers of `make up`, `make loadtest` and
# `make bench`.
dist:
	$(CARGO) build --profile dist --locked --package stocklock --package stocklock-testkit

testkit:
	$(CARGO) build --profile dist --locked --package stocklock-testkit

up: services dist ## start two replicas behind nginx, with Redis, ZooKeeper and MariaDB; ENGINE=galera, patroni, sharded
	@ENGINE=$(ENGINE) scripts/replicas.sh up

status: ## show which processes of `make up` run, and where
	@scripts/replicas.sh status

down: ## stop the processes of `make up`
	@scripts/replicas.sh down

test: services tools ## run the tests, against real servers that they start
	@CARGO=$(CARGO) tests/run.sh

# SEED=… is the seed of all random choices; OLD=… is the commit of the previous release; PART=… is one
# of the parts that tests/verify.sh lists.
verify: services tools dist ## run the counted promises at full size, 20 minutes a part: SEED=… PART=…
	@SEED=$(SEED) PART=$(PART) tests/verify.sh

tools: ## install what the tests need besides servers: schemathesis, a browser, cargo-nextest
	@CARGO=$(CARGO) tests/install.sh

services: ## check that the servers' programs are installed; install them if allowed
	@scripts/services.sh

check: bench-test ## check format, lints, rules for the sources, documentation and the calculations of the bench
	@python3 tests/tidy.py
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --features stocklock-locks-bench/peers -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --document-private-items --locked

mutations: services ## check that a test fails for each change of the code in tests/mutations.json; MUTATIONS=... selects
	@python3 tests/mutations.py $(MUTATIONS)

loadtest: services dist ## sell out a SKU through nginx with k6, then load each strategy with oha
	@loadtest/run.sh

BENCH_BINARY ?= target/dist/stocklock

# If BENCH_BINARY is set, the service is not built.
bench: bench-test $(if $(filter file,$(origin BENCH_BINARY)),dist,testkit) ## measure throughput, write docs/performance.*; BENCH=--help lists the options
	@scripts/services.sh bench
	@python3 -m bench --binary $(BENCH_BINARY) $(BENCH)

bench-locks: services testkit ## compare the lock crate with rslock and zookeeper-client, write docs/performance.md
	$(CARGO) build --profile dist --locked --package stocklock-locks-bench --features peers
	@python3 -m bench --locks

bench-test: ## test the calculations of `make bench`, and the statements that it sends
	@python3 -m unittest discover --quiet --top-level-directory . --start-directory bench/tests

audit: ## check licences and sources of the dependencies (needs cargo-deny)
	@$(CARGO) deny --version >/dev/null 2>&1 || \
		{ echo 'audit: cargo-deny is missing: cargo install --locked cargo-deny' >&2; exit 1; }
	$(CARGO) deny --workspace --locked check bans licenses sources
