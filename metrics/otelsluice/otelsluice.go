// Package otelsluice tells OpenTelemetry what limiters that live in a program decide.
//
//	collector, err := otelsluice.New(otelsluice.Config{})
//	if err != nil { ... }
//	if err := collector.Add("login", limiter); err != nil { ... }
//
// It reads the limiters' statistics when a reader of the SDK collects, and does nothing else: no decision takes
// longer for it. Whether decisions are counted is for sluice.Config.Stats to say. The instruments are observable:
//
//	sluice.decisions          counter, by limiter and outcome: calls admitted; denied; blocked, which are denied
//	                          since their key is blocked; and shadow, which sluice.Config.Shadow has admitted
//	                          although they are over the limit. Each call is in one of them. Limiters
//	                          without Config.Stats have none of them
//	sluice.limiter.keys       up-down counter, by limiter: tracked keys
//	sluice.limiter.evicted    counter, by limiter: live keys that were dropped for want of room
//	sluice.limiter.untracked  counter, by limiter: calls for new keys for which there was no room
//	sluice.limiter.waiting    up-down counter, by limiter: calls of Wait that wait now
//
// OpenTelemetry's Prometheus exporter makes of these the names that package promsluice has: dots become
// underscores, and counters end in _total, as in sluice_decisions_total. So a dashboard serves both.
//
// No attribute has the key of a call in it. A limiter's name is for the program to choose. Do not make a limiter for
// each client; its keys are for that.
//
// By itself the exporter adds a label for the package, otel_scope_name, and two like it; see its option WithoutScopeInfo.
//
// Package oteltier does the same for the Tiers of redislimit, and package otelengine for an engine of rules. They are
// modules of their own, so that a program with limiters alone gets neither rules nor a client of Redis.
package otelsluice

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice"
)

// Config describes a Collector. The zero value of every field is a good default.
type Config struct {
	// MeterProvider makes the instruments. nil means the global one of package otel.
	MeterProvider metric.MeterProvider

	// CardinalityLimit is that of the SDK: it keeps so many attribute sets of an instrument apart, less one, and
	// adds up all others under the attribute otel.metric.overflow. So that no limiter is among these,
	// Add refuses those that do not fit. 0 means 2,000, the SDK's default, which are 666 limiters with
	// sluice.Config.Stats. A negative number means that there is no limit. Whatever it is, the SDK has to be
	// told by its option WithCardinalityLimit.
	CardinalityLimit int
}

const (
	scope                   = "github.com/sluice-go/sluice/metrics/otelsluice"
	defaultCardinalityLimit = 2000
)

// A Collector observes the limiters that it has been given. It is safe for concurrent use, also while it is
// asked. It is made by New; a MeterProvider should have one, since the SDK adds up what two
// of them observe of the same name.
type Collector struct {
	instruments instruments
	callback    metric.Registration
	most        int // decision sets that the SDK keeps apart

	mutex    sync.Mutex
	limiters []*limiter // by name
	sets     int        // decision sets of all
}

// New returns a Collector without limiters. An error is the MeterProvider's.
func New(c Config) (*Collector, error) {
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.CardinalityLimit == 0 {
		c.CardinalityLimit = defaultCardinalityLimit
	}
	out := &Collector{most: c.CardinalityLimit - 1}
	meter := c.MeterProvider.Meter(scope)
	err := out.instruments.make(meter)
	if err != nil {
		return nil, fmt.Errorf("otelsluice: %w", err)
	}
	if out.callback, err = meter.RegisterCallback(out.observe, out.instruments.all()...); err != nil {
		return nil, fmt.Errorf("otelsluice: %w", err)
	}
	return out, nil
}

// Add makes l a part of all that is told from now on, under a name that is the attribute "limiter". The error says
// what is wrong with the name: it is empty, not UTF-8, or that of another limiter; or that l is nil, or one more
// than Config.CardinalityLimit has room for. Nothing has changed then. l must have been made by sluice.New.
func (c *Collector) Add(name string, l *sluice.Limiter) error {
	switch {
	case l == nil:
		return fmt.Errorf("otelsluice: the limiter for the name %q is nil; want one of sluice.New", name)
	case name == "":
		return fmt.Errorf(`otelsluice: the name is empty, which Prometheus takes for no label; want one such as "login"`)
	case !utf8.ValidString(name):
		return fmt.Errorf(`otelsluice: the name %q is not UTF-8, as attributes are; want one such as "login"`, name)
	}
	added := newLimiter(name, l)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	i, taken := c.find(name)
	if taken {
		return fmt.Errorf("otelsluice: the name %q is that of another limiter; want a name of its own, or Remove(%[1]q) before", name)
	}
	if sets := c.sets + added.sets(); c.most >= 0 && max(sets, len(c.limiters)+1) > c.most {
		return fmt.Errorf("otelsluice: the limiter %q would be one too many for a CardinalityLimit of %d; want fewer, or a higher limit here and in the SDK (WithCardinalityLimit)", name, c.most+1)
	}
	c.sets += added.sets()
	c.limiters = slices.Insert(c.limiters, i, added)
	return nil
}

// Remove takes the limiter of this name out, and reports whether there was one.
func (c *Collector) Remove(name string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	i, found := c.find(name)
	if found {
		c.sets -= c.limiters[i].sets()
		c.limiters = slices.Delete(c.limiters, i, i+1)
	}
	return found
}

func (c *Collector) find(name string) (i int, found bool) {
	return slices.BinarySearchFunc(c.limiters, name, func(l *limiter, name string) int { return strings.Compare(l.name, name) })
}

// Unregister ends the observation of all limiters, for good. It is not needed where the MeterProvider is shut down.
func (c *Collector) Unregister() error { return c.callback.Unregister() }

func (c *Collector) observe(_ context.Context, o metric.Observer) error {
	c.mutex.Lock()
	limiters := slices.Clone(c.limiters)
	c.mutex.Unlock()
	for _, l := range limiters {
		l.observe(&c.instruments, o)
	}
	return nil
}
