// Command dashboard writes the checked-in Grafana dashboard. `make generate` runs it, so it cannot fall behind the table of
// families.
//
//	go run ./hack/dashboard FILE
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/sluice-dev/sluice/monitoring/dashboard"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dashboard FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

func write(file string) error {
	d, err := dashboard.Build(dashboard.Standalone())
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
