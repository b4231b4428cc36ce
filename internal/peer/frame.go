package peer

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// WriteFrame writes 4 bytes of length, big-endian, and the payload, in one write.
func WriteFrame(w io.Writer, payload []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...))
	return err
}

// ReadFrame reads what WriteFrame wrote. A frame of more than so many bytes is refused before memory is taken for it.
func ReadFrame(r io.Reader, mostBytes int) ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(prefix[:])
	if int64(n) > int64(mostBytes) {
		return nil, fmt.Errorf("frame of %d bytes: at most %d are allowed", n, mostBytes)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// WriteJSON writes v as a frame and gives its payload, for proofs.
func WriteJSON(w io.Writer, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return b, WriteFrame(w, b)
}

// ReadJSON reads a frame into v, strictly, and gives its payload, for proofs.
func ReadJSON(r io.Reader, mostBytes int, v any) ([]byte, error) {
	b, err := ReadFrame(r, mostBytes)
	if err != nil {
		return nil, err
	}
	if err := ParseJSON(b, v); err != nil {
		return nil, fmt.Errorf("message %.64q: %w", b, err)
	}
	return b, nil
}

// ParseJSON reads one JSON value with no fields that v does not have and nothing behind it.
func ParseJSON(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("more than one JSON value")
	}
	return nil
}
