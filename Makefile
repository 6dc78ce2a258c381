# All targets run on a fresh Debian 12 with Go, a C compiler and make, as root.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --warn-undefined-variables --no-print-directory
.DEFAULT_GOAL := help

VERSION    := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
KUBERNETES := v1.36.3
TAGS       := no_btrfs,no_zfs,no_devmapper,grpcnotrace
STAMP      := $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,-X $(p).gitVersion=$(KUBERNETES)+balsa -X $(p).gitMajor=1 -X $(p).gitMinor=36 -X $(p).gitTreeState=clean)
LDFLAGS    := -s -w -X main.version=$(VERSION) $(STAMP)
TOOLS      := node/runtime/tools
ASSETS     := node/runtime/assets
ASSET_SRC  := $(shell find $(TOOLS) -type f)
GO_SRC     := $(shell find cmd control fault leader node overlay raftstore -name '*.go' -not -path '$(TOOLS)/*' 2>/dev/null)
export CGO_ENABLED := 0
export GOFLAGS := -buildvcs=false -trimpath
PKGS       ?= ./...
RUN        ?= .
USED       := bin/kubectl bin/helm bin/operator bin/hostile# programs that tests use clusters with

.PHONY: help build up down status test race unit e2e panics ecosystem crash linear sim net conformance badapi diffread vm bench bench-ha bench-net bench-api policy record-corpus fuzz vet fmt deps testdeps clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

up: build ## build, start a cluster of this machine, wait until it works
	@bin/balsa up

down: ## stop the cluster and leave the machine as it was (its data stays; see balsa down --help)
	@if [ -x bin/balsa ]; then bin/balsa down; else echo "bin/balsa is not built: nothing was started from here"; fi

status: ## show what runs on this machine
	@bin/balsa status

build: bin/balsa ## build bin/balsa with everything that is inside it

bin/balsa: $(ASSETS)/MANIFEST $(GO_SRC) go.mod go.sum
	@echo "building bin/balsa (the first build compiles the Kubernetes libraries: some minutes)"
	@mkdir -p bin
	@go build -tags $(TAGS) -ldflags "$(LDFLAGS)" -o bin/balsa ./cmd/balsa
	@ls -l bin/balsa | awk '{printf "bin/balsa: %.0f MB\n", $$5/1e6}'

