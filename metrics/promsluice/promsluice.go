// Package promsluice tells Prometheus what limiters that live in a program decide.
//
//	collector := promsluice.New()
//	prometheus.MustRegister(collector)
//	if err := collector.Add("login", limiter); err != nil { ... }
//
// It reads the limiters' statistics when it is scraped, and does nothing else: no decision takes
// longer for it. Whether decisions are counted is for sluice.Config.Stats to say. These are the metrics:
//
//	sluice_decisions_total{limiter,outcome}  calls admitted; denied; blocked, which are denied since
//	                                         their key is blocked; and shadow, which sluice.Config.Shadow has
//	                                         admitted although they are over the limit. Each call is in one
//	                                         of them. Limiters without Config.Stats have none of them
//	sluice_limiter_keys{limiter}             tracked keys
//	sluice_limiter_evicted_total{limiter}    live keys that were dropped for want of room
//	sluice_limiter_untracked_total{limiter}  calls for new keys for which there was no room
//	sluice_limiter_waiting{limiter}          calls of Wait that wait now
//
// No label has the key of a call in it: there are seven series a limiter at most, whatever clients send. A limiter's
// name is for the program to choose. Do not make a limiter for each client; its keys are for that.
//
// A call counts once, whatever it costs: a limiter does not count units, nor the reservations that are open.
//
// # Tiers and engines
//
// Package promtier does the same for the Tiers of redislimit, and package promengine for an engine of rules,
// with the series that `sluiced serve` has. They are modules of their own, so that a program with limiters alone gets
// neither rules nor a client of Redis by this one, which does not even have a say in their versions. Both are collectors beside this one,
// and the same registry takes all three. That is why a limiter's metrics do not share names with an engine's
// sluice_keys{unit} and sluice_evicted_total: a registry demands the same labels of all series of a name.
//
// # Several collectors
//
// A registry takes one Collector. A second one gets a prometheus.AlreadyRegisteredError, whose ExistingCollector is the
// first: libraries that share a registry can add their limiters to that. Or each of them has labels of its own, by
// prometheus.WrapRegistererWith, if all have the same ones.
package promsluice

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-go/sluice"
)

// A Collector is a prometheus.Collector of the limiters that it has been given. It is safe for concurrent use,
// also while it is scraped. It is made by New.
type Collector struct {
	mutex    sync.Mutex
	limiters []*limiter // by name
}

// New returns a Collector without limiters.
func New() *Collector { return new(Collector) }

// Add makes l a part of all scrapes to come, under a name that is the label "limiter". The error says what is
// wrong with the name: it is empty, not UTF-8, or that of another limiter; or that l is nil. Nothing has changed
// then. l must have been made by sluice.New.
func (c *Collector) Add(name string, l *sluice.Limiter) error {
	switch {
	case l == nil:
		return fmt.Errorf("promsluice: the limiter for the name %q is nil; want one of sluice.New", name)
	case name == "":
		return fmt.Errorf(`promsluice: the name is empty, which Prometheus takes for no label; want one such as "login"`)
	case !utf8.ValidString(name):
		return fmt.Errorf(`promsluice: the name %q is not UTF-8, as labels are; want one such as "login"`, name)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	i, taken := c.find(name)
	if taken {
		return fmt.Errorf("promsluice: the name %q is that of another limiter; want a name of its own, or Remove(%[1]q) before", name)
	}
	c.limiters = slices.Insert(c.limiters, i, newLimiter(name, l))
	return nil
}

// Remove takes the limiter of this name out, and reports whether there was one. A scrape that is under way may
// have it still.
func (c *Collector) Remove(name string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	i, found := c.find(name)
	if found {
		c.limiters = slices.Delete(c.limiters, i, i+1)
	}
	return found
}

func (c *Collector) find(name string) (i int, found bool) {
	return slices.BinarySearchFunc(c.limiters, name, func(l *limiter, name string) int { return strings.Compare(l.name, name) })
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descs {
		out <- d
	}
}

// Collect implements prometheus.Collector. The series of a metric come in the order that registries want, which
// sorts 1,000 limiters in no time.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	c.mutex.Lock()
	limiters := slices.Clone(c.limiters)
	c.mutex.Unlock()
	for _, l := range limiters {
		l.collect(out)
	}
}
