package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// image is a file with the given header and data.
func image(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func parse(b []byte) (*File, error) { return Parse(bytes.NewReader(b), int64(len(b))) }

func constant(value float32) func([]float32) {
	return func(dst []float32) {
		for i := range dst {
			dst[i] = value + float32(i)
		}
	}
}

func TestWriteThenRead(t *testing.T) {
	var b bytes.Buffer
	sources := []Source{
		{Name: "b", Shape: []int64{2, 3}, Fill: constant(1)},
		{Name: "a", Shape: []int64{4}, Fill: constant(-2)},
	}
	if err := Write(&b, sources); err != nil {
		t.Fatal(err)
	}
	f, err := parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	want := []Tensor{{"b", F32, []int64{2, 3}, 0, 24}, {"a", F32, []int64{4}, 24, 40}}
	if diff := cmp.Diff(want, f.Tensors()); diff != "" {
		t.Errorf("tensors (-want +got):\n%s", diff)
	}
	if f.offset%8 != 0 {
		t.Errorf("data begins at byte %d: want a multiple of 8", f.offset)
	}
	got := make([]float32, 6)
	if err := f.ReadFloat32(got, "b"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]float32{1, 2, 3, 4, 5, 6}, got); diff != "" {
		t.Errorf("b (-want +got):\n%s", diff)
	}
}

func TestReadFloat32Errors(t *testing.T) {
	f, err := parse(image(`{"i":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},"f":{"dtype":"F32","shape":[],"data_offsets":[4,8]}}`, make([]byte, 8)))
	if err != nil {
		t.Fatal(err)
	}
	f.name = "x.safetensors"
	tests := []struct {
		name     string
		elements int
		want     string
	}{
		{"f", 1, ""},
		{"f", 2, `read tensor "f": it has 1 elements, the caller wants 2`},
		{"i", 1, `read tensor "i": dtype I32 can't be read as float32: want F32, F16 or BF16`},
		{"none", 1, `read tensor "none": not in x.safetensors`},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.name, test.elements), func(t *testing.T) {
			got := ""
			if err := f.ReadFloat32(make([]float32, test.elements), test.name); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("error %q, want %q", got, test.want)
			}
		})
	}
}

