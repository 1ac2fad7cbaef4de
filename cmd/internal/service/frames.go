package service

import "encoding/binary"

// The header and one type of HTTP/2's frames.
const (
	frameHeader = 9
	goAway      = 7 // with the last stream and an error code, of 4 bytes each
)

// frames follows one direction of a connection of HTTP/2 from frame to frame.
type frames struct {
	head [frameHeader + 8]byte // of a frame: its header, and the payload of a GOAWAY
	have int                   // bytes of head so far
	left int                   // bytes of the frame that follow those in head

	goingAway bool   // a GOAWAY has gone by, with this code
	code      uint32 // 0 for no error

	each func(kind, flags byte, stream uint32, length int) // is told of each frame that begins, unless it is nil
}

// want is how many bytes head needs of the present frame.
func (f *frames) want() int {
	if f.have >= frameHeader && f.head[3] == goAway {
		return min(len(f.head), frameHeader+f.length())
	}
	return frameHeader
}

// length is the length of the frame without its header. head must have the header.
func (f *frames) length() int {
	return int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
}

// follow continues with b.
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
		if f.each != nil {
			f.each(f.head[3], f.head[4], binary.BigEndian.Uint32(f.head[5:])&^(1<<31), f.length())
		}
		f.left = f.length() - (f.have - frameHeader)
		f.have = 0
	}
}

// within reports whether a frame has begun and has not ended.
func (f *frames) within() bool { return f.have+f.left > 0 }
