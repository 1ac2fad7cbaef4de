// Package metrics has the form in which limiters, tiers and engines tell what they count. Package promsluice
// translates it for Prometheus, and package otelsluice for OpenTelemetry; a translator for another system needs nothing else.
//
//	registry.MustRegister(sluice.Must(promsluice.New(limiter.Metrics("login"))))
//
// [sluice.Limiter.Metrics], [httplimit.Queue.Metrics], [redislimit.Metrics] and [rules.Engine.Metrics] list the metrics. Names are as in
// OpenTelemetry, such as sluice.limiter.keys. For Prometheus dots become underscores, and counters end in _total, as in
// sluice_decisions_total; OpenTelemetry's exporter for Prometheus does the same, so one dashboard serves both.
//
// To read metrics costs decisions nothing: whether they are counted is for sluice.Config.Stats to say. No label has
// the key of a call in it.
//
// [sluice.Limiter.Metrics]: https://pkg.go.dev/github.com/sluice-go/sluice#Limiter.Metrics
// [httplimit.Queue.Metrics]: https://pkg.go.dev/github.com/sluice-go/sluice/httplimit#Queue.Metrics
// [redislimit.Metrics]: https://pkg.go.dev/github.com/sluice-go/sluice/redislimit#Metrics
// [rules.Engine.Metrics]: https://pkg.go.dev/github.com/sluice-go/sluice/rules#Engine.Metrics
package metrics

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Kind says how the values of a metric may be used.
type Kind uint8

const (
	// Counter: a number that only grows.
	Counter Kind = iota
	// UpDown: a number that grows and falls, such as keys. Numbers of several processes add up.
	UpDown
	// Gauge: a state. Sums over processes mean nothing.
	Gauge
)

// A Desc describes a metric.
type Desc struct {
	Name   string // with dots: sluice.limiter.keys
	Kind   Kind
	Unit   string // such as key, or empty
	Help   string
	Labels []string // names, whose values Read tells with each value
}

// A Label is a label of all metrics of a Set.
type Label struct{ Name, Value string }

// Yield is told one value, and the values of the labels of d, which are UTF-8.
type Yield func(d *Desc, value uint64, labels ...string)

// A Set has the counts of one limiter, tier or engine.
type Set struct {
	Labels []Label
	Descs  []*Desc
	// Read tells all values, each of a Desc of Descs, in the same order each time. It is safe for concurrent use.
	Read func(Yield)
}

// Validate returns an error that names a label whose value is empty or not UTF-8, or says that the Set is empty.
func (s Set) Validate() error {
	if s.Read == nil {
		return errors.New("metrics: the Set is empty; want the Metrics of a limiter, a tier or an engine")
	}
	for _, l := range s.Labels {
		switch {
		case l.Value == "":
			return fmt.Errorf(`metrics: the label %q is empty, which Prometheus takes for no label; want a name such as "login"`, l.Name)
		case !utf8.ValidString(l.Value):
			return fmt.Errorf(`metrics: the label %q is %q, which is not UTF-8; want a name such as "login"`, l.Name, l.Value)
		}
	}
	return nil
}
