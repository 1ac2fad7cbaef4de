package rules

import (
	"encoding/binary"
)

// The names of a hold beside its id, its request, and the hits used, as bytes: in memory and in a Store the same bytes
// are compared, as hashes.

// names is the descriptors of a call about a hold, without the counts for weights.
func (h *Hold) names(resp *Response) []byte {
	b := make([]byte, 0, 256)
	for i := range h.Request.Descriptors {
		d, named := &h.Request.Descriptors[i], resp.work[i].named
		b = binary.AppendUvarint(b, uint64(named))
		b = appendEntries(b, d.Entries[:named])
		if d.Override == nil {
			b = append(b, 0)
		} else {
			b = binary.AppendUvarint(append(b, 1), uint64(d.Override.Requests))
			b = append(b, byte(d.Override.Unit))
		}
	}
	return b
}

// request is the part that a repeated Hold shares with the first one, behind its names.
func (h *Hold) request(names []byte) []byte {
	b := binary.AppendUvarint(names, uint64(h.Request.Hits))
	for i := range h.Request.Descriptors {
		d := &h.Request.Descriptors[i]
		b = binary.AppendUvarint(b, uint64(len(d.Entries)))
		b = appendEntries(b, d.Entries)
		if d.Hits == nil {
			b = append(b, 0)
		} else {
			b = binary.AppendUvarint(append(b, 1), *d.Hits)
		}
	}
	if h.GiveBack {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendEntries(b []byte, entries []Entry) []byte {
	for _, e := range entries {
		b = append(binary.AppendUvarint(b, uint64(len(e.Key))), e.Key...)
		b = append(binary.AppendUvarint(b, uint64(len(e.Value))), e.Value...)
	}
	return b
}

// usage are the hits that a Settle says were used.
func (resp *Response) usage() (b []byte) {
	for i := range resp.work {
		b = binary.AppendUvarint(b, resp.work[i].hits)
	}
	return b
}
