package monitoring

import (
	"os"
	"testing"

	"github.com/sluice-dev/sluice/test/harness"
)

var (
	programs       *harness.Programs
	tiny, windowed string // model folders
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(p *harness.Programs) error { programs = p; return nil },
		harness.Model{Dir: &tiny, Name: "tiny"},
		harness.Model{Dir: &windowed, Name: "windowed", Flags: []string{"--arch", "ministral", "--sliding-window", "32"}},
	))
}
