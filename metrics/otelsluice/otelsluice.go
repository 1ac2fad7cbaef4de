// Package otelsluice tells OpenTelemetry what limiters, tiers and engines of rules count.
//
//	collector := otelsluice.New(otelsluice.Config{})
//	err := collector.Add(limiter.Metrics("login")) // or redislimit.Metrics("api", tier), or engine.Metrics()
//
// It reads statistics when a reader of the SDK collects, and does nothing else: no decision takes longer for it. The
// instruments are observable, and named as the documentation of Metrics says: sluice.decisions, sluice.limiter.keys.
// OpenTelemetry's Prometheus exporter makes of these the names that package promsluice has. By itself it adds a label for the
// package, otel_scope_name, and two like it; see its option WithoutScopeInfo.
package otelsluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sluice-go/sluice/metrics"
)

// Config describes a Collector. The zero value of every field is a good default.
type Config struct {
	// MeterProvider makes the instruments. nil means the global one of package otel.
	MeterProvider metric.MeterProvider

	// CardinalityLimit is the limit of the SDK: it keeps so many attribute sets of an instrument apart, less one, and
	// adds up all further sets under the attribute otel.metric.overflow. So that no limiter is among these,
	// Add refuses those that do not fit. 0 means 2,000, the SDK's default, which are 666 limiters with
	// sluice.Config.Stats, or 499 tiers. A negative number means that there is no limit. Whatever it is, the SDK has to be
	// told by its option WithCardinalityLimit.
	//
	// An engine counts with the rules that it has when it is added. Later rules, and values of detailed_metric, up to
	// rules.Config.MaxSeries, take four sets each: give the SDK and the Collector a limit for them.
	CardinalityLimit int

	// Attributes are added to all that is observed. Engines that share a MeterProvider want Collectors with attributes that tell
	// them apart, such as attribute.String("engine", "api"): the SDK adds up values of the same attributes.
	Attributes []attribute.KeyValue
}

const (
	scope                   = "github.com/sluice-go/sluice/metrics/otelsluice"
	defaultCardinalityLimit = 2000
)

// A Collector observes the Sets that it has been given. It is safe for concurrent use, also while it is
// asked. It is made by New; a MeterProvider should have one of the same Attributes, since the SDK adds up the values that two
// of them observe of the same name.
type Collector struct {
	meter      metric.Meter
	attributes []attribute.KeyValue
	most       int // attribute sets of an instrument that the SDK keeps apart

	mutex       sync.Mutex
	instruments map[string]metric.Int64Observable // by name
	sources     map[string]*source                // by metrics and labels
	sets        map[string]int                    // of each instrument
}

// A source is a metrics.Set that is observed.
type source struct {
	metrics.Set
	attributes []attribute.KeyValue
	callback   metric.Registration
	sets       map[string]int // of each instrument
}

// New returns a Collector of nothing.
func New(c Config) *Collector {
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.CardinalityLimit == 0 {
		c.CardinalityLimit = defaultCardinalityLimit
	}
	return &Collector{
		meter: c.MeterProvider.Meter(scope), attributes: slices.Clone(c.Attributes), most: c.CardinalityLimit - 1,
		instruments: map[string]metric.Int64Observable{}, sources: map[string]*source{}, sets: map[string]int{},
	}
}

// key is the same for metrics that would be observed under the same names and attributes.
func key(s metrics.Set) string {
	if len(s.Descs) == 0 {
		return ""
	}
	return s.Descs[0].Name + " " + name(s)
}

func name(s metrics.Set) string {
	if len(s.Labels) == 0 {
		return "one without a name"
	}
	var all []string
	for _, l := range s.Labels {
		all = append(all, fmt.Sprintf("%s %q", l.Name, l.Value))
	}
	return strings.Join(all, ", ")
}

// Add makes the metrics of a limiter, a tier or an engine a part of all that is told from now on. The error says that
// the name is empty, not UTF-8, or the name of another source of the kind; that there is one more than
// Config.CardinalityLimit has room for; or is the MeterProvider's. Nothing is told of the source then.
func (c *Collector) Add(s metrics.Set) error {
	if err := s.Validate(); err != nil {
		return err
	}
	added := &source{Set: s, attributes: slices.Clone(c.attributes), sets: map[string]int{}}
	for _, l := range s.Labels {
		added.attributes = append(added.attributes, attribute.String(l.Name, l.Value))
	}
	s.Read(func(d *metrics.Desc, _ uint64, _ ...string) { added.sets[d.Name]++ })
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.sources[key(s)] != nil {
		return fmt.Errorf("otelsluice: there is another %s; want a name of its own, a Collector with other Attributes, or Remove before", name(s))
	}
	for i, n := range added.sets {
		if c.most >= 0 && c.sets[i]+n > c.most {
			return fmt.Errorf("otelsluice: %s would be one too many for a CardinalityLimit of %d; want fewer, or a higher limit here and in the SDK (WithCardinalityLimit)", name(s), c.most+1)
		}
	}
	if err := c.observe(added); err != nil {
		return fmt.Errorf("otelsluice: %w", err)
	}
	for name, n := range added.sets {
		c.sets[name] += n
	}
	c.sources[key(s)] = added
	return nil
}

// Remove takes out the source of the same name and kind, and reports whether there was one.
func (c *Collector) Remove(s metrics.Set) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	known := c.sources[key(s)]
	if known == nil {
		return false
	}
	for name, n := range known.sets {
		c.sets[name] -= n
	}
	delete(c.sources, key(s))
	_ = known.callback.Unregister() // the SDK has no error for it
	return true
}

func (c *Collector) observe(s *source) error {
	instruments := map[*metrics.Desc]metric.Int64Observable{}
	var all []metric.Observable
	var errs []error
	for _, d := range s.Descs {
		i := c.instruments[d.Name]
		if i == nil {
			made, err := c.instrument(d)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			i = made
			c.instruments[d.Name] = i
		}
		instruments[d] = i
		all = append(all, i)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var err error
	s.callback, err = c.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s.Read(func(d *metrics.Desc, value uint64, labels ...string) {
			attributes := slices.Clone(s.attributes)
			for j, l := range labels {
				attributes = append(attributes, attribute.String(d.Labels[j], l))
			}
			o.ObserveInt64(instruments[d], int64(value), metric.WithAttributes(attributes...))
		})
		return nil
	}, all...)
	return err
}

func (c *Collector) instrument(d *metrics.Desc) (metric.Int64Observable, error) {
	unit := ""
	if d.Unit != "" {
		unit = "{" + d.Unit + "}"
	}
	switch d.Kind {
	case metrics.Counter:
		return c.meter.Int64ObservableCounter(d.Name, metric.WithUnit(unit), metric.WithDescription(d.Help))
	case metrics.UpDown:
		return c.meter.Int64ObservableUpDownCounter(d.Name, metric.WithUnit(unit), metric.WithDescription(d.Help))
	}
	return c.meter.Int64ObservableGauge(d.Name, metric.WithUnit(unit), metric.WithDescription(d.Help))
}
