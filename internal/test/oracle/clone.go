package oracle

import (
	"maps"
	"reflect"
)

// Clone returns a model that stands where m does, and that later calls of m do not touch.
// The two share scratch numbers: they are not safe for concurrent use.
func (m *Model) Clone() *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Model{main: m.main, own: maps.Clone(m.own), largest: m.largest, keys: make(map[string]*key, len(m.keys))}
	for name, k := range m.keys {
		c.keys[name] = &key{rule: k.rule, state: k.state.clone(), until: k.until}
	}
	return c
}

// Equal reports that no call can tell the models apart. It may fail to see that.
func (m *Model) Equal(other *Model) bool {
	a, b := m.Clone(), other.Clone() // without scratch
	if len(a.keys) != len(b.keys) || a.largest != b.largest || !a.main.equal(b.main) || !maps.EqualFunc(a.own, b.own, (*rule).equal) {
		return false
	}
	for name, k := range a.keys {
		o := b.keys[name]
		if o == nil || !k.rule.equal(o.rule) || !reflect.DeepEqual(k.until, o.until) || !reflect.DeepEqual(k.state, o.state) {
			return false
		}
	}
	return true
}

func (r *rule) equal(o *rule) bool {
	if r == o {
		return true
	}
	return r.cfg == o.cfg && (r.base == nil) == (o.base == nil) && (r.base == nil || r.base.cfg == o.base.cfg)
}
