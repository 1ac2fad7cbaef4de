package accesslog

import (
	"cmp"
	"fmt"
	"strings"
)

// Names of formats for Select.
const (
	Auto          = "auto"
	Combined      = "combined"
	VhostCombined = "vhost-combined"
	S3            = "s3"
	JSON          = "json"
	NginxJSON     = "nginx-json"
	Caddy         = "caddy"
	Traefik       = "traefik"
)

// Formats lists the names that Select takes.
func Formats() []string {
	return []string{Auto, Combined, VhostCombined, S3, NginxJSON, Caddy, Traefik, JSON}
}

// presets are the fields of logs in JSON: of the client and of the time. A field stands
// for the finer of two clocks, and for the client that a proxy has forwarded.
var presets = []struct{ format, client, time string }{
	{Traefik, "ClientHost", "StartUTC"}, // it has nanoseconds where time has seconds
	{NginxJSON, "remote_ip", "time"},    // Elastic's widely copied example
	{NginxJSON, "remote_addr", "time_iso8601"},
	{NginxJSON, "remote_addr", "time_local"},
	{Caddy, "request.client_ip", "ts"},
	{Caddy, "request.remote_ip", "ts"},   // before Caddy 2.7
	{Caddy, "request.remote_addr", "ts"}, // before Caddy 2.5
}

// lineFormats are the formats whose lines are no JSON. No line is in two of them.
var lineFormats = []Parser{combined{}, vhostCombined{}, s3{}}

// Select returns the parsers for a format by name. Auto stands for all formats
// whose fields are known. clientField and timeField name the fields of JSON and
// replace those of a preset; an empty name is one not given. With both given
// Auto means JSON.
func Select(format, clientField, timeField string) ([]Parser, error) {
	named := clientField+timeField != ""
	if format == Auto && named {
		format = JSON
	}
	if format == JSON {
		if clientField == "" || timeField == "" {
			return nil, fmt.Errorf("format %s needs the names of both the client and the time field", JSON)
		}
		return []Parser{newJSON(JSON, clientField, timeField)}, nil
	}
	var parsers []Parser
	for _, p := range lineFormats {
		if format == p.Name() && named {
			return nil, fmt.Errorf("format %s has no fields to name", format)
		}
		if format == p.Name() || format == Auto {
			parsers = append(parsers, p)
		}
	}
	for _, p := range presets {
		if format == p.format || format == Auto {
			parsers = append(parsers, newJSON(p.format, cmp.Or(clientField, p.client), cmp.Or(timeField, p.time)))
		}
	}
	if len(parsers) == 0 {
		return nil, fmt.Errorf("unknown format %q: want one of %s", format, strings.Join(Formats(), ", "))
	}
	return parsers, nil
}
