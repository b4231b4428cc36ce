package runner

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host/reference"
)

func TestInfo(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Hidden: 16, Layers: 3, Heads: 2, KVHeads: 1, Intermediate: 20, VocabSize: 50, ContextLength: 40, EOSTokenIDs: []int32{49, 7}})
	device := reference.New()
	r := newRunner(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 43, Device: device})
	got := r.Info()
	if got.LoadNanos <= 0 || got.AllocNanos <= 0 {
		t.Errorf("weights took %d ns, pages %d ns", got.LoadNanos, got.AllocNanos)
	}
	got.Device.MemoryBytes, got.Device.MemoryFreeBytes, got.LoadNanos, got.AllocNanos = 0, 0, 0, 0
	const layer = 16 + (16+2*8)*16 + 16*16 + 16 + 2*20*16 + 20*16
	want := Info{
		NumLayers: 3, ModelLayers: 3, KVHeads: 1, ModelKVHeads: 1, HeadDim: 8, PageBytesPerLayer: 4 * 2 * 4 * 1 * 8, PageSize: 4, MaxTotalTokens: 40, ContextLength: 40, VocabSize: 50,
		EOSTokenIDs: []int32{7, 49}, WeightBytes: 4 * (3*layer + 16 + 2*50*16), KVBytes: 10 * 3 * 256, DType: "float32",
		Device: gpu.Info{Name: "cpu", Kernels: "reference", Threads: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
	if r.Pages().Pages() != 10 {
		t.Errorf("%d pages, want 10", r.Pages().Pages())
	}
}

func TestCapacity(t *testing.T) {
	info := Info{NumLayers: 2, PageBytesPerLayer: 100, ContextLength: 50, WeightBytes: 1000}
	tests := []struct {
		name, reason string
		cfg          Config
		freeBytes    int64
		want         int // pages
		wantErr      string
	}{
		{"given", "rounded down to whole pages", Config{PageSize: 16, MaxTotalTokens: 47}, 0, 2, ""},
		{"given, just fits", "(2000 - 1000) / 200, whatever the fraction", Config{PageSize: 16, MaxTotalTokens: 80, MemFraction: 0.1}, 2000, 5, ""},
		{"given, too much", "a page more than fits", Config{PageSize: 16, MaxTotalTokens: 96}, 2000, 0,
			"max total tokens is 96: 2000 free bytes, less 1000 of weights, hold 80 tokens of KV: lower --max-total-tokens, or set 0 to derive it"},
		{"given, absurd", "the product of tokens and bytes must not wrap", Config{PageSize: 1, MaxTotalTokens: math.MaxInt}, 2000, 0,
			"max total tokens is 9223372036854775807: 2000 free bytes, less 1000 of weights, hold 5 tokens of KV: lower --max-total-tokens, or set 0 to derive it"},
		{"from memory", "(0.5*6000 - 1000) / 200", Config{PageSize: 16}, 6000, 10, ""},
		{"fraction", "(0.9*6000 - 1000) / 200", Config{PageSize: 16, MemFraction: 0.9}, 6000, 22, ""},
		{"capped", "32 contexts of 50 are 100 pages", Config{PageSize: 16}, 1 << 40, 100, ""},
		{"unknown memory", "the cap is all there is", Config{PageSize: 16}, 0, 100, ""},
		{"too little", "", Config{PageSize: 16}, 2300, 0,
			"no memory for KV: 0.5 of 2300 free bytes, less 1000 of weights, is under one page of 200 bytes: raise the memory fraction or set max total tokens"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.cfg.capacity(info, test.freeBytes)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if got.Full != test.want || got.Window != 0 || message != test.wantErr {
				t.Errorf("%s: %+v pages, error %q; want %d, %q", test.reason, got, message, test.want, test.wantErr)
			}
		})
	}
}

func TestCapacityOfTwoPools(t *testing.T) {
	// Three layers of 100 bytes a page, the first and the last windowed: a page of each pool is 100 and 200 bytes.
	mixed := Info{NumLayers: 3, PageBytesPerLayer: 100, ContextLength: 1 << 20, WeightBytes: 1000, WindowTokens: 20, Windowed: []bool{true, false, true}}
	none, all, vast := mixed, mixed, mixed
	vast.PageBytesPerLayer = 1 << 33
	none.Windowed, all.Windowed = []bool{false, false, false}, []bool{true, true, true}
	tests := []struct {
		name, reason string
		info         Info
		cfg          Config
		freeBytes    int64
		want         poolPages
		wantErr      string
	}{
		{"default", "0.8 of 100", mixed, Config{PageSize: 16, MaxTotalTokens: 1600}, 0, poolPages{100, 80}, ""},
		{"ratio", "rounded up", mixed, Config{PageSize: 16, MaxTotalTokens: 1600, WindowRatio: 0.333}, 0, poolPages{100, 34}, ""},
		{"just fits", "100*100 + 80*200", mixed, Config{PageSize: 16, MaxTotalTokens: 1600}, 27000, poolPages{100, 80}, ""},
		{"too much", "", mixed, Config{PageSize: 16, MaxTotalTokens: 1600}, 26999, poolPages{},
			"max total tokens is 1600: 26999 free bytes, less 1000 of weights, hold 1584 tokens of KV: lower --max-total-tokens, or set 0 to derive it"},
		{"absurd", "2^31 pages of 2^33 bytes must not wrap", vast, Config{PageSize: 16, MaxTotalTokens: math.MaxInt}, 27000, poolPages{},
			"max total tokens is 9223372036854775807: 27000 free bytes, less 1000 of weights, hold 0 tokens of KV: lower --max-total-tokens, or set 0 to derive it"},
		{"derived", "half of 54000 less 1000", mixed, Config{PageSize: 16}, 54000, poolPages{100, 80}, ""},
		{"a stage without windowed layers", "still the pool of the others", none, Config{PageSize: 16, MaxTotalTokens: 1600}, 31000, poolPages{100, 80}, ""},
		{"windowed layers alone", "only the window's pages take memory", all, Config{PageSize: 16, MaxTotalTokens: 1600}, 25000, poolPages{100, 80}, ""},
		{"too small for a window", "two pages of 16 and the one that begins inside it", mixed, Config{PageSize: 16, MaxTotalTokens: 64, WindowRatio: 0.5}, 0, poolPages{},
			"the pool of sliding-window layers holds 32 tokens, 20 of them in a window: want 48 at least; raise --swa-full-tokens-ratio or --max-total-tokens"},
		{"smaller than a window", "no sequence can be longer than the full pool", mixed, Config{PageSize: 16, MaxTotalTokens: 32, WindowRatio: 1}, 0, poolPages{2, 2}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.cfg.capacity(test.info, test.freeBytes)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if got != test.want || message != test.wantErr {
				t.Errorf("%s: %+v, error %q; want %+v, %q", test.reason, got, message, test.want, test.wantErr)
			}
		})
	}
}

