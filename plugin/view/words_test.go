package view

import (
	"os"
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWordsOfEveryCondition: each condition that the API declares has words of its own for each status.
func TestWordsOfEveryCondition(t *testing.T) {
	text, err := os.ReadFile("../../api/v1alpha1/conditions.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^\s+Condition\w+ += "(\w+)"$`).FindAllStringSubmatch(string(text), -1)
	if len(declared) < 9 {
		t.Fatalf("the API declares %d conditions", len(declared))
	}
	for _, d := range declared {
		seen := map[string]bool{}
		for _, status := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
			seen[words(d[1], status)] = true
		}
		if len(seen) != 3 || seen[d[1]+" is True"] {
			t.Errorf("condition %s has no words of its own: %v", d[1], seen)
		}
	}
}
