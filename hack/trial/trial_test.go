package trial

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// A namespace that was there before is neither used nor removed.
func TestForeignNamespaceStays(t *testing.T) {
	var log bytes.Buffer
	tr := &Trial{log: &log, Client: fake.NewClientBuilder().WithObjects(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}).Build()}
	ctx := t.Context()
	if err := tr.EnsureNamespace(ctx, "theirs"); err == nil || !strings.Contains(err.Error(), "somebody else's") {
		t.Errorf("a foreign namespace was taken: %v", err)
	}
	if err := tr.RemoveNamespace(ctx, "theirs"); err != nil {
		t.Error(err)
	}
	if err := tr.Client.Get(ctx, client.ObjectKey{Name: "theirs"}, &corev1.Namespace{}); err != nil {
		t.Errorf("a foreign namespace was removed: %v", err)
	}
	for range 2 {
		if err := tr.EnsureNamespace(ctx, "ours"); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := tr.RemoveNamespace(ctx, "ours"); err != nil {
			t.Error(err)
		}
	}
	if err := tr.Client.Get(ctx, client.ObjectKey{Name: "ours"}, &corev1.Namespace{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the trial's namespace is still there: %v", err)
	}
}

func TestComplaint(t *testing.T) {
	for in, want := range map[string]string{
		"tool: it broke\nexit status 1\n": "tool: it broke",
		"exit status 1":                   "exit status 1",
		"a\nb\n":                          "a\nb",
		"":                                "",
	} {
		if got := complaint([]byte(in)); got != want {
			t.Errorf("complaint(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestNumber(t *testing.T) {
	for in, want := range map[float64]string{13760: "13760", 0: "0", -1: "-1", 0.012041: "0.01204", 2.25912: "2.259"} {
		if got := number(in); got != want {
			t.Errorf("number(%v) = %q, want %q", in, got, want)
		}
	}
}
