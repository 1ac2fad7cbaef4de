package rules

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-go/sluice"
)

// FuzzLoad: no file makes Load panic, no problem lacks a place, and rules that load decide.
func FuzzLoad(f *testing.F) {
	for _, list := range [][]mistake{loadErrors, loadWarnings} {
		for _, m := range list {
			f.Add(m.document(), "k=v")
		}
	}
	f.Add(minuteRules, "ten=a,two=b")
	f.Add(tree, "a=x,b=y")
	f.Add(kinds, "login=x")
	f.Add("domain: d\ndescriptors: [{key: k, value: 'a*', share_threshold: yes, descriptors: [{key: l, detailed_metric: y, rate_limit: {period: 1m, requests_per_unit: 3, soft: 1}}]}]", "k=ab,l=1")
	f.Add("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9, weights: {input: 1, output: 5, cached: 0.1}}}]", "k=a,input=3,cached=1")
	f.Add("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9, weights: {output: 999999999.999999999}}}]", "k=a,output=hits_addend")
	f.Add("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 50_000, scale: 1_000_000, weights: {in: 1}}}]", "k=a,in=50000000000")
	f.Add("domain: d\ndescriptors: [{key: k, value: x, rate_limit: {unit: day, requests_per_unit: 2, then: c}}, {key: k, rate_limit: {unit: month, requests_per_unit: 3, name: c, algorithm: gcra}}]", "k=x")
	f.Fuzz(func(t *testing.T, text, list string) {
		set, err := Load([]File{{"f", []byte(text)}}, Options{})
		var problems []Problem
		if err != nil {
			var e *LoadError
			if !errors.As(err, &e) || len(e.Problems) == 0 || set != nil {
				t.Fatalf("%v", err)
			}
			problems = e.Problems
		} else {
			problems = set.Warnings()
		}
		for _, p := range problems {
			if p.File != "f" || p.Line < 1 || p.Column < 1 || p.Message == "" || strings.ContainsAny(p.String(), "\n\r") {
				t.Fatalf("%#v", p)
			}
		}
		if err != nil {
			return
		}
		e, err := New(set, Config{Clock: sluice.NewManualClock(start), MaxKeys: 16})
		if err != nil {
			t.Fatal(err)
		}
		var resp Response
		for _, domain := range append(set.Domains(), "other") {
			for range 3 {
				n := uint64(2)
				req := Request{Domain: domain, Descriptors: []Descriptor{describe(list), {Entries: entries(list), Hits: &n}, override(list, 2, Minute)}}
				if err := e.Decide(&req, &resp); err != nil {
					t.Fatal(err)
				}
			}
		}
		e.Series()
	})
}
