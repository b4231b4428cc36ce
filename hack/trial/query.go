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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/query?query="+url.QueryEscape(expression), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expression, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expression, err)
	}
	series, err := parseVector(body)
	if err != nil {
		return nil, fmt.Errorf("query %s: status %d: %w", expression, response.StatusCode, err)
	}
	return series, nil
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
