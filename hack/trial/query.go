package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Series is one answer of an instant query.
type Series struct {
	Labels map[string]string
	Value  float64
}

// Query asks a Prometheus for the value of an expression now. base is its URL; only vectors are understood.
func Query(ctx context.Context, base, expression string) ([]Series, error) {
	body, err := get(ctx, base+"/api/v1/query?query="+url.QueryEscape(expression))
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expression, err)
	}
	series, err := parseVector(body)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expression, err)
	}
	return series, nil
}

// get reads what Prometheus answers, whatever its status: a refusal is told in the body.
func get(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(io.LimitReader(response.Body, 16<<20))
}

// ScrapePools asks a Prometheus for the names of what it scrapes by.
func ScrapePools(ctx context.Context, base string) ([]string, error) {
	body, err := get(ctx, base+"/api/v1/scrape_pools")
	if err != nil {
		return nil, fmt.Errorf("ask for the scrape pools: %w", err)
	}
	return parseScrapePools(body)
}

// parseScrapePools reads the answer of /api/v1/scrape_pools.
func parseScrapePools(body []byte) ([]string, error) {
	var answer struct {
		Status string
		Error  string
		Data   struct{ ScrapePools []string }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("the answer is not Prometheus': %w", err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("the answer is %s: %s", answer.Status, answer.Error)
	}
	return answer.Data.ScrapePools, nil
}

// Alert is an alerting rule as a Prometheus has evaluated it.
type Alert struct {
	Name   string
	Labels map[string]string
	For    time.Duration
	// State is inactive, pending or firing, and Health ok when the last evaluation was.
	State, Health string
	LastError     string
}

// Alerts asks a Prometheus for its alerting rules.
func Alerts(ctx context.Context, base string) ([]Alert, error) {
	body, err := get(ctx, base+"/api/v1/rules?type=alert")
	if err != nil {
		return nil, fmt.Errorf("ask for the rules: %w", err)
	}
	return parseAlerts(body)
}

// parseAlerts reads the answer of /api/v1/rules.
func parseAlerts(body []byte) ([]Alert, error) {
	var answer struct {
		Status string
		Error  string
		Data   struct {
			Groups []struct {
				Rules []struct {
					Name      string
					Labels    map[string]string
					Duration  float64 // seconds
					State     string
					Health    string
					LastError string
				}
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("the answer is not Prometheus': %w", err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("the answer is %s: %s", answer.Status, answer.Error)
	}
	var alerts []Alert
	for _, group := range answer.Data.Groups {
		for _, rule := range group.Rules {
			wait := time.Duration(rule.Duration * float64(time.Second))
			alerts = append(alerts, Alert{rule.Name, rule.Labels, wait, rule.State, rule.Health, rule.LastError})
		}
	}
	return alerts, nil
}

// parseVector reads the answer of /api/v1/query.
func parseVector(body []byte) ([]Series, error) {
	var answer struct {
		Status string
		Error  string
		Data   struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("the answer is not Prometheus': %w", err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("the answer is %s: %s", answer.Status, answer.Error)
	}
	if answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("the answer is a %s, want a vector", answer.Data.ResultType)
	}
	var series []Series
	for _, result := range answer.Data.Result {
		var text string
		if err := json.Unmarshal(result.Value[1], &text); err != nil {
			return nil, fmt.Errorf("a value is no string: %w", err)
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("a value is no number: %w", err)
		}
		series = append(series, Series{Labels: result.Metric, Value: value})
	}
	return series, nil
}
