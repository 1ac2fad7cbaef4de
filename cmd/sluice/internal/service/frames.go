package service

import "encoding/binary"

// Header and kind of HTTP/2's frames.
const (
	frameHeader = 9
	goAway      = 7 // with the last stream and an error code, of 4 bytes each
)

// frames follows one direction of a connection of HTTP/2 from frame to frame.
type frames struct {
	head [frameHeader + 8]byte // of a frame: its header, and what a GOAWAY says
	have int                   // of head
	left int                   // of the frame, behind what head has

	goingAway bool   // a GOAWAY has gone by, and why
	code      uint32 // 0 for no error
}

// want is how many bytes of head the frame has that it begins with.
func (f *frames) want() int {
	if f.have >= frameHeader && f.head[3] == goAway {
		return min(len(f.head), frameHeader+f.length())
	}
	return frameHeader
}

// length is the frame's, without its header, which head must have.
func (f *frames) length() int {
	return int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
}

// follow goes on by b.
func (f *frames) follow(b []byte) {
	for len(b) > 0 {
		if f.left > 0 {
			n := min(f.left, len(b))
			f.left -= n
			b = b[n:]
			continue
		}
		n := copy(f.head[f.have:f.want()], b)
		f.have += n
		b = b[n:]
		if f.have < f.want() || f.have < frameHeader {
			continue
		}
		if f.have == len(f.head) {
			f.goingAway, f.code = true, binary.BigEndian.Uint32(f.head[frameHeader+4:])
		}
		f.left = f.length() - (f.have - frameHeader)
		f.have = 0
	}
}

// within reports whether a frame has begun and not ended.
func (f *frames) within() bool { return f.have+f.left > 0 }
