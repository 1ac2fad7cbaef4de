package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

func sortDurations(d []time.Duration) { slices.Sort(d) }

// A Tally says how many calls each window has admitted. When a call was decided is known to be between its beginning and
// its end, so where these are in different windows, it may belong to any of them.
type Tally struct {
	First    int64 // the number of the first window since 1970
	Sure     []int // admitted calls of each window that are in no other
	Possible []int // that and those that may be
	Offered  []int // calls of each window, admitted or not, that are in no other
	spans    []span
}

type span struct{ from, to int64 } // windows

// Count counts admitted calls by windows of a period, as a clock has them that is ahead by offset.
func Count(calls []Call, period, offset time.Duration) Tally {
	var t Tally
	window := func(at time.Time) int64 { return at.Add(offset).UnixNano() / int64(period) }
	offered := map[int64]int{}
	for i := range calls {
		s := span{window(calls[i].Sent), window(calls[i].Back)}
		if calls[i].Admitted {
			t.spans = append(t.spans, s)
		}
		if s.from == s.to {
			offered[s.from]++
		}
	}
	if len(t.spans) == 0 {
		return t
	}
	t.First = slices.MinFunc(t.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) }).from
	last := slices.MaxFunc(t.spans, func(a, b span) int { return cmp.Compare(a.to, b.to) }).to
	t.Sure, t.Possible, t.Offered = make([]int, last-t.First+1), make([]int, last-t.First+1), make([]int, last-t.First+1)
	for i := range t.Offered {
		t.Offered[i] = offered[t.First+int64(i)]
	}
	for _, s := range t.spans {
		if s.from == s.to {
			t.Sure[s.from-t.First]++
		}
		for w := s.from; w <= s.to; w++ {
			t.Possible[w-t.First]++
		}
	}
	return t
}

// Within returns an error unless the calls may have been decided so that no window has admitted more than most.
//
// That is so exactly if any windows that follow each other contain at most what they may: no call has a hole in it.
func (t *Tally) Within(most int) error {
	return t.each(func(a, b int64, sure, _ int) error {
		if limit := int(b-a+1) * most; sure > limit {
			return fmt.Errorf("windows %d to %d admitted %d, which is more than %d", a-t.First, b-t.First, sure, limit)
		}
		return nil
	})
}

// AtLeast returns an error unless the calls may have been decided so that each window has admitted a share of a limit, or of what
// it was offered, if that is less: the machine may be too busy to offer what it should.
func (t *Tally) AtLeast(limit int, share float64) error {
	return t.each(func(a, b int64, _, possible int) error {
		want := 0
		for w := a; w <= b; w++ {
			want += int(share * float64(min(limit, t.Offered[w-t.First])))
		}
		if possible < want {
			return fmt.Errorf("windows %d to %d admitted %d, which is less than %d", a-t.First, b-t.First, possible, want)
		}
		return nil
	})
}

// each visits each row of windows, with the calls that are surely in it and those that may be.
func (t *Tally) each(f func(a, b int64, sure, possible int) error) error {
	end := t.First + int64(len(t.Sure))
	for a := t.First; a < end; a++ {
		for b := a; b < end; b++ {
			sure, possible := 0, 0
			for _, s := range t.spans {
				if s.from >= a && s.to <= b {
					sure++
				}
				if s.from <= b && s.to >= a {
					possible++
				}
			}
			if err := f(a, b, sure, possible); err != nil {
				return err
			}
		}
	}
	return nil
}

// Spans returns an error if a span of time has surely admitted more than worst says, and more.
func Spans(calls []Call, more int, worst func(time.Duration) int) error {
	var in []Call
	for _, c := range calls {
		if c.Admitted {
			in = append(in, c)
		}
	}
	slices.SortFunc(in, func(a, b Call) int { return a.Back.Compare(b.Back) })
	for i := range in { // spans that begin as call i was sent
		n := 0
		for j := range in {
			if in[j].Sent.Before(in[i].Sent) {
				continue
			}
			n++
			if d := in[j].Back.Sub(in[i].Sent); n > 1 && n > worst(d)+more {
				return fmt.Errorf("%d were admitted in %v, and at most %d may be", n, d, worst(d)+more)
			}
		}
	}
	return nil
}
