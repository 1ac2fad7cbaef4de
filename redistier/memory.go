package redistier

// A memory keeps the last states that were seen of keys, to send them with the next calls:
// what Redis loses is put back. Two keys that collide could only make each other's state
// stricter. Times are in us of Unix time.
type memory struct{ *table[string] }

// last returns the state of key that was seen last, or nothing. It may tell nothing any
// more, which the script finds out.
func (m memory) last(key string) string {
	state, _, _ := m.get(m.id(key), 0)
	return state
}

// see notes a state of key, which says nothing from fresh on; now is the time of the reply.
// Replies can come in another order than the scripts ran in: generation and time, which
// states begin with, say which of two is the newer.
func (m memory) see(key, state string, now, fresh int64) {
	m.update(m.id(key), now, func(last string, until int64) (string, int64) {
		if state == "" || until > 0 && last[1:] > state[1:] {
			return last, until
		}
		return state, fresh
	})
}
