package accesslog

import (
	"bytes"
	"errors"
	"time"
)

var (
	errNoClient    = errors.New("no client at the start of the line")
	errNoTimestamp = errors.New("no [02/Jan/2006:15:04:05 -0700] after the client")
)

// combined reads Common and Combined lines:
//
//	client ident user [time] "request" status bytes "referer" "user agent"
//
// Only the client and the time are looked at, so a line with more or fewer
// fields, or with a damaged end, still counts.
type combined struct{}

func (combined) Name() string { return "combined" }

func (combined) Wants() string {
	return "CLIENT ... [02/Jan/2006:15:04:05 -0700]"
}

// Parse takes the last timestamp before the request. The user in front of it is
// whatever a stranger typed as a name, blanks and brackets included, and must
// not pass for the time; but servers escape the quotes in it, so that it cannot
// pass for the start of the request. A JSON object may well hold such a line, but
// its first field is no client.
func (combined) Parse(line []byte) (Record, error) {
	end := bytes.IndexAny(line, " \t")
	if end == 0 || len(line) == 0 || looksJSON(line) {
		return Record{}, errNoClient
	}
	if end < 0 {
		return Record{}, errNoTimestamp
	}
	head := line[end:]
	if request := bytes.Index(head, []byte(` "`)); request >= 0 {
		head = head[:request]
	}
	at, err := lastTimestamp(head)
	return Record{Client: line[:end], Time: at}, err
}

// maxTimestamp is the longest text taken for a time between brackets: with it a
// line of a million brackets is read as fast as any other.
const maxTimestamp = len(clfTime) + len(".000000000")

// lastTimestamp reads the last [timestamp] of head. Brackets around anything
// that does not have the form of a time are passed over.
func lastTimestamp(head []byte) (int64, error) {
	for {
		open := bytes.LastIndexByte(head, '[')
		if open < 0 {
			return 0, errNoTimestamp
		}
		inside := head[open+1 : min(open+2+maxTimestamp, len(head))]
		inside, _, closed := bytes.Cut(inside, []byte{']'})
		if t, err := time.Parse(clfTime, string(inside)); closed && err == nil {
			return nanos(t)
		}
		head = head[:open]
	}
}
