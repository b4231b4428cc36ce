package host

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, cfg Config) *Device {
	t.Helper()
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	for _, portable := range []bool{false, true} {
		for _, threads := range []int{1, 3} {
			t.Run(fmt.Sprintf("portable=%t,threads=%d", portable, threads), func(t *testing.T) {
				conformance.Run(t, func(t *testing.T) gpu.Device {
					return open(t, Config{Threads: threads, Portable: portable})
				})
			})
		}
	}
}
