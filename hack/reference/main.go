// Command reference writes the generated pages of docs: metrics.md from the tables of families and laws, stages.md from the
// table of stages, reference/http.md from that of the engine's routes, reference/api.md from the definitions of the
// resources, and reference/operator-metrics.md from the operator's table. `make generate` runs it, so the pages cannot fall behind.
//
//	go run ./hack/reference docs
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-dev/sluice/config/crd"
	operatormetrics "github.com/sluice-dev/sluice/controllers/metrics"
	"github.com/sluice-dev/sluice/engine/ledger"
	enginemetrics "github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/server"
	routermetrics "github.com/sluice-dev/sluice/router/metrics"
)

func main() {
	if len(os.Args) != 2 || filepath.Base(os.Args[1]) == "reference" {
		fmt.Fprintln(os.Stderr, "usage: reference DOCS, the folder of metrics.md")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	definitions, err := crd.Definitions()
	if err != nil {
		return err
	}
	api, err := apiPage(definitions)
	if err != nil {
		return err
	}
	pages := map[string][]byte{
		"metrics.md":                    metricsPage(enginemetrics.Families(), routermetrics.Families(), ledger.Laws()),
		"stages.md":                     stagesPage(ledger.Stages()),
		"reference/api.md":              api,
		"reference/http.md":             httpPage(server.Reference(), server.ErrorCodes()),
		"reference/operator-metrics.md": operatorPage(operatormetrics.Families(), operatormetrics.Borrowed()),
	}
	if err := os.MkdirAll(filepath.Join(dir, "reference"), 0o755); err != nil {
		return err
	}
	for name, page := range pages {
		page = append(bytes.TrimRight(page, "\n"), '\n')
		if err := os.WriteFile(filepath.Join(dir, name), page, 0o644); err != nil {
			return err
		}
	}
	return nil
}
