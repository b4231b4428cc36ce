package bench

import (
	"bufio"
	"bytes"
	"io"
)

// maxEventBytes bounds one event of a stream; /generate repeats the whole text in each.
const maxEventBytes = 64 << 20

// events reads server-sent events: the data of each, its lines joined.
type events struct {
	lines *bufio.Scanner
	data  []byte
}

func newEvents(r io.Reader) *events {
	e := &events{lines: bufio.NewScanner(r)}
	e.lines.Buffer(make([]byte, 0, 4096), maxEventBytes)
	return e
}

// next gives the data of the next event, which is valid until the next call, and io.EOF after the last one. An event whose
// empty line never came does not count.
func (e *events) next() ([]byte, error) {
	e.data = e.data[:0]
	filled := false
	for e.lines.Scan() {
		line := e.lines.Bytes()
		if len(line) == 0 {
			if filled {
				return e.data, nil
			}
			continue
		}
		value, isData := bytes.CutPrefix(line, []byte("data:"))
		if !isData {
			continue // a comment, or a field that these APIs do not use
		}
		if filled {
			e.data = append(e.data, '\n')
		}
		e.data, filled = append(e.data, bytes.TrimPrefix(value, []byte(" "))...), true
	}
	if err := e.lines.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}
