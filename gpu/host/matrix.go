package host

import "fmt"

// matrix is a weight [out, in] cut into panels of width outputs each. A panel is [in, width]: all its outputs' weights
// for input 0, then for input 1, and so on, so that a kernel streams it once and keeps width sums in registers. The
// last panel is padded with zeros.
type matrix struct {
	out, in int
	width   int
	panels  int // ceil(out / width)
	w       []float32
}

func (m *matrix) Out() int     { return m.out }
func (m *matrix) In() int      { return m.in }
func (m *matrix) Bytes() int64 { return int64(len(m.w)) * 4 }

// from gives the weights of panel p and of those behind it.
func (m *matrix) from(p int) []float32 { return m.w[p*m.in*m.width:] }

func pack(width, out, in int, src []float32) (*matrix, error) {
	if out < 1 || in < 1 || len(src) != out*in {
		return nil, fmt.Errorf("matrix [%d, %d] from %d elements: the sizes disagree", out, in, len(src))
	}
	m := &matrix{out: out, in: in, width: width, panels: (out + width - 1) / width}
	m.w = make([]float32, m.panels*in*width)
	for o := range out {
		row := src[o*in : (o+1)*in]
		panel := m.from(o / width)[o%width:]
		for k, v := range row {
			panel[k*width] = v
		}
	}
	return m, nil
}