func TestWiden(t *testing.T) {
	inf := float32(math.Inf(1))
	tests := []struct {
		name  string
		dtype DType
		bits  []uint16
		want  []float32
	}{
		{"bf16", BF16, []uint16{0x3f80, 0xc000, 0x0000, 0x7f80, 0x7fc0}, []float32{1, -2, 0, inf, float32(math.NaN())}},
		{
			"f16", F16,
			[]uint16{0x3c00, 0xc000, 0x0000, 0x7c00, 0xfc00, 0x7e00, 0x3555, 0x7bff, 0x0400, 0x03ff, 0x8001},
			[]float32{1, -2, 0, inf, -inf, float32(math.NaN()), 0.333251953125, 65504, 6.103515625e-05, 6.097555160522461e-05, -5.960464477539063e-08},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var src []byte
			for _, b := range test.bits {
				src = binary.LittleEndian.AppendUint16(src, b)
			}
			got := make([]float32, len(test.bits))
			if !widen(got, src, test.dtype) {
				t.Fatalf("%s can't be read", test.dtype)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if math.Signbit(float64(half(0x0000))) || !math.Signbit(float64(half(0x8000))) {
		t.Error("zeros lose their sign")
	}
}

func TestHostileHeaders(t *testing.T) {
	one := func(fields string) string { return `{"w":{` + fields + `}}` }
	tests := []struct {
		name  string
		bytes []byte
		want  string // part of the error
	}{
		{"empty file", nil, "file of 0 bytes: want at least the 8 bytes"},
		{"header longer than the file", append(binary.LittleEndian.AppendUint64(nil, 3), "{}"...), "header of 3 bytes in a file of 10"},
		{"header of 2^63", binary.LittleEndian.AppendUint64(nil, 1<<63), "header of 9223372036854775808 bytes"},
		{"header of 2^64-1", binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "header of 18446744073709551615 bytes"},
		{"no JSON", image(`nope`, nil), "header: not JSON"},
		{"empty header", image(``, nil), "header of 0 bytes in a file of 8"},
		{"a list", image(`[]`, nil), "header: is [: want an object"},
		{"cut off", image(`{"w":`, nil), "header: value of \"w\""},
		{"more behind", image(`{} {}`, nil), "follows the object"},
		{"same name twice", image(`{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, []byte{0}), `tensor "w" comes twice`},
		{"entry is a number", image(`{"w":1}`, nil), `tensor "w"`},
		{"metadata isn't strings", image(`{"__metadata__":{"a":1}}`, nil), "__metadata__"},
		{"dtype", image(one(`"dtype":"F33","shape":[1],"data_offsets":[0,4]`), nil), `dtype is "F33"`},
		{"no offsets", image(one(`"dtype":"F32","shape":[1]`), nil), "data_offsets: want [begin, end]"},
		{"three offsets", image(one(`"dtype":"F32","shape":[1],"data_offsets":[0,4,8]`), nil), "data_offsets: want [begin, end]"},
		{"reversed offsets", image(one(`"dtype":"F32","shape":[1],"data_offsets":[4,0]`), nil), "want 0 <= begin <= end"},
		{"negative offset", image(one(`"dtype":"F32","shape":[1],"data_offsets":[-4,0]`), nil), "want 0 <= begin <= end"},
		{"offset beyond 63 bits", image(one(`"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999]`), nil), `tensor "w"`},
		{"negative extent", image(one(`"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]`), make([]byte, 4)), "shape is [-1 -1]"},
		{"product overflows", image(one(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]`), nil), "shape is [4294967296 4294967296]"},
		{"product wraps to the size", image(one(`"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]`), make([]byte, 4)), "shape is [4611686018427387905]"},
		{"shape and offsets disagree", image(one(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), make([]byte, 4)), "takes 8 bytes, data_offsets give 4"},
		{"beyond the file", image(one(`"dtype":"F32","shape":[2],"data_offsets":[0,8]`), make([]byte, 4)), "end at byte 8, but the file holds 4"},
		{"data left over", image(one(`"dtype":"F32","shape":[1],"data_offsets":[0,4]`), make([]byte, 5)), "end at byte 4, but the file holds 5"},
		{"gap", image(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, make([]byte, 3)), `"b" begins at byte 2: want 1`},
		{"overlap", image(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, make([]byte, 3)), `"b" begins at byte 1: want 2`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := parse(test.bytes)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// writeFiles puts files into a new folder.
func writeFiles(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func shard(t *testing.T, sources ...Source) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, sources); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func index(t *testing.T, weightMap map[string]string) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": weightMap})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOpenDir(t *testing.T) {
	a, b := Source{"a", []int64{2}, constant(1)}, Source{"b", []int64{1}, constant(7)}
	tests := []struct {
		name, reason string
		files        map[string][]byte
		wantErr      string // part of it
	}{
		{"single", "", map[string][]byte{SingleName: shard(t, a, b)}, ""},
		{"shards", "the index wins over a single file", map[string][]byte{
			"1.safetensors": shard(t, a), "2.safetensors": shard(t, b), SingleName: nil,
			IndexName: index(t, map[string]string{"a": "1.safetensors", "b": "2.safetensors"}),
		}, ""},
		{"nothing", "", nil, "model.safetensors: no such file"},
		{"missing shard", "", map[string][]byte{IndexName: index(t, map[string]string{"a": "1.safetensors"})}, "1.safetensors: no such file"},
		{"wrong shard", "", map[string][]byte{"1.safetensors": shard(t, b), IndexName: index(t, map[string]string{"a": "1.safetensors"})},
			`tensor "a" is not in 1.safetensors, where the index puts it`},
		{"outside", "a file elsewhere must not be opened", map[string][]byte{IndexName: index(t, map[string]string{"a": "../1.safetensors"})}, "want a file name in the same folder"},
		{"absolute", "", map[string][]byte{IndexName: index(t, map[string]string{"a": "/etc/passwd"})}, "want a file name in the same folder"},
		{"empty index", "", map[string][]byte{IndexName: []byte(`{}`)}, "weight_map: is empty or missing"},
		{"damaged index", "", map[string][]byte{IndexName: []byte(`{"weight_map": 3}`)}, "cannot unmarshal"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, err := OpenDir(writeFiles(t, test.files))
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("%s: error %v, want one with %q", test.reason, err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			got := make([]float32, 3)
			if err := s.ReadFloat32(got[:2], "a"); err != nil {
				t.Error(err)
			}
			if err := s.ReadFloat32(got[2:], "b"); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]float32{1, 2, 7}, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
			if _, ok := s.Tensor("c"); ok {
				t.Error("found a tensor that isn't there")
			}
		})
	}
}

func TestWriteErrors(t *testing.T) {
	ok := Source{"a", []int64{1}, constant(0)}
	for name, sources := range map[string][]Source{
		"no tensors":     nil,
		"same name":      {ok, ok},
		"reserved name":  {{"__metadata__", []int64{1}, constant(0)}},
		"empty extent":   {{"a", []int64{0}, constant(0)}},
		"huge":           {{"a", []int64{1 << 20, 1 << 20}, constant(0)}},
		"negative":       {{"a", []int64{-1}, constant(0)}},
		"no name at all": {{"", []int64{1}, constant(0)}},
	} {
		if err := Write(&bytes.Buffer{}, sources); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

// FuzzParse checks that no file makes Parse panic or allocate by what the header claims, and that what it accepts can be
// read to the last byte.
func FuzzParse(f *testing.F) {
	f.Add(image(`{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, make([]byte, 8)))
	f.Add(image(`{"a":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]},"b":{"dtype":"F16","shape":[],"data_offsets":[6,8]}}`, make([]byte, 8)))
	f.Add(image(`{"w":{"dtype":"F32","shape":[0,9999999999],"data_offsets":[0,0]}}`, nil))
	f.Add(image(`{}`, nil))
	f.Add(binary.LittleEndian.AppendUint64(nil, math.MaxUint64))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parse(b)
		if err != nil {
			return
		}
		var covered int64
		for _, tensor := range file.Tensors() {
			covered += tensor.End - tensor.Begin
			if n := tensor.Elements(); n > int64(len(b)) {
				t.Fatalf("%+v has %d elements in a file of %d bytes", tensor, n, len(b))
			}
			switch tensor.DType {
			case F32, F16, BF16:
				if err := file.ReadFloat32(make([]float32, tensor.Elements()), tensor.Name); err != nil {
					t.Fatal(err)
				}
			}
		}
		if covered != int64(len(b))-file.offset {
			t.Fatalf("tensors cover %d of %d bytes", covered, int64(len(b))-file.offset)
		}
	})
}

func TestReadBlock(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SingleName)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(f, []Source{{Name: "w", Shape: []int64{4, 6}, Fill: func(dst []float32) {
		for i := range dst {
			dst[i] = float32(i)
		}
	}}}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	set, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	tests := []struct {
		name, reason                          string
		width, fromRow, toRow, fromCol, toCol int
		want                                  []float32
		wantErr                               bool
	}{
		{"whole rows", "", 6, 1, 3, 0, 6, []float32{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}, false},
		{"columns", "", 6, 0, 4, 2, 4, []float32{2, 3, 8, 9, 14, 15, 20, 21}, false},
		{"corner", "", 6, 3, 4, 5, 6, []float32{23}, false},
		{"another width", "a vector as one row", 24, 0, 1, 22, 24, []float32{22, 23}, false},
		{"nothing", "", 6, 2, 2, 0, 6, []float32{}, false},
		{"rows", "one too many", 6, 3, 5, 0, 6, make([]float32, 12), true},
		{"columns beyond", "", 6, 0, 1, 5, 7, make([]float32, 2), true},
		{"negative", "", 6, -1, 1, 0, 6, make([]float32, 12), true},
		{"width", "24 isn't a multiple", 5, 0, 1, 0, 5, make([]float32, 5), true},
		{"dst", "too short", 6, 0, 1, 0, 6, make([]float32, 5), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := make([]float32, len(test.want))
			err := set.ReadBlock(got, "w", test.width, test.fromRow, test.toRow, test.fromCol, test.toCol)
			if (err != nil) != test.wantErr {
				t.Fatalf("%s: error %v, want one: %t", test.reason, err, test.wantErr)
			}
			if diff := cmp.Diff(test.want, got); err == nil && diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
	if err := set.ReadBlock(nil, "v", 1, 0, 0, 0, 0); err == nil {
		t.Error("a tensor that isn't there: want an error")
	}
}
