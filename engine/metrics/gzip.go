package metrics

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/flate"
)

// gzipper compresses texts; it keeps its memory for the next one. The parts of a long text are compressed side by side and
// make one stream of one member, as any reader takes it: each part but the last ends with a flush, which begins a new byte.
type gzipper struct {
	parts []*gzipPart
	out   []byte
}

type gzipPart struct {
	compressed bytes.Buffer
	writer     *flate.Writer
}

const (
	gzipParts     = 4
	gzipPartBytes = 256 << 10 // less is not worth a goroutine
)

// compress gives the compressed text, which is good until the next call. The lowest level is fast, and makes a thirtieth of
// an exposition.
func (g *gzipper) compress(text []byte) []byte {
	n := min(gzipParts, 1+len(text)/gzipPartBytes)
	for len(g.parts) < n {
		p := &gzipPart{}
		p.writer, _ = flate.NewWriter(&p.compressed, flate.BestSpeed) // the level is valid
		g.parts = append(g.parts, p)
	}
	var wait sync.WaitGroup
	for i, p := range g.parts[:n] {
		part, last := text[len(text)*i/n:len(text)*(i+1)/n], i == n-1
		wait.Go(func() { p.compress(part, last) })
	}
	// The header: magic, deflate, no flags, no time, fastest, unknown system. See RFC 1952.
	g.out = append(g.out[:0], 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255)
	sum := crc32.ChecksumIEEE(text)
	wait.Wait()
	for _, p := range g.parts[:n] {
		g.out = append(g.out, p.compressed.Bytes()...)
	}
	g.out = binary.LittleEndian.AppendUint32(g.out, sum)
	return binary.LittleEndian.AppendUint32(g.out, uint32(len(text)))
}

// compress writes a part to memory, which does not fail.
func (p *gzipPart) compress(text []byte, last bool) {
	p.compressed.Reset()
	p.writer.Reset(&p.compressed)
	_, _ = p.writer.Write(text)
	if last {
		_ = p.writer.Close()
		return
	}
	_ = p.writer.Flush()
}
