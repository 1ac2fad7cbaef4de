package recommend

import (
	"cmp"
	"runtime"
	"slices"
	"sync"

	"github.com/sluice-go/sluice/cmd/internal/spool"
)

// A measure is a meter to be made for a pass, and what to do with its needs when it has seen all requests.
type measure struct {
	// meter may take the memory of old, a meter that is done with or nil.
	meter func(old meter) meter
	uses  []func(*needs) // the i-th of the i-th needs
}

// needs is what each client needs by one meter. The slices hold until the next use.
type needs struct{ byClient, ascending []int64 }

func (n *needs) of(m meter, i int) {
	m.needs(i, n.byClient)
	copy(n.ascending, n.byClient)
	slices.Sort(n.ascending)
}

// batch is how many requests the meters of a pass see at once, one meter after the other.
const batch = 256

// measure makes passes over the log, some at once: with more meters in one they would need more memory, with fewer the requests are read more often.
// The uses come in no certain order but one at a time.
func (l *Log) measure(passes [][]measure) error {
	todo := make(chan []measure, len(passes))
	for _, pass := range passes {
		todo <- pass
	}
	close(todo)
	clients := l.Clients.Len()
	var mu sync.Mutex // of the variables below
	var failed error
	n := needs{make([]int64, clients), make([]int64, clients)}
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(passes)) {
		workers.Go(func() {
			var meters []meter
			for pass := range todo {
				var err error
				meters, err = l.pass(pass, meters)
				mu.Lock()
				failed = cmp.Or(failed, err)
				for i, m := range pass {
					for j, use := range m.uses {
						if failed == nil {
							n.of(meters[i], j)
							use(&n)
						}
					}
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return failed
}

// pass shows all requests to meters. old are the meters of the pass before, whose memory the new ones may take.
func (l *Log) pass(measures []measure, old []meter) ([]meter, error) {
	meters := make([]meter, len(measures))
	for i, m := range measures {
		var o meter
		if i < len(old) {
			o = old[i]
		}
		meters[i] = m.meter(o)
	}
	r, buf := l.spool.Read(), make([]spool.Request, batch)
	for requests := r.Batch(buf); len(requests) > 0; requests = r.Batch(buf) {
		for _, m := range meters {
			m.see(requests)
		}
	}
	err := r.Err()
	for _, m := range meters {
		if s, ok := m.(*slidingLog); ok {
			err = cmp.Or(err, s.reader.Err())
		}
	}
	return meters, err
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
