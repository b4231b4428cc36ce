package disagg

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"
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

// directFlat is a flat whose pages travel without a copy, as the host device's do.
type directFlat struct{ *flat }

func (f directFlat) PageBytes(layer int, page int32) []byte {
	at := int(page) * f.bytes
	return f.layer[layer][at : at+f.bytes : at+f.bytes]
}

// BenchmarkTransfer measures one prompt's pages over loopback, from the pool of one rank to that of another, checksums
// and acknowledgement included, against a bare TCP connection in the same run, alternating:
//
//	of_raw      the share of the speed at which a bare connection moves the same bytes from the same pool to the same pool
//	cpu_of_raw  the same by processor time instead of wall time: the one to look at on a machine with other work
//	of_raw_hot  of_raw for a bare connection that sends one small buffer again and again, which never leaves the cache
func BenchmarkTransfer(b *testing.B) {
	for _, direct := range []bool{true, false} {
		for _, pageBytes := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10} {
			layout := Layout{Layers: 16, PageSize: 16, PageBytesPerLayer: pageBytes}
			pages := (64 << 20) / (pageBytes * layout.Layers)
			b.Run(fmt.Sprintf("direct=%v/page=%dKiB", direct, pageBytes>>10), func(b *testing.B) {
				benchTransfer(b, layout, pages, direct)
			})
		}
	}
}

