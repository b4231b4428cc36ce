package runner

import (
	"fmt"

	"github.com/sluice-dev/sluice/gpu"
)

// PageStore is the KV of this rank's layers, by page: page p of a windowed layer is that of the pool of windowed layers, of
// others that of the pool of full ones. ReadPage and WritePage may be called from any goroutine on pages that no
// step under way writes; a page that a step reads may be read beside it.
type PageStore struct {
	device    gpu.Device
	pageBytes int
	pools     poolPages
	windowed  []bool       // by layer; nil: none is
	layers    []gpu.Tensor // per layer [pages of its pool, 2*pageSize*kvHeads*headDim], a page's keys then its values
}

func newPageStore(device gpu.Device, info Info, pools poolPages) (*PageStore, error) {
	elements := info.PageBytesPerLayer / gpu.F32.Bytes()
	s := &PageStore{device: device, pageBytes: info.PageBytesPerLayer, pools: pools, windowed: info.Windowed, layers: make([]gpu.Tensor, info.NumLayers)}
	for i := range s.layers {
		pages := s.pagesOf(i)
		buffer, err := device.Alloc(gpu.F32, pages*elements)
		if err != nil {
			return nil, fmt.Errorf("allocate %d KV pages of layer %d: %w", pages, i, err)
		}
		s.layers[i] = gpu.View(buffer, pages, elements)
	}
	return s, nil
}

// Pages is how many pages the pool of full layers has: their ids are in [0, Pages).
func (s *PageStore) Pages() int { return s.pools.Full }

// WindowPages is how many pages the pool of windowed layers has.
func (s *PageStore) WindowPages() int { return s.pools.Window }

// Windowed reports whether a layer's pages are those of the pool of windowed layers.
func (s *PageStore) Windowed(layer int) bool { return s.windowed != nil && s.windowed[layer] }

func (s *PageStore) pagesOf(layer int) int {
	if s.Windowed(layer) {
		return s.pools.Window
	}
	return s.pools.Full
}

// ReadPage copies one layer of a page into dst, [PageBytesPerLayer]: keys then values, each [pageSize, kvHeads, headDim]
// float32 little-endian. A page or layer that doesn't exist, or a dst of another size, panics.
func (s *PageStore) ReadPage(layer int, page int32, dst []byte) {
	err := s.check(layer, page, len(dst))
	if err == nil {
		err = s.device.Read(dst, s.layers[layer].RowRange(int(page), int(page)+1))
	}
	if err != nil {
		panic(fmt.Errorf("read KV page: %w", err))
	}
}

// WritePage is the reverse of ReadPage. It refuses what doesn't fit and writes nothing then.
func (s *PageStore) WritePage(layer int, page int32, src []byte) error {
	err := s.check(layer, page, len(src))
	if err == nil {
		err = s.device.Write(s.layers[layer].RowRange(int(page), int(page)+1), src)
	}
	if err != nil {
		return fmt.Errorf("write KV page: %w", err)
	}
	return nil
}

func (s *PageStore) check(layer int, page int32, bytes int) error {
	if layer < 0 || layer >= len(s.layers) {
		return fmt.Errorf("layer is %d: want 0 to %d", layer, len(s.layers)-1)
	}
	if pages := s.pagesOf(layer); page < 0 || int(page) >= pages {
		return fmt.Errorf("page is %d: want 0 to %d", page, pages-1)
	}
	if bytes != s.pageBytes {
		return fmt.Errorf("page of %d bytes: want %d", bytes, s.pageBytes)
	}
	return nil
}
