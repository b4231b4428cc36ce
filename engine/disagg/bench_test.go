package disagg

import (
	"fmt"
	"io"
	"net"
	"testing"
)

// flat is a KV pool as a rank has it: one slice a layer.
type flat struct {
	bytes int
	layer [][]byte // [layers][pages*bytes]
}

func newFlat(l Layout, pages int) *flat {
	f := &flat{bytes: l.PageBytesPerLayer}
	for range l.Layers {
		f.layer = append(f.layer, make([]byte, pages*l.PageBytesPerLayer))
	}
	return f
}

func (f *flat) ReadPage(layer int, page int32, dst []byte) {
	copy(dst, f.layer[layer][int(page)*f.bytes:])
}

func (f *flat) WritePage(layer int, page int32, src []byte) error {
	copy(f.layer[layer][int(page)*f.bytes:], src)
	return nil
}

// BenchmarkTransfer measures one prompt's pages over loopback, from the pool of one rank to that of another, checksums
// and acknowledgement included, against the same bytes through a bare TCP connection in the same run. The metric
// of_raw is the ratio of their speeds.
func BenchmarkTransfer(b *testing.B) {
	for _, pageBytes := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10} {
		layout := Layout{Layers: 16, PageSize: 16, PageBytesPerLayer: pageBytes}
		pages := (64 << 20) / (pageBytes * layout.Layers)
		total := int64(pages * layout.Layers * pageBytes)
		b.Run(fmt.Sprintf("page=%dKiB", pageBytes>>10), func(b *testing.B) {
			p := benchPair(b, layout, pages)
			raw := newRawTCP(b)
			ids := seq(0, pages)
			buf := make([]byte, 256<<10)
			b.SetBytes(total)
			var rawNanos, nanos int64
			now := p.prefill.cfg.Now
			room := int64(0)
			for b.Loop() {
				start := now()
				raw.send(buf, total)
				rawNanos += now() - start

				room++
				s, r := p.open(room, pages*layout.PageSize)
				p.until(r, WaitingPages)
				r.Allocate(ids)
				p.until(s, Ready)
				start = now()
				for layer := range layout.Layers {
					for i, page := range ids {
						s.Send(layer, i, page)
					}
				}
				s.Finish(First{Token: 1})
				<-r.Settled()
				nanos += now() - start
				if r.State() != Done {
					b.Fatal(r.Err())
				}
				<-s.Settled()
			}
			b.ReportMetric(float64(rawNanos)/float64(nanos), "of_raw")
			b.ReportMetric(float64(total)*float64(b.N)/float64(rawNanos), "raw_GB/s")
			b.ReportMetric(float64(total)*float64(b.N)/float64(nanos), "kv_GB/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func benchPair(b *testing.B, l Layout, pages int) *pair {
	p := newPair(b, pairOptions{layoutP: l})
	p.prefill.pages, p.decode.pages = newFlat(l, pages), newFlat(l, pages)
	return p
}

// rawTCP is a bare connection: one side writes, the other reads into a buffer and answers one byte at the end.
type rawTCP struct {
	b    *testing.B
	near net.Conn
	want chan int64
}

func newRawTCP(b *testing.B) *rawTCP {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	r := &rawTCP{b: b, near: near, want: make(chan int64)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512<<10)
		for n := range r.want {
			for n > 0 {
				m, err := far.Read(buf[:min(int64(len(buf)), n)])
				if err != nil {
					return
				}
				n -= int64(m)
			}
			far.Write([]byte{1})
		}
	}()
	b.Cleanup(func() {
		close(r.want)
		near.Close()
		far.Close()
		<-done
	})
	return r
}

func (r *rawTCP) send(buf []byte, n int64) {
	r.want <- n
	for n > 0 {
		m, err := r.near.Write(buf[:min(int64(len(buf)), n)])
		if err != nil {
			r.b.Fatal(err)
		}
		n -= int64(m)
	}
	if _, err := io.ReadFull(r.near, make([]byte, 1)); err != nil {
		r.b.Fatal(err)
	}
}
