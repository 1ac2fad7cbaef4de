package recommend

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// together is how many meters share a pass: more would need more memory, fewer read the requests more often.
const together = 4

// measure makes passes over the log, some at once, and hands on the needs of clients by each meter, in no certain order but one at a time. The
// needs are the callee's.
func (l *Log) measure(makers []func() meter, each func(i int, needs []int64)) error {
	type part struct {
		first  int
		makers []func() meter
	}
	parts := make(chan part, len(makers))
	for i := 0; i < len(makers); i += together {
		parts <- part{i, makers[i:min(i+together, len(makers))]}
	}
	close(parts)
	var mu sync.Mutex // of the variables below
	var failed error
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for p := range parts {
				meters, err := l.pass(p.makers)
				mu.Lock()
				if err != nil {
					failed = err
				}
				for i, m := range meters {
					if failed == nil {
						each(p.first+i, m.needs())
					}
				}
				mu.Unlock()
			}
		}()
	}
	workers.Wait()
	return failed
}

// pass shows all requests to meters.
func (l *Log) pass(makers []func() meter) ([]meter, error) {
	meters := make([]meter, len(makers))
	for i, make := range makers {
		meters[i] = make()
	}
	r := l.spool.Read()
	for r.Next() {
		for _, m := range meters {
			m.see(r.Client, r.Now)
		}
	}
	err := r.Err()
	for _, m := range meters {
		if s, ok := m.(*slidingLog); ok && err == nil {
			err = s.behind.Err()
		}
	}
	return meters, err
}

// The meters of the log's clients, to be made for a pass.

func (l *Log) slidingLog(period time.Duration) func() meter {
	return func() meter { return newSlidingLog(period, l.Clients.Len(), &l.spool) }
}

// enough returns the smallest limit under which at most that many clients are denied anything: the largest need of all other clients, of needs in
// ascending order.
func enough(needs []int64, denied int) int64 {
	if denied >= len(needs) {
		return 1
	}
	return needs[len(needs)-1-denied]
}

// percentile returns the need that so many per mille of clients, or more, do not exceed, of needs in ascending order.
func percentile(needs []int64, perMille int) int64 {
	return needs[max(0, (len(needs)*perMille+999)/1000-1)]
}

// ascending sorts needs, and returns the first client with the largest before.
func ascending(needs []int64) (largest int) {
	for i, n := range needs {
		if n > needs[largest] {
			largest = i
		}
	}
	slices.Sort(needs)
	return largest
}

// tail counts the clients that need so much or more, of needs in ascending order: for each number that occurs up to 10, and from there on for one in
// twelve percent.
func tail(needs []int64) (out []Tail) {
	for i, n := range needs {
		if i == 0 || n > needs[i-1] && (n <= 10 || float64(n) >= 1.12*float64(out[len(out)-1].Requests)) {
			out = append(out, Tail{n, len(needs) - i})
		}
	}
	if last := needs[len(needs)-1]; last > out[len(out)-1].Requests {
		first, _ := slices.BinarySearch(needs, last)
		out = append(out, Tail{last, len(needs) - first})
	}
	return out
}
