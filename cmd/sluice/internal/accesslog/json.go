package accesslog

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

var errNotJSON = errors.New("not a JSON object")

// jsonLines reads one JSON object a line. A field is named by its key; where an
// object has no such key, dots in the name lead into nested objects.
type jsonLines struct {
	name   string
	client field
	time   field
}

func newJSON(name, clientField, timeField string) jsonLines {
	return jsonLines{
		name:   name,
		client: newField(clientField),
		time:   newField(timeField),
	}
}

func (f jsonLines) Name() string { return f.name }

func (f jsonLines) Wants() string {
	return fmt.Sprintf("a JSON object with %s and %s", f.client.name, f.time.name)
}

func (f jsonLines) Parse(line []byte) (Record, error) {
	// gjson reads anything; encoding/json has the last word on what is JSON, and
	// refuses the nesting of a hundred thousand arrays that would take the stack.
	if !looksJSON(line) || !json.Valid(line) {
		return Record{}, errNotJSON
	}
	client := f.client.in(line)
	if !isScalar(client) || text(client) == "" {
		return Record{}, fmt.Errorf("field %s is not a client", f.client.name)
	}
	stamp := f.time.in(line)
	if !isScalar(stamp) {
		return Record{}, fmt.Errorf("field %s is not a time", f.time.name)
	}
	at, err := parseTime(text(stamp))
	if err != nil {
		return Record{}, fmt.Errorf("field %s: %w", f.time.name, err)
	}
	name, err := theClient(f.client.name, []byte(text(client)))
	return Record{Client: name, Time: at}, err
}

func looksJSON(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' {
			return c == '{'
		}
	}
	return false
}

// field names a value in an object, in the syntax of gjson.
type field struct {
	name   string
	key    string // the name as one key, with what gjson takes for syntax escaped
	nested string // the same with its dots as steps into nested objects
}

func newField(name string) field {
	key := gjson.Escape(name)
	return field{name: name, key: key, nested: strings.ReplaceAll(key, `\.`, ".")}
}

func (f field) in(line []byte) gjson.Result {
	found := gjson.GetBytes(line, f.key)
	if found.Exists() || f.nested == f.key {
		return found
	}
	return gjson.GetBytes(line, f.nested)
}

func isScalar(r gjson.Result) bool {
	return r.Type == gjson.String || r.Type == gjson.Number
}

// text returns a number as it is written: through a float64 it would lose digits.
func text(r gjson.Result) string {
	if r.Type == gjson.Number {
		return r.Raw
	}
	return r.Str
}
