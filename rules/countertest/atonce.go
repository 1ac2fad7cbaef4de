package countertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/test/seeded"
	"github.com/sluice-go/sluice/rules"
)

// callers is how many callers make calls at once.
const callers = 8

// runAtOnce makes calls of all processes at once. The limits admit exactly as many hits as they have room for.
func runAtOnce(t *testing.T, fresh func(t *testing.T) Counts) {
	takesAtOnce(t, fresh)
	t.Run("pairs, all or none", func(t *testing.T) {
		d := common(t, fresh(t))
		var admitted atomic.Int64
		d.atOnce(t, func(r *rand.Rand, process int) {
			for range 10 {
				pair := pick(r, "a/w=u:3,g=u:1", "a/g=u:1,w=u:3")
				if d.ok(process, "take %s", pair) {
					admitted.Add(1)
				}
			}
		})
		d.expect(t, "take a/w=u:0,g=u:0", fmt.Sprintf("OVER_LIMIT %d 0x", 100-3*admitted.Load()))
		if admitted.Load() != 10 {
			t.Errorf("%d pairs were admitted; want 10", admitted.Load())
		}
	})
	t.Run("refunds", func(t *testing.T) {
		c := fresh(t)
		if why := c.Without[Refunds]; why != nil {
			t.Skip(why)
		}
		d := common(t, c)
		var left atomic.Int64
		d.atOnce(t, func(r *rand.Rand, process int) {
			for range 20 {
				n := 1 + r.Int64N(3)
				back := r.Int64N(n + 1)
				if d.ok(process, "take n=u:%d,k=v:0", n) {
					d.ok(process, "take n=u:-%d", back)
					left.Add(n - back)
				} else {
					d.ok(process, "take n=u:-%d", n) // as a proxy does, which does not know that nothing was counted
				}
			}
		})
		if got := left.Load(); got > 100 {
			t.Errorf("%d hits are in use; the limit is 100", got)
		}
	})
	t.Run("holds", func(t *testing.T) {
		c := fresh(t)
		if why := c.Without[OtherHolds]; why != nil {
			t.Skip(why)
		}
		holdsAtOnce(t, common(t, c))
	})
}

// takesAtOnce takes from each kind of limit until nothing is left.
func takesAtOnce(t *testing.T, fresh func(t *testing.T) Counts) {
	for _, row := range []struct {
		descriptor string
		most, room int64 // hits of a call, and of the limit
	}{
		{"w=u", 1, 100}, // denied hits count in it, so that a call for more would leave units that nobody has
		{"f=u", 1, 100}, {"n=u", 3, 100}, {"g=u", 3, 10}, {"k=u", 3, 10}, {"s=u", 3, 10}, {"l=u", 3, 10}, {"i=u", 3, 5},
		{"w=u@30/year", 1, 30}, {"p=u", 3, 15}, {"a/w=u", 3, 100}, {"a/g=u", 3, 10}, {"a/p=u", 3, 15},
	} {
		t.Run("takes of "+row.descriptor, func(t *testing.T) {
			d := common(t, fresh(t))
			var admitted atomic.Int64
			d.atOnce(t, func(r *rand.Rand, process int) {
				most := row.most
				for range 3 * row.room { // less, unless more is admitted than there is
					n := 1 + r.Int64N(most)
					switch got := d.told(process, "take %s:%d", row.descriptor, n); {
					case got == "OK":
						admitted.Add(n)
					case got != "OVER_LIMIT":
						t.Errorf("%s:%d -> %s", row.descriptor, n, got)
						return
					case n == 1:
						return
					default:
						most = 1
					}
				}
			})
			if got := admitted.Load(); got != row.room {
				t.Errorf("%d hits were admitted; want %d", got, row.room)
			}
		})
	}
}

