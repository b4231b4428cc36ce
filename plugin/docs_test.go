package plugin_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/plugin"
	"github.com/sluice-dev/sluice/plugin/diagnosis"
	"github.com/sluice-dev/sluice/plugin/rollout"
	"github.com/sluice-dev/sluice/plugin/scaling"
	"github.com/sluice-dev/sluice/plugin/trail"
	"github.com/sluice-dev/sluice/plugin/view"
)

// TestDocumentsAreDescribed: every field of every document stands in the page.
func TestDocumentsAreDescribed(t *testing.T) {
	text, err := os.ReadFile("../docs/kubectl-sluice.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(of.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[of] {
			return
		}
		seen[of] = true
		for i := range of.NumField() {
			field := of.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case !field.IsExported():
			case field.Anonymous && name == "":
			case name == "":
				t.Errorf("%s.%s has no name for JSON", of, field.Name)
			case !strings.Contains(string(text), "`"+name+"`"):
				t.Errorf("field %s of %s is not described", name, of)
			}
			walk(field.Type)
		}
	}
	for _, document := range []any{
		view.Status{}, view.Ranks{}, trail.Trace{}, diagnosis.Report{}, scaling.Explanation{}, rollout.Status{}, rollout.History{}, plugin.Done{},
	} {
		walk(reflect.TypeOf(document))
	}
}