func TestWindowedInfo(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Arch: "ministral", SlidingWindow: 6, Hidden: 16, Layers: 3, Heads: 2, KVHeads: 1, VocabSize: 50})
	r := newRunner(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 43})
	info, pages := r.Info(), r.Pages()
	if info.WindowTokens != 6 || info.MaxTotalTokens != 40 || info.MaxWindowTokens != 32 || info.KVBytes != 256*(10+2*8) ||
		!slices.Equal(info.Windowed, []bool{true, false, true}) {
		t.Errorf("info %+v", info)
	}
	if pages.Pages() != 10 || pages.WindowPages() != 8 || !pages.Windowed(0) || pages.Windowed(1) {
		t.Errorf("%d pages, %d of windows, windowed %t %t", pages.Pages(), pages.WindowPages(), pages.Windowed(0), pages.Windowed(1))
	}
	if err := pages.WritePage(0, 8, make([]byte, 256)); err == nil || err.Error() != "write KV page: page is 8: want 0 to 7" {
		t.Errorf("page 8 of a windowed layer: error %v", err)
	}
	if err := pages.WritePage(1, 9, make([]byte, 256)); err != nil {
		t.Errorf("page 9 of a full layer: error %v", err)
	}
}

func TestNewRefusesBadConfigs(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Hidden: 16, Layers: 1, Heads: 2, VocabSize: 50})
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"page size", Config{ModelDir: dir}, "runner config: page size is 0: want 1 to 65536 tokens"},
		{"capacity", Config{ModelDir: dir, PageSize: 16, MaxTotalTokens: 15}, "runner config: max total tokens is 15: want 0 (from memory) or at least a page of 16"},
		{"fraction", Config{ModelDir: dir, PageSize: 16, MemFraction: 1.5}, "runner config: memory fraction is 1.5: want 0 (the default, 0.5) to 1"},
		{"window ratio", Config{ModelDir: dir, PageSize: 16, WindowRatio: 1.5}, "runner config: ratio of window tokens is 1.5: want 0 (the default, 0.8) to 1 for --swa-full-tokens-ratio"},
		{"threads", Config{ModelDir: dir, PageSize: 16, Threads: -1}, "start device: threads is -1: want 0 (one per CPU) to 4096"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := New(test.cfg)
			if err == nil || err.Error() != test.want {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
	if _, err := New(Config{ModelDir: t.TempDir(), PageSize: 16}); err == nil {
		t.Error("empty model folder: want an error")
	}
}

func TestPageStoreRefusesWhatDoesNotFit(t *testing.T) {
	dir := seededModel(t, model.SeededOptions{Hidden: 16, Layers: 1, Heads: 2, KVHeads: 1, VocabSize: 50})
	pages := newRunner(t, Config{ModelDir: dir, PageSize: 4, MaxTotalTokens: 40}).Pages()
	tests := []struct {
		name  string
		layer int
		page  int32
		bytes int
		want  string
	}{
		{"layer", 1, 0, 256, "KV page: layer is 1: want 0 to 0"},
		{"negative layer", -1, 0, 256, "KV page: layer is -1: want 0 to 0"},
		{"page", 0, 10, 256, "KV page: page is 10: want 0 to 9"},
		{"negative page", 0, -1, 256, "KV page: page is -1: want 0 to 9"},
		{"size", 0, 0, 255, "KV page: page of 255 bytes: want 256"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := pages.WritePage(test.layer, test.page, make([]byte, test.bytes)); err == nil || err.Error() != "write "+test.want {
				t.Errorf("write: error %v, want %s", err, test.want)
			}
			defer func() {
				if err, _ := recover().(error); err == nil || err.Error() != "read "+test.want {
					t.Errorf("read: panic %v, want %s", err, test.want)
				}
			}()
			pages.ReadPage(test.layer, test.page, make([]byte, test.bytes))
		})
	}
}