func benchTransfer(b *testing.B, layout Layout, pages int, direct bool) {
	total := int64(pages * layout.Layers * layout.PageBytesPerLayer)
	from, to := newFlat(layout, pages), newFlat(layout, pages)
	for _, f := range []*flat{from, to} {
		for _, l := range f.layer { // the kernel gives the memory now
			for i := range l {
				l[i] = byte(i)
			}
		}
	}
	p := newPair(b, pairOptions{layoutP: layout})
	p.prefill.Close()
	p.decode.Close()
	var src, dst Pages = from, to
	if direct {
		src, dst = directFlat{from}, directFlat{to}
	}
	p.reopen(src, dst)
	hot := [][]byte{make([]byte, batchBytes)}
	ids := seq(0, pages)
	var hotNanos, rawNanos, nanos, rawCPU, ownCPU int64
	now := p.prefill.cfg.Now
	room := int64(0)
	for b.Loop() {
		hotNanos += rawTransfer(b, now, hot, hot, total)
		cpu := cpuNanos(b)
		rawNanos += rawTransfer(b, now, from.layer, to.layer, total)
		rawCPU += cpuNanos(b) - cpu

		room++
		s, r := p.open(room, pages*layout.PageSize)
		p.until(r, WaitingPages)
		r.Allocate(ids, nil)
		p.until(s, Ready)
		cpu = cpuNanos(b)
		start := now()
		for layer := range layout.Layers {
			for i, page := range ids {
				s.Send(layer, i, page)
			}
		}
		s.Finish(First{Token: 1})
		<-r.Settled()
		nanos += now() - start
		ownCPU += cpuNanos(b) - cpu
		if r.State() != Done {
			b.Fatal(r.Err())
		}
		<-s.Settled()
	}
	b.ReportMetric(float64(rawNanos)/float64(nanos), "of_raw")
	b.ReportMetric(float64(rawCPU)/float64(ownCPU), "cpu_of_raw")
	b.ReportMetric(float64(hotNanos)/float64(nanos), "of_raw_hot")
	b.ReportMetric(float64(total)*float64(b.N)/float64(nanos), "GB/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRecut measures one prompt's pages from one prefill rank to two decode ranks that have half of the KV heads each,
// and from two to one, against a straight hand-over of the same bytes between two ranks in the same run, alternating:
//
//	of_straight  the share of the straight hand-over's speed
func BenchmarkRecut(b *testing.B) {
	m := model{layers: 8, heads: 8, headBytes: 256, pageSize: 16}
	const pages = 128
	for _, direct := range []bool{true, false} {
		for _, w := range [][2]world{{{1, 1}, {2, 1}}, {{2, 1}, {1, 1}}, {{2, 1}, {2, 1}}} {
			b.Run(fmt.Sprintf("direct=%v/tp%d-tp%d", direct, w[0].tp, w[1].tp), func(b *testing.B) {
				straight, cut := newBenchEngines(b, m, world{1, 1}, world{1, 1}, direct, pages), newBenchEngines(b, m, w[0], w[1], direct, pages)
				var straightNanos, cutNanos int64
				room := int64(0)
				for b.Loop() {
					room++
					straightNanos += straight.handOver(room, pages)
					cutNanos += cut.handOver(room, pages)
				}
				total := int64(pages * m.layers * 2 * m.pageSize * m.heads * m.headBytes)
				b.ReportMetric(float64(straightNanos)/float64(cutNanos), "of_straight")
				b.ReportMetric(float64(total)*float64(b.N)/float64(cutNanos), "GB/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// newBenchEngines gives engines whose memories are flats.
func newBenchEngines(b *testing.B, m model, prefill, decode world, direct bool, pages int) *engines {
	e := newEngines(b, m, prefill, decode, false, nil)
	memory := func(s *shard) Pages {
		local := s.layout
		local.Layers = s.holds.layers.len()
		f := newFlat(local, pages)
		for _, l := range f.layer {
			for i := range l {
				l[i] = byte(i)
			}
		}
		if direct {
			return directFlat{f}
		}
		return f
	}
	for _, p := range e.prefills {
		p.pages = memory(&p.shard)
		p.direct = directOf(p.pages, p.shard.layout)
	}
	for _, d := range e.decodes {
		d.pages = memory(&d.shard)
		d.direct = directOf(d.pages, d.shard.layout)
	}
	return e
}

// handOver hands one prompt over and gives the nanoseconds from the first page sent to the end.
func (e *engines) handOver(room int64, pages int) int64 {
	senders, receivers := e.open(rand.New(rand.NewPCG(1, 1)), room, pages*e.m.pageSize)
	for _, r := range receivers {
		e.until(r, WaitingPages)
		r.Allocate(seq(0, pages), nil)
	}
	for _, s := range senders {
		e.until(s, Ready)
	}
	start := time.Now()
	for _, s := range senders {
		for layer := range s.p.shard.holds.layers.len() {
			for ordinal := range pages {
				s.Send(layer, ordinal, int32(ordinal))
			}
		}
		s.Finish(First{Token: 1})
	}
	for _, r := range receivers {
		<-r.Settled()
		if r.State() != Done {
			e.t.Fatal(r.Err())
		}
	}
	took := time.Since(start)
	for _, s := range senders {
		<-s.Settled()
	}
	return int64(took)
}

// cpuNanos is the processor time of this process so far.
func cpuNanos(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// rawTransfer moves total bytes from src to dst, each again and again in pieces of a batch, over a bare connection as
// fresh as a room's, and gives the nanoseconds until one byte has come back.
func rawTransfer(b *testing.B, now func() int64, src, dst [][]byte, total int64) int64 {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer near.Close()
	far, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer far.Close()
		pieces(dst, total, func(p []byte) bool {
			_, err := io.ReadFull(far, p)
			return err == nil
		})
		far.Write([]byte{1})
	}()
	start := now()
	pieces(src, total, func(p []byte) bool {
		_, err := near.Write(p)
		return err == nil
	})
	if _, err := io.ReadFull(near, make([]byte, 1)); err != nil {
		b.Fatal(err)
	}
	took := now() - start
	<-done
	return took
}

// pieces calls f with pieces of at most a batch of the memories, in turn, until they add up to total.
func pieces(memories [][]byte, total int64, f func([]byte) bool) {
	for i := 0; total > 0; i++ {
		m := memories[i%len(memories)]
		for at := 0; at < len(m) && total > 0; {
			n := min(batchBytes, len(m)-at, int(total))
			if !f(m[at : at+n]) {
				return
			}
			at, total = at+n, total-int64(n)
		}
	}
}

// reopen makes both ranks anew over other memories.
func (p *pair) reopen(src, dst Pages) {
	p.t.Helper()
	var err error
	if p.prefill, err = NewPrefill(p.prefill.cfg, p.prefill.shard.layout, src); err != nil {
		p.t.Fatal(err)
	}
	if p.decode, err = NewDecode(p.decode.cfg, p.decode.shard.layout, dst); err != nil {
		p.t.Fatal(err)
	}
	waitFor(p.t, "registration", p.prefill.Registered())
	p.t.Cleanup(func() {
		p.prefill.Close()
		p.decode.Close()
	})
}
