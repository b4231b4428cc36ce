# Sluice. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
TOOL = $(GO) run ./hack/tool
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/sluice-dev/sluice/internal/version.Version=$(VERSION)
# What the end-to-end tests may take, all together.
E2E_TIMEOUT ?= 55m

.PHONY: help
help: ## List the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: need-go
need-go:
	@command -v $(GO) >/dev/null || { echo "make: Go 1.26 or newer is missing; install it and put it on PATH" >&2; exit 1; }

.PHONY: build
build: need-go ## Build the programs into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sluice-engine ./cmd/engine
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sluice-router ./cmd/router
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sluice-operator ./cmd/operator
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sluice-bench ./cmd/bench
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/kubectl-sluice ./cmd/kubectl-sluice
	install -m 0755 cmd/kubectl-sluice/kubectl_complete-sluice bin/kubectl_complete-sluice

.PHONY: images
images: need-go ## Build OCI images into dist/images, without Docker
	$(GO) run ./hack/images --out dist/images --version '$(VERSION)'

.PHONY: demo
demo: need-go ## The guided tour: cluster, operator, a PD service, a request, metrics, scaling
	@$(GO) run ./hack/demo

.PHONY: demo-down
demo-down: need-go ## Remove all that the demo made, the dev cluster included
	@$(GO) run ./hack/demo --down

.PHONY: test
test: need-go ## Run every test that needs no cluster
	@echo "test: tools that the tests start (built once into the cache)"
	@$(TOOL) build etcd kube-apiserver prometheus
	$(GO) test -timeout 30m ./...

.PHONY: race
race: need-go ## The same with the race detector
	@$(TOOL) build etcd kube-apiserver prometheus
	$(GO) test -race -timeout 60m ./...

# How long make soak gives each engine, two at a time: ten minutes in all.
SOAK ?= 5m

.PHONY: soak
soak: need-go ## Run engines under everything that clients and operators do to them, for 10 minutes
	SLUICE_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 60m ./test/soak

.PHONY: e2e
e2e: need-go ## End-to-end tests on the dev cluster, or on the cluster of KUBECONFIG
	@$(TOOL) build prometheus prometheus-operator prometheus-config-reloader prometheus-adapter
	$(GO) test -count=1 -v -tags e2e -timeout $(E2E_TIMEOUT) ./test/e2e/...

.PHONY: bench
bench: need-go ## Run the benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-metrics
bench-metrics: need-go ## Load a unified engine and a pair behind a router, and check what they expose against the contract
	$(GO) test -count=1 -v -timeout 20m ./test/metrics

.PHONY: bench-overhead
bench-overhead: need-go ## Compare an engine with all metrics and tracing at level 0 with one that has neither
	$(GO) run ./hack/overhead

# All files that exist, tracked or new, with their content.
TREE = git ls-files -co --exclude-standard | LC_ALL=C sort | xargs -d '\n' sha256sum 2>/dev/null || true

.PHONY: generate
generate: need-go ## Generate deep copies, CRDs, RBAC, protobuf code, kernels, reference pages, dashboards and the operator's rules
	$(TOOL) run controller-gen object paths=./api/...
	$(TOOL) run controller-gen crd paths=./api/... output:crd:dir=config/crd/bases
	rm -f charts/sluice/files/crds/*.yaml
	cp config/crd/bases/*.yaml charts/sluice/files/crds/
	$(TOOL) run controller-gen --load-build-tags=rbac rbac:roleName=sluice-operator paths=./controllers/... output:rbac:dir=charts/sluice/files
	$(GO) generate ./engine/... ./gpu/...
	$(GO) run ./hack/reference docs
	$(GO) run ./hack/dashboard monitoring/grafana/dashboards/sglang-dashboard.json
	$(GO) run ./hack/chart charts/sluice/files

.PHONY: verify
verify: need-go ## Generate again and fail on any difference; vet, format and lint
	@before=$$($(TREE)); $(MAKE) --no-print-directory generate; after=$$($(TREE)); \
	if [ "$$before" != "$$after" ]; then \
		echo "verify: generated files were out of date; commit what make generate makes:" >&2; \
		diff <(echo "$$before") <(echo "$$after") | awk '/^[<>]/ {print "  " $$3}' | sort -u >&2; exit 1; \
	fi
	$(GO) mod tidy -diff
	$(GO) -C test/traces/collector mod tidy -diff
	$(GO) -C test/traces/collector vet .
	$(GO) -C test/monitoring/compose mod tidy -diff
	$(GO) vet ./...
	$(GO) vet -tags e2e,devcluster ./test/e2e ./hack/devcluster/...
	$(GO) vet -tags invariants ./engine/...
	@$(MAKE) --no-print-directory lint

.PHONY: lint
lint: need-go ## Run the linters and the format check
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "lint: run gofmt -w on:" >&2; echo "$$unformatted" >&2; exit 1; fi
	$(TOOL) run golangci-lint run ./...
	$(TOOL) run helm lint --quiet charts/sluice
