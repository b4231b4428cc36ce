package metrics

import (
	"os"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs       *harness.Programs
	tiny, windowed string // model folders; every second layer of windowed looks at a window
)

func TestMain(m *testing.M) {
	long := []string{"--context-length", "2048"}
	os.Exit(harness.Main(m, func(p *harness.Programs) error { programs = p; return nil },
		harness.Model{Dir: &tiny, Name: "tiny", Flags: long},
		harness.Model{Dir: &windowed, Name: "windowed", Flags: append(long, "--arch", "ministral", "--sliding-window", "32")},
	))
}
