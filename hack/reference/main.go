// Command reference writes the generated pages of docs/reference: the families of /metrics and the routes of the engine from
// the tables in the code, and the fields of the resources from their definitions. `make generate` runs it, so the pages cannot fall behind.
//
//	go run ./hack/reference DIR
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-dev/sluice/config/crd"
	enginemetrics "github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/server"
	routermetrics "github.com/sluice-dev/sluice/router/metrics"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: reference DIR")
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
		"metrics.md": metricsPage(enginemetrics.Families(), routermetrics.Families()),
		"api.md":     api,
		"http.md":    httpPage(server.Reference(), server.ErrorCodes()),
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
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
