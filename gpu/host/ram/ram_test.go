package ram

import (
	"math"
	"testing"

	"github.com/sluice-dev/sluice/gpu"
)

func TestParseMeminfo(t *testing.T) {
	tests := []struct {
		name, text          string
		wantTotal, wantFree int64
	}{
		{"usual", "MemTotal:       16384 kB\nMemFree:        1 kB\nMemAvailable:    8192 kB\nBuffers:  5 kB\n", 16384 * 1024, 8192 * 1024},
		{"empty", "", 0, 0},
		{"damaged", "MemTotal: many kB\nMemAvailable:\nMemAvailable: 9223372036854775807 kB\n", 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			total, free := parseMeminfo([]byte(test.text))
			if total != test.wantTotal || free != test.wantFree {
				t.Errorf("total %d, free %d; want %d, %d", total, free, test.wantTotal, test.wantFree)
			}
		})
	}
}

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]int64{"max\n": math.MaxInt64, "1024\n": 1024, "": math.MaxInt64, "-5": math.MaxInt64} {
		if got := parseLimit([]byte(text)); got != want {
			t.Errorf("limit %q is %d, want %d", text, got, want)
		}
	}
}

func TestMemory(t *testing.T) {
	total, free := Memory()
	if free < 0 || free > total {
		t.Errorf("%d bytes free of %d", free, total)
	}
}

func TestRowsStayInsideTheirTensor(t *testing.T) {
	b, err := Alloc(gpu.F32, 12)
	if err != nil {
		t.Fatal(err)
	}
	v := gpu.View(b, 3, 4).ColumnRange(1, 3)
	if row := Row(v, 1); len(row) != 2 || cap(row) != 2 {
		t.Errorf("row has %d elements and room for %d, want 2 and 2", len(row), cap(row))
	}
	if all := F32(v); len(all) != 10 {
		t.Errorf("view spans %d elements, want 10", len(all))
	}
	for name, call := range map[string]func(){
		"rows":    func() { gpu.View(b, 3, 4).RowRange(2, 4) },
		"columns": func() { gpu.View(b, 3, 4).ColumnRange(-1, 2) },
		"view":    func() { gpu.View(b, 4, 4) },
	} {
		func() {
			defer func() {
				if _, ok := recover().(*gpu.ShapeError); !ok {
					t.Errorf("%s outside the buffer: want a panic with *gpu.ShapeError", name)
				}
			}()
			call()
		}()
	}
	if _, err := Alloc(gpu.DType(99), 1); err == nil {
		t.Error("an unknown type: want an error")
	}
	if _, err := Alloc(gpu.F32, -1); err == nil {
		t.Error("a negative size: want an error")
	}
}
