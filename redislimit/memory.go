package redislimit

// A memory keeps the last states that were seen of keys, to send them with the next calls: so
// states that Redis has lost are restored. Two keys that collide could only make each other's state
// stricter. Times are in us of Unix time.
type memory struct{ *table[string] }

// last returns the state of key that was seen last, or nothing. The state may be out of date; the
// script finds that out.
func (m memory) last(key string) string {
	state, _, _ := m.get(m.id(key), 0)
	return state
}

// see notes a state of key, which is out of date from fresh on; now is the time of the reply.
// Replies can come in another order than the scripts ran in. The generation and the time, with which
// states begin, tell which of two states is newer.
func (m memory) see(key, state string, now, fresh int64) {
	m.update(m.id(key), now, func(last string, until int64) (string, int64) {
		if state == "" || until > 0 && last[1:] > state[1:] {
			return last, until
		}
		return state, fresh
	})
}
