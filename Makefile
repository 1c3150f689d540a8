# What there is to do with a working copy; `make` alone lists it.

CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help run release up down status test services check audit loadtest bench bench-test

help: ## list these targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target text; do printf '%-17s %s\n' "$$target" "$$text"; done

run: ## build the service and run it in lab mode, on an embedded database
	$(CARGO) run --release --locked -- lab

release:
	$(CARGO) build --release --locked

up: services release ## start two replicas behind nginx, with MariaDB, Redis and ZooKeeper, on this machine
	@scripts/replicas.sh up

status: ## tell which of them run, and where
	@scripts/replicas.sh status

down: ## stop them
	@scripts/replicas.sh down

test: services ## run every test, against real servers that the tests start themselves
	@crashes=$$(mktemp) && export TEST_CRASHES_FILE=$$crashes && \
	{ $(CARGO) test --workspace --locked; result=$$?; } && \
	echo "servers restarted after a crash: $$(wc -l <$$crashes)" && rm $$crashes && exit $$result

services: ## make sure that the servers' programs are installed, and install them where allowed
	@scripts/services.sh

check: ## check format, lints and documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --document-private-items --locked

loadtest: services release ## sell out through nginx with k6, and race the strategies with oha
	@loadtest/run.sh

BENCH_BINARY ?= target/release/stocklock

# With a binary of one's own, nothing is built.
bench: bench-test $(if $(filter file,$(origin BENCH_BINARY)),release) ## measure it beside its databases' own load tools, into docs/; BENCH=--help says more
	@scripts/services.sh bench
	@python3 -m bench --binary $(BENCH_BINARY) $(BENCH)

bench-test: ## check what `make bench` computes, and that it sends the statements of src/store
	@python3 -m unittest discover --quiet --top-level-directory . --start-directory bench/tests

audit: ## check licences and origins of the dependencies (needs cargo-deny)
	@$(CARGO) deny --version >/dev/null 2>&1 || \
		{ echo 'audit: cargo-deny is missing: cargo install --locked cargo-deny' >&2; exit 1; }
	$(CARGO) deny --workspace --locked check bans licenses sources
