.PHONY: test full short changed quick race bench peers guard fuzz tidy check

test: ## all tests of all modules
	go test work

full: ## the same, as far as the gate goes
	SLUICE_DEPTH=full go test -timeout 30m work

short: ## the quick ones
	go test -short work

changed: ## vets and tests the packages that this branch has changed, in a minute or two
	.ci/changed

quick: ## what to run before each commit: a few minutes
	.ci/run quick

race:
	go test -race -short . ./httplimit

bench: ## compares the algorithms
	go test -run '^$$' -bench . .

peers: ## measures beside other limiters, and writes what the READMEs say
	cd benchmarks && GOWORK=off go run .

guard: ## fails if a fast path has been lost
	cd benchmarks && GOWORK=off go run . guard

fuzz: ## one minute of comparing with the models
	go test -run '^$$' -fuzz '^FuzzDecisions$$' -fuzztime 60s -fuzzminimizetime 0 ./internal/test/metamorphic

tidy: ## go mod tidy for every module: the tree's own versions are not released yet
	.ci/release tidy

check: ## all that the gate runs
	.ci/run
