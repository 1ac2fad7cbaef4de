package replay

import "math/bits"

// maxParts is the most parts that a sparkline has; it has more than half of them unless the log is shorter.
const maxParts = 64

// sparkline counts denials of a client in equal parts of the log, which double when the log outgrows them.
type sparkline struct {
	shift  int // a part is 1<<shift nanoseconds long
	counts [maxParts]int64
}

// shiftAt returns the shift that a log of such a length needs.
func shiftAt(length int64) int { return max(0, bits.Len64(uint64(length))-6) }

// reach makes the parts as long as a log of such a length needs.
func (s *sparkline) reach(length int64) {
	for want := shiftAt(length); s.shift < want; s.shift++ {
		for i := range maxParts / 2 {
			s.counts[i] = s.counts[2*i] + s.counts[2*i+1]
		}
		clear(s.counts[maxParts/2:])
	}
}

// see counts a denial at such a time after the beginning of the log.
func (s *sparkline) see(after int64) {
	s.reach(after)
	s.counts[after>>s.shift]++
}

// parts returns the counts of a log of such a length.
func (s *sparkline) parts(length int64) []int64 {
	s.reach(length)
	return s.counts[:length>>s.shift+1]
}

// Sparklines lets the Result have Client.OverTime. It must come before the first request.
func (r *Replay) Sparklines() { r.sparks = map[int]*sparkline{} }

// spark counts a request that a rule has denied.
func (r *Replay) spark(id int) {
	s := r.sparks[id]
	if s == nil {
		s = new(sparkline)
		r.sparks[id] = s
	}
	s.see(r.log.Now - r.begin)
}
