package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/sluice-go/sluice"
)

// A snapshot is, in little endian:
//
//	magic with version      16 bytes
//	the key of the hash     16 bytes
//	for each limiter
//	  length of its name    4 bytes, never 0
//	  name
//	  length of its state   8 bytes
//	  state                 as sluice.Limiter.Snapshot writes it
//	0                       4 bytes
//	SHA-256 of all before   32 bytes
//
// A name identifies the limiter's owner, and all of its configuration except the limit. State under
// another name is left out at the restore.
const snapshotMagic = "sluice rules \x00\x00\x01"

// denialSection is the name of the section of denied hits. No limiter has this name.
const denialSection = "denied hits"

// spillSection is the name of the section of units that came from second budgets.
const spillSection = "units of second budgets"

// errStoreState is the error of Snapshot and Restore if a Store has the counts.
var errStoreState = errors.New("rules: a Store has the counts; want no snapshot of the engine")

// maxName bounds a section's name, so that a damaged length does not take much memory.
const maxName = 1 << 20

// limiters lists all limiters by the name of their section.
func (m *memory) limiters() map[string]*sluice.Limiter {
	out := map[string]*sluice.Limiter{}
	for domain, g := range m.groups {
		for _, u := range units {
			out[unitSection(u, domain)] = g[u].limiter
		}
	}
	for identity, k := range m.kept {
		out[k.section()+identity] = k.limiter
	}
	return out
}

// unitSection is the name of a counter of a group.
func unitSection(u Unit, group string) string { return "unit " + u.String() + " " + group }

// section is the part of a limiter's name before its rule.
func (k *kept) section() string {
	c := k.config
	if k.most != 0 && c.Limit.Calendar() != (sluice.Calendar{}) {
		return "counter " + sluice.PerCalendar(0, c.Limit.Calendar()).String() + " "
	}
	if k.most != 0 {
		return fmt.Sprintf("counter %v+%v ", c.Limit.Period, c.Offset)
	}
	return fmt.Sprintf("%v+%v soft %d block %v denied %v ", c.Algorithm, c.Offset, c.Soft, c.BlockFor, c.CountDenied)
}

// Snapshot writes all counts, for a Restore in another process. Decisions go on meanwhile. Each
// key is written as it is at one instant, but not all keys at the same instant. A snapshot holds the key of the
// hash: keep it where strangers cannot read or write.
func (e *Engine) Snapshot(w io.Writer) error {
	if e.config.Store != nil {
		return errStoreState
	}
	e.admin.Lock()
	defer e.admin.Unlock()
	sum := sha256.New()
	out := io.MultiWriter(w, sum)
	head := append([]byte(snapshotMagic), e.key[:]...)
	if _, err := out.Write(head); err != nil {
		return err
	}
	limiters := e.memory.limiters()
	var state bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(limiters)) {
		state.Reset()
		if err := limiters[name].Snapshot(&state); err != nil {
			return err
		}
		if err := writeSection(out, name, state.Bytes()); err != nil {
			return err
		}
	}
	// Last, so that hits that were denied meanwhile are in it.
	if err := writeSection(out, denialSection, e.memory.denials.appendTo(nil)); err != nil {
		return err
	}
	if err := writeSection(out, spillSection, e.memory.appendSpills(nil)); err != nil {
		return err
	}
	if _, err := out.Write(make([]byte, 4)); err != nil {
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

func writeSection(w io.Writer, name string, state []byte) error {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(name)))
	b = binary.LittleEndian.AppendUint64(append(b, name...), uint64(len(state)))
	_, err := w.Write(append(b, state...))
	return err
}

