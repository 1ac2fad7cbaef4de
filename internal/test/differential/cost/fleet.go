//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
)

// The fleet: processes of sluice on one Redis, each with the load that one process gets beside them. A machine of few
// processors cannot show how many calls they admit, each with processors of its own. What a decision costs a service, and
// what it costs Redis, which all have in common, says which of them binds: so many decisions a second a service can make
// with a processor, and so many its Redis with one.

const (
	fleetSize = 4
	fleetRate = 1500 // calls a second of a process
	fleetMost = 3    // times what one process decides, at least
)

// fleetOf starts n processes.
func (b *sharedBench) fleetOf(ctx context.Context, n int) (*subject, error) {
	return b.several(ctx, fmt.Sprintf("%d sluiced serve", n), n, func(name string) (*subject, error) {
		return b.sluice(name, b.program, sharedRules, append(b.flags, "--store-prefix", fmt.Sprint("fleet", n))...)
	})
}

// fleet measures one process and several, and reports whether they decide as many times more as they should.
func (b *sharedBench) fleet(ctx context.Context, rounds, calls int) (bool, error) {
	sizes := []int{1, fleetSize}
	var list []*subject
	for _, n := range sizes {
		s, err := b.fleetOf(ctx, n)
		if err != nil {
			return false, err
		}
		list = append(list, s)
	}
	kept := true
	for _, w := range workloads() {
		if w.descriptors > 1 {
			continue
		}
		t := &sharedTable{name: fmt.Sprintf("fleet: %s, %d calls a second to each process", w.name, fleetRate), list: list, costs: map[*subject][]turnCost{}}
		for round := range rounds + 1 {
			for _, i := range rand.Perm(len(list)) {
				requests := w.requests(calls*sizes[i], round == 0)
				cost, err := b.counted(ctx, list[i], &w, requests, func(requests []request) error {
					_, err := list[i].offered(ctx, requests, float64(fleetRate*sizes[i]))
					return err
				})
				if err != nil {
					return false, err
				}
				if round > 0 {
					t.costs[list[i]] = append(t.costs[list[i]], cost)
				}
			}
		}
		t.print()
		kept = t.scales(sizes) && kept
	}
	return kept, nil
}

// scales says how many times as much several processes decide as one of them, where each has a processor, and Redis has one. What
// decisions cost is taken from the run of several: one that has little to do is woken for each call, which costs more.
func (t *sharedTable) scales(sizes []int) bool {
	n, s := float64(sizes[1]), t.list[1]
	byService, byRedis := 1e6/t.median(s, service), 1e6/t.median(s, redis)
	fmt.Printf("%.0f decisions for a second of processor time of a service, %.0f for one of Redis, which takes %.2f of what it takes for one process\n",
		byService, byRedis, t.ratio(s, t.list[0], redis))
	got := min(n*byService, byRedis) / min(byService, byRedis)
	return verdict(got >= fleetMost, fmt.Sprintf("%s: decisions of %d processes beside one, at least %d", t.name, sizes[1], fleetMost), got)
}
