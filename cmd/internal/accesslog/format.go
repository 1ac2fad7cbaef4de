package accesslog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Names of formats for Select.
const (
	Auto          = "auto"
	Combined      = "combined"
	VhostCombined = "vhost-combined"
	S3            = "s3"
	ALB           = "alb"
	CloudFront    = "cloudfront"
	W3C           = "w3c"
	HAProxy       = "haproxy"
	Envoy         = "envoy"
	NginxJSON     = "nginx-json"
	Caddy         = "caddy"
	Traefik       = "traefik"
	JSON          = "json"
	Squid         = "squid"
	Lighttpd      = "lighttpd"
	Logfmt        = "logfmt"
	Cloudflare    = "cloudflare"
	GCP           = "gcp"
	Azure         = "azure"
	WAF           = "aws-waf"
	Gateway       = "api-gateway"
	Kong          = "kong"
	APISIX        = "apisix"
	ECS           = "ecs"
)

// Formats lists the names that Select takes.
func Formats() []string {
	return []string{Auto, Combined, VhostCombined, S3, ALB, CloudFront, W3C, HAProxy, Envoy, NginxJSON, Caddy, Traefik,
		Squid, Lighttpd, Logfmt, Cloudflare, GCP, Azure, WAF, Gateway, Kong, APISIX, ECS, JSON}
}

// layouts are the formats whose lines have their fields in an order, in nginx's notation. A line may have
// more fields behind them. The client is $remote_addr, or of Envoy, which does not write it by default, the
// last address that it has forwarded: the one it has seen itself.
var layouts = []struct {
	format, text, client string
	plain                func([]byte) string // nil is unescape
}{
	{S3, `$owner $bucket [$time_local] $remote_addr $remote_user $id $operation $key "$request" $status $error $bytes_sent $object_size ` +
		`$total_time $turnaround_time "$http_referer" "$http_user_agent" $version $host_id $signature $cipher $authentication $host`, "", nil},
	{ALB, `$type $time_iso8601 ` + elb, "", nil},
	{ALB, `$time_iso8601 ` + elb, "", nil}, // Classic Load Balancer
	{HAProxy, `$prefix haproxy[$pid]: ` + haproxy, "", unhash},
	{HAProxy, haproxy, "", unhash},
	{Envoy, `[$time_iso8601] "$request" $status $flags $bytes_received $bytes_sent $duration $upstream_time "$http_x_forwarded_for" ` +
		`"$http_user_agent" "$http_x_request_id" "$host" "$upstream"`, "http_x_forwarded_for", asIs},
	{Envoy, `[$time_iso8601] "$request" $status $flags $details $termination "$failure" $bytes_received $bytes_sent $duration $upstream_time ` +
		`"$http_x_forwarded_for" "$http_user_agent" "$http_x_request_id" "$host" "$upstream" $cluster $upstream_local $local ` +
		`$remote_addr:$remote_port`, "", asIs}, // Istio
	{Squid, `$msec $elapsed $remote_addr $code/$status $bytes_sent $request_method $request_uri $remote_user $hierarchy $type`, "", nil},
	{Lighttpd, `$remote_addr $host $remote_user [$time_local] "$request" $status $bytes_sent "$http_referer" "$http_user_agent"`, "", nil},
}

// asked are the formats that no line tells: with lighttpd's host in the place of an ident, a line of two addresses could
// be a line of a proxy and its client.
var asked = []string{Lighttpd}

const (
	elb = `$elb $remote_addr:$remote_port $target $request_time $target_time $response_time $status $target_status ` +
		`$bytes_received $bytes_sent "$request" "$http_user_agent"`
	haproxy = `$remote_addr:$remote_port [$time_local] $frontend $backend $timers $status $bytes_sent $request_cookie $response_cookie ` +
		`$termination $connections $queues $captures"$request"`
)