// Restore returns an engine that goes on from a Snapshot: the counts of the rules of set, and of
// overrides, are as they were. Rules that now count in another way begin anew. So may
// a domain that has max_keys or overflow now and had none before, or the other way round: see
// Unrestored. Errors about the input match sluice.ErrBadSnapshot.
func Restore(set *Set, c Config, r io.Reader) (*Engine, error) {
	if c.Store != nil {
		return nil, errStoreState
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	key, sections, err := parseSnapshot(b)
	if err != nil {
		return nil, err
	}
	e, err := newEngine(set, c, key)
	if err != nil {
		return nil, err
	}
	for name, lim := range e.memory.limiters() {
		if state, ok := sections[name]; ok {
			if err := lim.Restore(bytes.NewReader(state)); err != nil {
				return nil, err
			}
		}
	}
	if state, ok := sections[denialSection]; ok { // older snapshots have none
		if err := e.memory.denials.restore(state, e.clock.Now()); err != nil {
			return nil, err
		}
	}
	if err := e.memory.restoreSpills(sections[spillSection], e.clock.Now()); err != nil {
		return nil, err
	}
	return e, e.restoreMoved(sections)
}

// Unrestored lists the domains whose windows count from 0 after a Restore, although other domains go on.
// They have got max_keys or overflow since the Snapshot, or have lost them, and there is no room for the keys among
// which theirs were tracked.
func (e *Engine) Unrestored() []string { return slices.Clone(e.unrestored) }

// restoreMoved restores domains that have got counters of their own since the Snapshot, or have lost them.
// The keys of a domain cannot be told from other domains' keys. So a domain that leaves the shared counters takes all their keys
// along; the keys of other domains become idle in time. It does not take them if they would keep its own
// new keys out.
func (e *Engine) restoreMoved(sections map[string][]byte) error {
	shared := e.memory.groups[""]
	for _, name := range slices.Sorted(maps.Keys(e.now.Load().domains)) {
		own, lost := e.memory.groups["="+name], false
		for _, u := range units {
			old, moved := sections[unitSection(u, "="+name)]
			lim := shared[u].limiter
			if own != nil {
				lim, moved = own[u].limiter, !moved
				old = sections[unitSection(u, "")]
			}
			switch {
			case !moved || old == nil:
			case own != nil && lim.Config().Overflow != sluice.OverflowEvictSoonest:
				lost = lost || shared[u].limiter.Len() > 0
			default:
				err := lim.Restore(bytes.NewReader(old))
				if errors.Is(err, sluice.ErrBadSnapshot) {
					return err
				}
				lost = lost || err != nil // there is no room
			}
		}
		if lost {
			e.unrestored = append(e.unrestored, name)
		}
	}
	return nil
}

func badSnapshot(reason string) error {
	return fmt.Errorf("rules: %s: %w", reason, sluice.ErrBadSnapshot)
}

// parseSnapshot checks a whole snapshot, and splits it into sections.
func parseSnapshot(b []byte) (key sipKey, sections map[string][]byte, err error) {
	const head = len(snapshotMagic) + len(key)
	if len(b) < head+4+sha256.Size || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return key, nil, badSnapshot("it does not begin as one of this version")
	}
	body := b[:len(b)-sha256.Size]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], b[len(body):]) {
		return key, nil, badSnapshot("the checksum is another one")
	}
	copy(key[:], b[len(snapshotMagic):])
	sections = map[string][]byte{}
	for rest := body[head:]; ; {
		n := binary.LittleEndian.Uint32(rest)
		rest = rest[4:]
		if n == 0 {
			if len(rest) != 0 {
				return key, nil, badSnapshot("there is something behind its end")
			}
			return key, sections, nil
		}
		if n > maxName || uint64(len(rest)) < uint64(n)+8+4 {
			return key, nil, badSnapshot("a name is cut short")
		}
		name := string(rest[:n])
		size := binary.LittleEndian.Uint64(rest[n:])
		rest = rest[n+8:]
		if size > uint64(len(rest)-4) {
			return key, nil, badSnapshot("a state is cut short")
		}
		sections[name] = rest[:size]
		rest = rest[size:]
	}
}
