package controllers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// TestLoadAndCost: the status of a pool tells of each DP rank, the busiest first, and what the pool took and gave; another
// operator goes on counting from there, and writes nothing while nothing changes.
func TestLoadAndCost(t *testing.T) {
	trial := newTrial(t)
	trial.apply(strings.Replace(unified, "role: Unified}", "role: Unified, parallelism: {data: 2}, replicas: 2}", 1))
	trial.untilSettled("uni")
	pods := trial.pods("main")
	trial.kubelet.setRunning(pods[1], 4)
	trial.kubelet.generate(pods[1], 900)
	trial.kubelet.generate(pods[0], 100)
	var status v1alpha1.EnginePoolStatus
	trial.until("the load in the status", func() (bool, string) {
		status = trial.pool("uni", "main").Status
		return len(status.Ranks) == 4 && status.Ranks[0].RunningRequests == 4 && status.Cost != nil && status.Cost.GeneratedTokens == 1000, fmt.Sprintf("%+v, %+v", status.Ranks, status.Cost)
	})
	var got []string
	for _, r := range status.Ranks {
		got = append(got, fmt.Sprintf("%s/%d %d %s", r.Pod, r.DPRank, r.RunningRequests, r.Utilization))
	}
	if diff := cmp.Diff([]string{"uni-main-1-0/0 4 0.40", "uni-main-0-0/0 0 0.00", "uni-main-0-0/1 0 0.00", "uni-main-1-0/1 0 0.00"}, got); diff != "" {
		t.Errorf("ranks (-want +got):\n%s", diff)
	}
	if status.Load.MostLoaded != "uni-main-1-0/0" {
		t.Errorf("the most loaded rank is %q, want uni-main-1-0/0", status.Load.MostLoaded)
	}
	// The engines request no device, so each of the four ranks counts as one.
	if cost := status.Cost; cost.Device != "rank" || cost.Devices != 4 || cost.DeviceSecondsPer1kTokens == "" || cost.Since.After(cost.AsOf.Time) {
		t.Errorf("cost %+v", cost)
	}
	trial.until("the service to tell of it", func() (bool, string) {
		service := trial.untilCondition("uni", v1alpha1.ConditionReady, "True", "Serving")
		return strings.HasPrefix(service.Status.Summary.Cost, "unified=") && service.Status.Pools[0].Cost.GeneratedTokens == 1000, fmt.Sprintf("%+v", service.Status.Summary)
	})

	trial.operator.stop(t)
	trial.operator = startOperator(t, trial.namespace)
	trial.untilPolled(10)
	if diff := cmp.Diff(map[string]int{}, trial.operator.written()); diff != "" {
		t.Errorf("writes of another operator (-want +got):\n%s", diff)
	}
	trial.kubelet.generate(pods[0], 500)
	trial.until("the totals to go on", func() (bool, string) {
		now := trial.pool("uni", "main").Status.Cost
		return now.GeneratedTokens == 1500 && now.DeviceSeconds >= status.Cost.DeviceSeconds && now.Since.Equal(&status.Cost.Since), fmt.Sprintf("%+v", now)
	})
}

// TestPrintedColumns: kubectl get tells readiness, replicas and load at a glance, and with -o wide where the load is and what it
// costs.
func TestPrintedColumns(t *testing.T) {
	trial := newTrial(t)
	trial.apply(strings.Replace(unified, "role: Unified}", "role: Unified, parallelism: {data: 2}}", 1))
	trial.untilSettled("uni")
	pod := trial.pods("main")[0]
	trial.kubelet.setRunning(pod, 3)
	trial.kubelet.generate(pod, 10)
	transport, err := rest.TransportFor(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(resource string) (table metav1.Table) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			fmt.Sprintf("%s/apis/inference.sluice.dev/v1alpha1/namespaces/%s/%s", server.Config.Host, trial.namespace, resource), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if err := json.NewDecoder(response.Body).Decode(&table); err != nil {
			t.Fatal(err)
		}
		return table
	}
	// told gives the columns of one row as name=value; times are left out.
	told := func(table metav1.Table, wide bool) (columns []string) {
		for i, column := range table.ColumnDefinitions {
			if (column.Priority > 0) != wide || column.Name == "Age" || column.Name == "Device-s/1k" || len(table.Rows) != 1 {
				continue
			}
			columns = append(columns, fmt.Sprintf("%s=%v", column.Name, table.Rows[0].Cells[i]))
		}
		return columns
	}
	for _, test := range []struct {
		resource     string
		narrow, wide []string
	}{
		{"enginepools",
			[]string{"Name=uni-main", "Role=Unified", "Demand=1", "Allocated=1", "Ready=1", "Running=3", "Waiting=0", "Utilization=0.15"},
			[]string{"Updated=1", "Draining=0", "Ranks=2", "KV=0.00", "Hits=0.00", "Tokens/s=0.0", "Busiest=uni-main-0-0/0", "Slowest=<nil>", "Devices=2", "Metrics=True"}},
		{"inferenceservices",
			[]string{"Name=uni", "Ready=True", "Model=tiny", "Replicas=main=1/1", "Running=3", "Queued=0", "Utilization=0.15", "Tokens/s=0.00"},
			[]string{"KV=0.00", "Hits=0.00", "Metrics=True", "Progressing=False", fmt.Sprintf("URL=http://uni-router.%s.svc:8000", trial.namespace)}},
	} {
		trial.until("the columns of "+test.resource, func() (bool, string) {
			table := ask(test.resource)
			diff := cmp.Diff(test.narrow, told(table, false)) + cmp.Diff(test.wide, told(table, true))
			return diff == "", diff
		})
	}
}
