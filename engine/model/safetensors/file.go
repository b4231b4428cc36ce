package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// File is one open file. Its methods may be called from several goroutines.
type File struct {
	name    string
	data    io.ReaderAt
	close   func() error
	offset  int64 // of the data part
	tensors []Tensor
	byName  map[string]int
}

// Open reads and checks the header of the file at path. The caller closes the File.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open weights: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open weights: %w", err)
	}
	w, err := Parse(f, info.Size())
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open weights %s: %w", path, err)
	}
	w.name, w.close = path, f.Close
	return w, nil
}

// Parse reads and checks the header of a file of size bytes. r stays the caller's.
func Parse(r io.ReaderAt, size int64) (*File, error) {
	var prefix [8]byte
	if size < int64(len(prefix)) {
		return nil, fmt.Errorf("file of %d bytes: want at least the 8 bytes of the header's length", size)
	}
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, fmt.Errorf("header length: %w", err)
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length < 2 || length > maxHeaderBytes || int64(length) > size-int64(len(prefix)) {
		return nil, fmt.Errorf("header of %d bytes in a file of %d: want 2 to %d, inside the file", length, size, maxHeaderBytes)
	}
	header := make([]byte, length)
	if _, err := r.ReadAt(header, int64(len(prefix))); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	offset := int64(len(prefix)) + int64(length)
	tensors, err := parseHeader(header, size-offset)
	if err != nil {
		return nil, err
	}
	f := &File{data: r, close: func() error { return nil }, offset: offset, tensors: tensors, byName: map[string]int{}}
	for i, t := range tensors {
		f.byName[t.Name] = i
	}
	return f, nil
}

// Tensors gives the entries in the order of their data.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Tensor finds an entry by name.
func (f *File) Tensor(name string) (t Tensor, ok bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// readBytes is how much is read and converted at once.
const readBytes = 1 << 20

// ReadFloat32 converts the tensor into dst, which must have exactly its number of elements.
func (f *File) ReadFloat32(dst []float32, name string) error {
	t, ok := f.Tensor(name)
	if !ok {
		return fmt.Errorf("read tensor %q: not in %s", name, f.name)
	}
	if int64(len(dst)) != t.Elements() {
		return fmt.Errorf("read tensor %q: it has %d elements, the caller wants %d", name, t.Elements(), len(dst))
	}
	return f.read(dst, t, 0, make([]byte, min(readBytes, t.End-t.Begin)))
}

// ReadBlock converts rows [fromRow, toRow) and columns [fromCol, toCol) of the tensor, seen as rows of width elements, into
// dst, [rows, columns]. Nothing else is read from the file.
func (f *File) ReadBlock(dst []float32, name string, width, fromRow, toRow, fromCol, toCol int) error {
	t, ok := f.Tensor(name)
	if !ok {
		return fmt.Errorf("read tensor %q: not in %s", name, f.name)
	}
	rows, cols := toRow-fromRow, toCol-fromCol
	if width < 1 || t.Elements()%int64(width) != 0 || fromRow < 0 || rows < 0 || int64(toRow) > t.Elements()/int64(width) ||
		fromCol < 0 || cols < 0 || toCol > width || len(dst) != rows*cols {
		return fmt.Errorf("read tensor %q: rows [%d, %d) and columns [%d, %d) of width %d into %d elements, of %d in all: want a block inside the tensor",
			name, fromRow, toRow, fromCol, toCol, width, len(dst), t.Elements())
	}
	buffer := make([]byte, min(readBytes, t.End-t.Begin))
	if cols == width {
		return f.read(dst, t, int64(fromRow)*int64(width), buffer)
	}
	for row := range rows {
		if err := f.read(dst[row*cols:(row+1)*cols], t, int64(fromRow+row)*int64(width)+int64(fromCol), buffer); err != nil {
			return err
		}
	}
	return nil
}

// read converts the elements from the given one on into dst, through buffer.
func (f *File) read(dst []float32, t Tensor, from int64, buffer []byte) error {
	size := int(sizes[t.DType])
	at := f.offset + t.Begin + from*int64(size)
	for len(dst) > 0 {
		n := min(len(dst), len(buffer)/size)
		piece := buffer[:n*size]
		if _, err := f.data.ReadAt(piece, at); err != nil {
			return fmt.Errorf("read tensor %q: %w", t.Name, err)
		}
		if !widen(dst[:n], piece, t.DType) {
			return fmt.Errorf("read tensor %q: dtype %s can't be read as float32: want F32, F16 or BF16", t.Name, t.DType)
		}
		dst, at = dst[n:], at+int64(len(piece))
	}
	return nil
}

// Close closes the file.
func (f *File) Close() error {
	if err := f.close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close weights %s: %w", f.name, err)
	}
	return nil
}
