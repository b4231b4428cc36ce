package ram

import (
	"testing"

	"github.com/sluice-dev/sluice/gpu"
)

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
