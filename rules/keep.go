package rules

import (
	"strings"

	"github.com/sluice-go/sluice"
)

// keeper stores the parts of a set in a few large objects. As long as the rules are in force, the garbage collector
// looks at every object that has pointers, on processors that calls wait for.
type keeper struct {
	text    strings.Builder // of paths, one behind the other
	nodes   []node
	rules   []Rule
	levels  []*node
	configs map[sluice.Config]*sluice.Config
}

// grown is the size of the next large object, in elements.
func grown(last, most int) int { return max(8, min(2*last, most)) }

// one returns the next element of *slab, in a new slab if it is full.
func one[T any](slab *[]T) *T {
	if len(*slab) == cap(*slab) {
		*slab = make([]T, 0, grown(cap(*slab), 128))
	}
	*slab = (*slab)[:len(*slab)+1]
	return &(*slab)[len(*slab)-1]
}

// node returns a descriptor below parent, and its path. The descriptor's names are parts of the path.
func (k *keeper) node(parent, key, value string) (*node, string) {
	if size := len(parent) + len(key) + len(value) + 2; k.text.Cap()-k.text.Len() < size {
		last := k.text.Cap()
		k.text.Reset()
		k.text.Grow(max(size, grown(last, 1<<14)))
	}
	from := k.text.Len()
	k.text.WriteString(parent)
	k.text.WriteByte('.')
	k.text.WriteString(key)
	if value != "" {
		k.text.WriteByte('_')
		k.text.WriteString(value)
	}
	path := k.text.String()[from:]
	n := one(&k.nodes)
	n.name, n.keyLen = path[len(parent)+1:], len(key)
	n.pattern = newPattern(n.value())
	return n, path
}

// below returns above followed by n.
func (k *keeper) below(above []*node, n *node) []*node {
	size := len(above) + 1
	if cap(k.levels)-len(k.levels) < size {
		k.levels = make([]*node, 0, max(size, grown(cap(k.levels), 1024)))
	}
	from := len(k.levels)
	k.levels = append(append(k.levels, above...), n)
	return k.levels[from:len(k.levels):len(k.levels)]
}

// config returns a copy of c. Equal configurations share one copy.
func (k *keeper) config(c sluice.Config) *sluice.Config {
	if k.configs == nil {
		k.configs = map[sluice.Config]*sluice.Config{}
	}
	known := k.configs[c]
	if known == nil {
		kept := c // not c itself, which would then be allocated in any case
		known = &kept
		k.configs[c] = known
	}
	return known
}
