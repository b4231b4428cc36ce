package reference_test

import (
	"testing"

	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/conformance"
	"github.com/sluice-dev/sluice/gpu/host/reference"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(*testing.T) gpu.Device { return reference.New() })
}
