// Command chart writes the files of the Helm chart that are made from code: the rules about the operator and its dashboard.
// `make generate` runs it, so they cannot fall behind the operator's table of families.
//
//	go run ./hack/chart FOLDER
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/monitoring/dashboard"
)

// What the templates replace: names that a release and its values decide.
const (
	job      = "@JOB@"
	runbooks = "@RUNBOOKS@"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: chart FOLDER, the files of the chart")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	text, err := yaml.Marshal([]monitoringv1.RuleGroup{rules.Operator(job, runbooks)})
	if err != nil {
		return fmt.Errorf("encode the rules: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "operator-rules.yaml"), text, 0o644); err != nil {
		return err
	}
	board, err := dashboard.BuildOperator(dashboard.OperatorOptions{UID: "sluice-operator", Title: "Sluice Operator", Tags: []string{"sluice"}})
	if err != nil {
		return err
	}
	if text, err = json.MarshalIndent(board, "", " "); err != nil {
		return fmt.Errorf("encode the dashboard: %w", err)
	}
	return os.WriteFile(filepath.Join(folder, "operator-dashboard.json"), append(text, '\n'), 0o644)
}