bin/kubectl: $(wildcard e2e/kubectl/*.go) go.mod go.sum # upstream's client, for the tests
	@mkdir -p bin
	@go build -ldflags "$(LDFLAGS)" -o bin/kubectl ./e2e/kubectl

# What other people wrote, in modules of its own; go.mod of each keeps to the
# versions that balsa is built with, so that little is compiled twice.
bin/helm: e2e/helm/go.mod e2e/helm/go.sum # Helm, for the tests
	@mkdir -p bin
	@cd e2e/helm && go build -ldflags "-s -w $(HELM_STAMP)" -o ../../bin/helm helm.sh/helm/v3/cmd/helm
HELM_STAMP := $(foreach p,pkg/chartutil pkg/lint/rules,-X helm.sh/helm/v3/$(p).k8sVersionMajor=1 -X helm.sh/helm/v3/$(p).k8sVersionMinor=36)

bin/operator: $(shell find e2e/operator -name '*.go') e2e/operator/go.mod e2e/operator/go.sum # an operator, for the tests
	@mkdir -p bin
	@cd e2e/operator && go build -ldflags "-s -w" -o ../../bin/operator ./cmd

bin/hostile: $(wildcard e2e/hostile/*.go) go.mod go.sum # an agent that was taken over, for the tests
	@mkdir -p bin
	@go build -ldflags "-s -w" -o bin/hostile ./e2e/hostile

# The programs that run once per pod, and the carried images. runc is the one
# that needs the C compiler, and libseccomp for seccomp profiles.
$(ASSETS)/MANIFEST: $(ASSET_SRC)
	@$(MAKE) deps
	@echo "building runc, the shim, the CNI plugins and the carried images"
	@rm -rf bin/assets && mkdir -p bin/assets
	@pkg-config --exists libseccomp || { echo "libseccomp is missing, with which runc confines containers: install libseccomp-dev and pkg-config (Debian's names)" >&2; exit 1; }
	@cd $(TOOLS) && CGO_ENABLED=1 go build -tags "netgo,osusergo,runc_nocriu,seccomp" -ldflags "-s -w -linkmode external -extldflags -static" -o ../../../bin/assets/runc github.com/opencontainers/runc
	@cd $(TOOLS) && go build -tags $(TAGS) -ldflags "-s -w" -o ../../../bin/assets/ \
		github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 \
		github.com/containernetworking/plugins/plugins/{main/bridge,main/loopback,ipam/host-local,meta/bandwidth} ./hello
	@$(CC) -Os -static -s -o bin/assets/pause $(TOOLS)/pause/pause.c
	@cd $(TOOLS) && go run ./pack ../../../bin/assets ../assets
	@rm -rf bin/assets

deps: # the one build dependency beside Go and a C compiler, where apt-get can bring it
	@pkg-config --exists libseccomp 2>/dev/null || { ! command -v apt-get >/dev/null || { echo "installing libseccomp-dev and pkg-config"; \
		{ apt-get install -yqq libseccomp-dev pkg-config || { apt-get update -qq && apt-get install -yqq libseccomp-dev pkg-config; }; } >/dev/null 2>&1; } || true; }

testdeps: # what the tests look into the kernel with, where apt-get can bring it
	@command -v nft >/dev/null && command -v nsenter >/dev/null && command -v ip >/dev/null && command -v dbus-daemon >/dev/null || { ! command -v apt-get >/dev/null || { echo "installing nftables, iproute2, util-linux and dbus-daemon for the tests"; \
		{ apt-get install -yqq nftables iproute2 util-linux dbus-daemon || { apt-get update -qq && apt-get install -yqq nftables iproute2 util-linux dbus-daemon; }; } >/dev/null 2>&1; } || true; }
	@command -v nft >/dev/null || { echo "nft is missing, with which tests read the kernel's rules: install nftables (Debian's name)" >&2; exit 1; }

test: build testdeps $(USED) ## every test: units, then whole clusters with real containers (root)
	@go vet -tags $(TAGS) ./...
	@cd e2e/operator && go vet ./... && go test ./...
	@go test -tags $(TAGS) -timeout 20m -count=1 ./...

race: ## the race detector over everything that starts no cluster; RACE=./raftstore/... narrows it
	@CGO_ENABLED=1 go test -race -tags $(TAGS) -timeout 60m $(RACE)
RACE ?= $$(go list ./... | grep -v /e2e)

unit: testdeps ## the tests that start no cluster; PKGS and RUN narrow them
	@go test -tags $(TAGS) -run '$(RUN)' $$(go list $(PKGS) | grep -v /e2e)

e2e: build testdeps $(USED) ## whole clusters with real containers (root); RUN narrows them
	@go test -tags $(TAGS) -timeout 30m -count=1 -v -run '$(RUN)' ./e2e/...

panics: build bin/balsa-failpoint $(USED) ## panics in more than forty places of a running server: each ends only one unit of work (root); RUN names one
	@BALSA_BIN=../bin/balsa-failpoint go test -tags $(TAGS),failpoint -timeout 60m -count=1 -v -run 'TestPanicsStayWhereTheyAre/$(RUN)' ./e2e

bin/balsa-failpoint: $(ASSETS)/MANIFEST $(GO_SRC) go.mod go.sum
	@mkdir -p bin
	@go build -tags $(TAGS),failpoint -ldflags "$(LDFLAGS)" -o bin/balsa-failpoint ./cmd/balsa

OTHER ?=
NETNS ?=
ecosystem: $(if $(OTHER),$(ASSETS)/MANIFEST,build) $(USED) ## Helm and an operator; OTHER=KUBECONFIG NETNS=NAME: on that cluster instead of Balsa (root)
	@go test -tags $(TAGS) -timeout 30m -count=1 -v -run TestEcosystem ./e2e $(if $(OTHER),-other-kubeconfig $(abspath $(OTHER)) -other-netns $(NETNS))

crash: build bin/kubectl ## kill -9 of the server at random moments under a write load, ROUNDS times (root)
	@go test -tags $(TAGS) -timeout 60m -count=1 -v -run TestCrashUnderLoad ./e2e -crash-rounds $(ROUNDS)
ROUNDS ?= 50

linear: build ## clients, watchers and faults against SERVERS servers, RUNS times 30 s; the histories are checked (root)
	@go run ./e2e/linear -bin bin/balsa -servers $(SERVERS) -runs $(RUNS) -parallel $(PARALLEL) $(LINEAR)
RUNS     ?= 10
SERVERS  ?= 3,5
PARALLEL ?= 1
LINEAR   ?=

net: build ## four hosts on two subnets, NETROUNDS rounds of deleted kernel objects and killed processes (root)
	@go test -tags $(TAGS) -timeout 120m -count=1 -v -run TestNetworkOfFourHosts ./e2e -network-rounds $(NETROUNDS)
NETROUNDS ?= 20

conformance: build ## upstream's cases on two nodes: UPSTREAM=DIR of e2e.test, ginkgo, kubectl; CONFORMANCE="-images DIR -cases FILE -only REGEXP" (root)
	@go run -tags $(TAGS) ./e2e/conformance -balsa bin/balsa $(addprefix -upstream ,$(UPSTREAM)) $(CONFORMANCE)
CONFORMANCE ?=

badapi: build ## REQUESTS random requests of everything served; then bombs, and what another client notices of them (root)
	@go test -tags $(TAGS) -timeout 240m -count=1 -v -run TestRandomRequests ./control/badapitest -badapi.requests $(REQUESTS)
	@go run -tags $(TAGS) ./e2e/badapi -balsa bin/balsa
REQUESTS ?= 200000

diffread: ## REQUESTS generated requests with the fast reads and without: any difference in status, headers or bytes fails
	@go test -tags $(TAGS) -timeout 240m -count=1 -v -run TestFastReadsAnswerAsApiserverDoes ./control -same.requests $(REQUESTS)

vm: build ## whole machines (QEMU): install.sh under systemd, upgrade, a clock that jumps, uninstall; VM=flags (root)
	@go run ./e2e/vm -balsa bin/balsa $(VM)
VM ?=

sim: ## clusters in fake time under faults, one for each of SEEDS seeds
	@go test -timeout 120m -count=1 -run TestSimulatedClusters ./raftstore -sim-seeds $(SEEDS)
SEEDS ?= 1000

policy: ## NetworkPolicies by real packets between real pods, WORLDS of them, against an oracle (root)
	@go test -tags $(TAGS) -timeout 60m -count=1 -v -run TestMatrix ./overlay/policy -policy-runs $(WORLDS) | grep -v '^time='
WORLDS ?= 100

bench-ha: build ## figures of three servers; UPSTREAM=DIR with etcd and etcd-benchmark measures them beside (root)
	@go run -tags $(TAGS) ./e2e/bench/ha -balsa bin/balsa $(addprefix -upstream ,$(UPSTREAM)) $(BENCH)
UPSTREAM ?=
BENCH    ?=

bench-net: build bin/alone ## figures of the network beside what is made by hand; UPSTREAM=DIR with kube-proxy measures it beside (root)
	@go run -tags $(TAGS) ./e2e/bench/net -balsa bin/balsa -alone bin/alone $(addprefix -upstream ,$(UPSTREAM)) $(BENCH)

bin/alone: $(GO_SRC) go.mod go.sum # the network by itself, for its figures
	@mkdir -p bin
	@go build -tags $(TAGS) -ldflags "$(LDFLAGS)" -o bin/alone ./overlay/alone

bench-api: build ## figures of the API; UPSTREAM=DIR with kube-apiserver and etcd measures them beside; BENCH=flags (root)
	@go run -tags $(TAGS) ./e2e/bench/api -balsa bin/balsa $(addprefix -upstream ,$(UPSTREAM)) $(BENCH)

bench: build ## measure this build: start-up, idle cost, throughput, pod start
	@go run -tags $(TAGS) ./e2e/bench/node -balsa bin/balsa

record-corpus: ## upstream's answers that control/corpus compares with, recorded anew: UPSTREAM=DIR with etcd and kube-apiserver; CORPUS="-parts scenarios"
	@go run -tags $(TAGS) ./control/corpus/record $(addprefix -upstream ,$(UPSTREAM)) $(CORPUS)
CORPUS ?=

fuzz: ## every fuzz target for FUZZTIME each
	@for pkg in $$(go list ./... ); do for f in $$(go test -tags $(TAGS) -list '^Fuzz' $$pkg 2>/dev/null | grep ^Fuzz || true); do \
		echo "$$pkg $$f"; go test -tags $(TAGS) -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg; done; done
FUZZTIME ?= 30s

vet: ## static checks
	@go vet -tags $(TAGS) $(PKGS)
	@test -z "$$(gofmt -l $(GO_SRC) | tee /dev/stderr)"
	@go mod tidy -diff

fmt: ## format the code
	@gofmt -w $(GO_SRC)

clean: ## remove what was built
	@rm -rf bin $(ASSETS)/bin $(ASSETS)/images $(ASSETS)/MANIFEST