// holdsAtOnce has pairs of callers make the same holds, and settle them. In the end the counts are the hits that the settlements used.
func holdsAtOnce(t *testing.T, d *driver) {
	var used atomic.Int64
	var made sync.Map
	d.atOnce(t, func(r *rand.Rand, process int) {
		for i := range 20 {
			id := fmt.Sprint(process/2, ".", i) // of two callers
			switch got := d.told(process, "hold %s w=u:2,c=u:3", id); got {
			case "OK":
				if _, twice := made.LoadOrStore(id, true); twice {
					t.Errorf("hold %s was made twice", id)
				}
			case "OK again", "ended":
			default:
				continue // denied: the same hold of the other caller is denied, or not, by itself
			}
			n := r.Int64N(3)
			switch got := d.told(process, "settle %s w=u:%d,c=u:%d", id, n, n); got {
			case "OK":
				used.Add(n)
			case "OK again", "not held": // the other caller has settled it
			default:
				t.Errorf("settle %s: %s", id, got)
			}
		}
	})
	d.expect(t, "take w=u:0,c=u:0", fmt.Sprintf("OK %d %d", 100-used.Load(), 100-used.Load()))
}

// common is a driver of the common rules.
func common(t *testing.T, c Counts) *driver {
	return newDriver(t, &script{sets: commonSets}, c)
}

// atOnce runs f for each caller.
func (d *driver) atOnce(t *testing.T, f func(r *rand.Rand, process int)) {
	r := seeded.Rand(t)
	var all sync.WaitGroup
	for i := range callers {
		own := rand.New(rand.NewPCG(r.Uint64(), 1))
		all.Go(func() { f(own, i) })
	}
	all.Wait()
}

// told makes a call, and returns its outcome without Remaining.
func (d *driver) told(process int, format string, of ...any) string {
	c, err := parseCall(fmt.Sprintf(format, of...))
	if err != nil {
		panic(err)
	}
	c.process = process
	text := d.call(&c).text
	for _, code := range []string{"OK again", "OK capped", "OK", "OVER_LIMIT"} {
		if strings.HasPrefix(text, code) {
			return code
		}
	}
	return text
}

func (d *driver) ok(process int, format string, of ...any) bool {
	return d.told(process, format, of...) == "OK"
}

// expect makes a call that has one right outcome.
func (d *driver) expect(t *testing.T, line, want string) {
	t.Helper()
	c, err := parseCall(line)
	if err != nil {
		t.Fatal(err)
	}
	if got := d.call(&c).text; got != want {
		t.Errorf("%s -> %s; got %s", line, want, got)
	}
}

// patience is how long counts may take to answer again once they can be reached.
const patience = 30 * time.Second

// runCutOff makes calls while the counts cannot be reached, and looks at their effects.
func runCutOff(t *testing.T, fresh func(t *testing.T) Counts) {
	c := fresh(t)
	if c.Cut == nil {
		t.Skip("these counts are always reached")
	}
	d := common(t, c)
	d.expect(t, "take w=u:10", "OK 90")
	d.expect(t, "hold a w=u:5", "OK 85")
	d.expect(t, "hold b w=u:5", "OK 80")
	mend := c.Cut()
	for _, line := range []string{"take w=u:1", "take a/w=u:1", "hold c w=u:5", "extend b w=u:5 step=1", "settle a w=u:2", "release b w=u:0", "take w=u:-3"} {
		d.expect(t, line, "no answer")
	}
	if err := d.engines[0].Reset(&rules.Request{Domain: "d", Descriptors: []rules.Descriptor{{Entries: []rules.Entry{{Key: "w", Value: "u"}}}}}); !errors.Is(err, rules.ErrStore) {
		t.Errorf("reset: %v; want ErrStore", err)
	}
	mend()
	for end := time.Now().Add(patience); d.told(0, "take w=v:0") != "OK"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the counts can be reached again, and do not answer")
		}
	}
	// Nothing of that was counted, or given back: no call has reached the counts. So each call can be made again.
	d.expect(t, "take w=u:0", "OK 80")
	d.expect(t, "hold c w=u:5", "OK 75")
	d.expect(t, "extend b w=u:5 step=1", "OK 70")
	d.expect(t, "settle a w=u:2", "OK")
	d.expect(t, "release b w=u:0", "OK")
	d.expect(t, "settle c w=u:5", "OK")
	d.expect(t, "take w=u:0", "OK 83")
}
