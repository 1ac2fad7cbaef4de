package accesslog

import (
	"cmp"
	"fmt"
	"strings"
)

// Names of formats for Select.
const (
	Auto      = "auto"
	Combined  = "combined"
	JSON      = "json"
	NginxJSON = "nginx-json"
	Traefik   = "traefik"
)

// Formats lists the names that Select takes.
func Formats() []string {
	return []string{Auto, Combined, JSON, NginxJSON, Traefik}
}

// Select returns the parsers for a format by name. Auto stands for all formats
// whose fields are known. clientField and timeField name the fields of JSON and
// replace those of a preset; an empty name is one not given. With both given
// Auto means JSON.
func Select(format, clientField, timeField string) ([]Parser, error) {
	if format == Auto && clientField+timeField != "" {
		format = JSON
	}
	switch format {
	case Auto:
		return []Parser{combined{}, traefik("", ""), nginxJSON("", "")}, nil
	case Combined:
		if clientField+timeField != "" {
			return nil, fmt.Errorf("format %s has no fields to name", Combined)
		}
		return []Parser{combined{}}, nil
	case JSON:
		if clientField == "" || timeField == "" {
			return nil, fmt.Errorf("format %s needs the names of both the client and the time field", JSON)
		}
		return []Parser{newJSON(JSON, clientField, timeField)}, nil
	case NginxJSON:
		return []Parser{nginxJSON(clientField, timeField)}, nil
	case Traefik:
		return []Parser{traefik(clientField, timeField)}, nil
	}
	return nil, fmt.Errorf("unknown format %q: want one of %s", format, strings.Join(Formats(), ", "))
}

// nginxJSON has the field names of Elastic's widely copied nginx example.
func nginxJSON(clientField, timeField string) Parser {
	return newJSON(NginxJSON, cmp.Or(clientField, "remote_ip"), cmp.Or(timeField, "time"))
}

// traefik takes StartUTC because it has nanoseconds where time has seconds.
func traefik(clientField, timeField string) Parser {
	return newJSON(Traefik, cmp.Or(clientField, "ClientHost"), cmp.Or(timeField, "StartUTC"))
}
