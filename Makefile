.PHONY: test short race bench fuzz check

test: ## all tests of all modules
	go test work

short: ## the quick ones
	go test -short work

race:
	go test -race -short .

bench: ## compares the algorithms
	go test -run '^$$' -bench . .

fuzz: ## one minute of comparing with the models
	go test -run '^$$' -fuzz '^FuzzDecisions$$' -fuzztime 60s .

check: ## all that the gate runs
	.ci/run
