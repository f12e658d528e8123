# containerd's runtime v2 task manager and runc shim, in Rust. `make` alone says what there is to make.

CARGO   ?= cargo
HOST     = $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
PREFIX  ?= /usr/local
DESTDIR ?=
SHIMDIR ?= $(PREFIX)/libexec/containerd-rust
OLDEST_RUST = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# The shim runs once per pod on a node: linked statically and at a fixed address, its pages need no relocation and stay
# shared between all of them. An explicit --target keeps these flags off build scripts and macros, which cannot have them.
SHIM_RUSTFLAGS ?= -C target-feature=+crt-static -C relocation-model=static

SHIM     = $(CURDIR)/target/$(HOST)/release/containerd-shim-runc-v2
MANAGER  = $(CURDIR)/target/release/containerd-task-manager

# What tests, demo and benchmarks drive. Set SHIM_RUNC to run them against another shim, the Go one for example.
export SHIM_RUNC ?= $(SHIM)
export CTM       ?= $(MANAGER)

.DEFAULT_GOAL := help

##@ General

.PHONY: help
help: ## say what there is to make
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo

.PHONY: deps
deps: ## bring in toolchain, containerd, runc and crun (Debian 12 or newer, as root)
	@integration/deps/deps

.PHONY: peers
peers: deps ## build shims too that benchmarks compare with: the published Rust one, and the newest Go one where Go is
	@integration/deps/peers

##@ Build

.PHONY: build
build: build-shim build-manager ## build the shim and the task manager for release

.PHONY: build-shim
build-shim: ## build containerd-shim-runc-v2 alone
	RUSTFLAGS="$(SHIM_RUSTFLAGS)" $(CARGO) build --release --locked --target $(HOST) -p shim-runc

.PHONY: build-manager
build-manager: ## build containerd-task-manager alone
	$(CARGO) build --release --locked -p runtime-v2 --bins

.PHONY: go
go:
	@runtime-v2/plugin/build check

.PHONY: containerd
containerd: go build-manager ## build containerd with the task manager in it, and ctr, into target/containerd/bin (needs Go)
	@runtime-v2/plugin/build target/containerd/bin

.PHONY: install
install: ## install what was built below PREFIX (/usr/local); DESTDIR as usual
	@SHIM=$(SHIM) MANAGER=$(MANAGER) PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) SHIMDIR=$(SHIMDIR) scripts/install install

.PHONY: uninstall
uninstall: ## remove it again
	@PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) SHIMDIR=$(SHIMDIR) scripts/install uninstall

.PHONY: deb
deb: build ## make a Debian package in target/debian (cargo-deb, where it is missing, is built into .deps/ first)
	@scripts/deb $(SHIM) $(MANAGER)

.PHONY: clean
clean: ## remove everything that was built and brought in
	$(CARGO) clean
	rm -rf .deps

##@ Check and test

.PHONY: check
check: ## formatting, lints, documentation, licences, pure tests: no root, no network
	@scripts/check

.PHONY: oldest-rust
oldest-rust: ## compile everything with the oldest Rust that is promised (needs rustup, which brings it)
	rustup run --install $(OLDEST_RUST) cargo check --locked --workspace --all-targets --target-dir target/oldest-rust

.PHONY: audit
audit: ## ask RustSec for known faults of the dependencies (needs cargo-deny and the network)
	$(CARGO) deny --all-features --locked check advisories

.PHONY: pages
pages: ## write man page and completions of the task manager anew, from its command line
	PAGES=write $(CARGO) test --locked -q -p runtime-v2 --bin containerd-task-manager pages

.PHONY: compatibility
compatibility: ## write the README's table of versions, from what the last test run met
	@scripts/compatibility

.PHONY: test
test: deps build ## all tests: pure ones, then the binaries against real containerd, runc and crun (root)
	@scripts/test all

.PHONY: test-unit
test-unit: ## pure tests only: no root, no containers, no daemon
	@scripts/test unit

.PHONY: test-integration
test-integration: deps build ## the binaries against real containerd, runc and crun; T="lifecycle exec" for some themes
	@scripts/test integration $(T)

.PHONY: test-upgrade
test-upgrade: deps build ## the upgrade story on real releases, step by step; docs/upgrade.md tells what each proves
	@scripts/test integration upgrade

.PHONY: test-cri
test-cri: deps build ## the plugin and the containerd build with it, by crictl and critest (needs Go)
	@scripts/test integration cri cri_hostile

.PHONY: test-deb
test-deb: deps deb ## the Debian package in a clean Debian: installed, run, upgraded, purged; and all other packaging (root)
	@scripts/test integration packaging

.PHONY: test-cgroup2
test-cgroup2: deps build-shim ## the part of them that needs cgroup v2 alone, in an emulated guest
	@scripts/test guest

.PHONY: conformance
conformance: deps build-shim ## compare the shim with Go's, call by call, and write docs/conformance.md
	$(CARGO) run --locked -q -p integration --bin conformance
	@scripts/test integration conformance

.PHONY: soak
soak: deps build-shim ## thousands of execs and containers through one shim: does anything grow? (15 minutes at most)
	$(CARGO) run --release --locked -q -p integration --bin soak

.PHONY: fuzz
fuzz: ## let fuzzers look for bytes that break a parser (needs cargo-fuzz)
	@shim-runc/fuzz/run

.PHONY: demo
demo: deps build ## watch containers run through shim and task manager on three containerds, and nothing stay behind
	$(CARGO) run --locked -q -p integration --bin demo

.PHONY: demo-cri
demo-cri: go deps build containerd ## watch pods run through the task manager in a containerd build, by crictl (needs Go)
	@integration/deps/cri-tools
	$(CARGO) run --locked -q -p integration --bin demo-cri

.PHONY: bench
bench: peers build ## measure shim and manager beside containerd's own and the bare runtimes (quiet machine, root, 25 minutes)
	$(CARGO) run --release --locked -q -p integration --bin bench -- full

.PHONY: bench-quick
bench-quick: peers build ## the same with fewer rounds, in five minutes
	$(CARGO) run --release --locked -q -p integration --bin bench -- quick

.PHONY: bench-docs
bench-docs: ## put the last benchmark's tables and picture into README.md and docs/performance.md
	$(CARGO) run --release --locked -q -p integration --bin bench -- docs
