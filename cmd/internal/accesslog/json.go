package accesslog

import (
	"cmp"
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
	date   field // of the day, where the time has none; its name may be empty
	time   field
}

// newJSON names the fields. A date stands before the time, with a comma between.
func newJSON(name, clientField, timeField string) jsonLines {
	f := jsonLines{name: name, client: newField(clientField), time: newField(timeField)}
	if date, clock, ok := strings.Cut(timeField, ","); ok {
		f.date, f.time = newField(date), newField(clock)
	}
	return f
}

func (f jsonLines) Name() string { return f.name }

func (f jsonLines) Wants() string {
	return fmt.Sprintf("a JSON object with %s and %s", f.client.name, f.time.name)
}

func (f jsonLines) Parse(line []byte) (Record, error) {
	if !isJSON(line) {
		return Record{}, errNotJSON
	}
	return knownJSON{f}.Parse(line)
}

// knownJSON reads lines that are known to be JSON.
type knownJSON struct{ jsonLines }

func (f knownJSON) Parse(line []byte) (Record, error) {
	name, err := f.clientOf(line)
	if err != nil && !errors.Is(err, errDash) {
		return Record{}, err
	}
	at, timeErr := f.timeOf(line)
	return Record{Client: name, Time: at}, cmp.Or(timeErr, err)
}

func (f jsonLines) clientOf(line []byte) ([]byte, error) {
	client := f.client.in(line)
	if !isScalar(client) || text(client) == "" {
		return nil, fmt.Errorf("field %s is not a client", f.client.name)
	}
	return theClient(f.client.name, []byte(text(client)))
}

func (f jsonLines) timeOf(line []byte) (int64, error) {
	stamp := f.time.in(line)
	if !isScalar(stamp) {
		return 0, fmt.Errorf("field %s is not a time", f.time.name)
	}
	when := text(stamp)
	if f.date.name != "" {
		when = text(f.date.in(line)) + "T" + when + "Z"
	}
	at, err := parseTime(when)
	if err != nil {
		return 0, fmt.Errorf("field %s: %w", f.time.name, err)
	}
	return at, nil
}

// isJSON reports whether a line is a JSON object. gjson reads anything; encoding/json has the last word on JSON, and
// refuses the nesting of a hundred thousand arrays that would take the stack.
func isJSON(line []byte) bool { return looksJSON(line) && json.Valid(line) }

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
	key    string // the name as one key, with gjson's syntax escaped
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