// presets are the fields of logs in JSON: of the client and of the time. A field stands
// for the finer of two clocks, and for the client that a proxy has forwarded.
var presets = []struct{ format, client, time string }{
	{Traefik, "ClientHost", "StartUTC"}, // it has nanoseconds where time has seconds
	{NginxJSON, "remote_ip", "time"},    // Elastic's widely copied example
	{NginxJSON, "remote_addr", "time_iso8601"},
	{NginxJSON, "remote_addr", "time_local"},
	{NginxJSON, "remote_addr", "time"}, // ingress-nginx, as its documentation has it
	{NginxJSON, "remote_addr", "timestamp"},
	{NginxJSON, "remote_addr", "@timestamp"},
	{NginxJSON, "x_forwarded_for", "time"}, // where its remote_addr is empty
	{Caddy, "request.client_ip", "ts"},
	{Caddy, "request.remote_ip", "ts"},                 // before Caddy 2.7
	{Caddy, "request.remote_addr", "ts"},               // before Caddy 2.5
	{Envoy, "downstream_remote_address", "start_time"}, // Envoy Gateway, Istio
	{Envoy, "x-forwarded-for", "start_time"},
	{Envoy, "x_forwarded_for", "start_time"},
	{Cloudflare, "ClientIP", "EdgeStartTimestamp"}, // Logpush
	{GCP, "httpRequest.remoteIp", "timestamp"},     // its load balancers
	{Azure, "properties.clientIP", "time"},         // Application Gateway
	{Azure, "properties.clientIP", "timeStamp"},
	{Azure, "properties.clientIp", "time"}, // Front Door
	{WAF, "httpRequest.clientIp", "timestamp"},
	{Gateway, "ip", "requestTime"}, // of AWS
	{Gateway, "sourceIp", "requestTime"},
	{CloudFront, "c-ip", "date,time"}, // standard logging v2
	{Kong, "client_ip", "started_at"},
	{APISIX, "client_ip", "start_time"},
	{ECS, "client.ip", "@timestamp"},
	{ECS, "client.address", "@timestamp"},
	{ECS, "source.ip", "@timestamp"},
	{ECS, "source.address", "@timestamp"},
}

// known are the parsers of all formats. No line is in two of them, except that fields of JSON can be in one
// object.
func known(clientField, timeField string) []Parser {
	parsers := []Parser{combined{}, vhostCombined{}}
	for _, l := range layouts {
		p, err := newPattern(l.format, l.text, l.client, "")
		if err != nil {
			panic(err)
		}
		p.addresses, p.padded = true, l.format == Squid
		if l.plain != nil {
			p.plain = l.plain
		}
		parsers = append(parsers, p)
	}
	parsers = append(parsers, newCloudFront(), w3c{from: clientField, clock: timeField}, logfmt{clientField, timeField}, newCaddyConsole())
	for _, p := range presets {
		parsers = append(parsers, newJSON(p.format, cmp.Or(clientField, p.client), cmp.Or(timeField, p.time)))
	}
	return parsers
}

// hasNames reports whether lines of a format have the names of their fields, or a line before them.
func hasNames(p Parser) bool {
	switch p := p.(type) {
	case jsonLines, logfmt:
		return true
	case w3c:
		return p.name == ""
	}
	return false
}

// Select returns the parsers for a format: by name, or a pattern in nginx's notation, which has a $. Auto
// stands for all formats whose fields are known. clientField and timeField name the fields of JSON, or of a
// pattern, and replace the names of a preset; an empty name is not given. With names Auto means the formats whose lines name their
// fields, JSON with both names.
func Select(format, clientField, timeField string) ([]Parser, error) {
	named := clientField+timeField != ""
	switch {
	case strings.Contains(format, "$"):
		p, err := newPattern("pattern", format, clientField, timeField)
		return []Parser{p}, err
	case format == JSON && (clientField == "" || timeField == ""):
		return nil, fmt.Errorf("format %s needs the names of both the client and the time field", JSON)
	case format == JSON:
		return []Parser{newJSON(JSON, clientField, timeField)}, nil
	case format == Auto && named:
		parsers := []Parser{w3c{from: clientField, clock: timeField}, logfmt{clientField, timeField}}
		if clientField != "" && timeField != "" {
			parsers = append([]Parser{newJSON(JSON, clientField, timeField)}, parsers...)
		}
		return parsers, nil
	}
	parsers := known(clientField, timeField)
	parsers = slices.DeleteFunc(parsers, func(p Parser) bool {
		return format != p.Name() && (format != Auto || slices.Contains(asked, p.Name()))
	})
	if named {
		parsers = slices.DeleteFunc(parsers, func(p Parser) bool { return !hasNames(p) })
	}
	switch {
	case len(parsers) > 0:
		return parsers, nil
	case slices.Contains(Formats(), format):
		return nil, fmt.Errorf("format %s has no fields to name", format)
	}
	return nil, fmt.Errorf("unknown format %q: want one of %s, or a pattern with $remote_addr and $time_local", format, strings.Join(Formats(), ", "))
}
