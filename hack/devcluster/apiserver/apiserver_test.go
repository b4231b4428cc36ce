package apiserver_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-dev/sluice/hack/devcluster/apiserver"
)

// TestServersAreIndependent runs two servers at once and checks that they share nothing and leave nothing.
func TestServersAreIndependent(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx := t.Context()
	first, second := start(t), start(t)
	if first.Config.Host == second.Config.Host {
		t.Fatalf("both servers listen on %s", first.Config.Host)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "only-in-first"}}
	if _, err := client(t, first).CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create in the first server: %v", err)
	}
	found, err := client(t, second).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatalf("list in the second server: %v", err)
	}
	for _, item := range found.Items {
		if item.Name == object.Name {
			t.Errorf("object of the first server appears in the second")
		}
	}
	for name, server := range map[string]*apiserver.Server{"first": first, "second": second} {
		if err := server.Stop(); err != nil {
			t.Errorf("stop the %s server: %v", name, err)
		}
		if err := server.Stop(); err != nil {
			t.Errorf("stop the %s server again: %v", name, err)
		}
		if _, err := os.Stat(server.KubeconfigPath); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the %s server left %s: %v", name, server.KubeconfigPath, err)
		}
	}
}

// TestStartReportsRefusedFlag checks that a server that cannot start says why, without waiting for a timeout.
func TestStartReportsRefusedFlag(t *testing.T) {
	_, err := apiserver.Start(t.Context(), apiserver.Options{ExtraArgs: []string{"--no-such-flag"}})
	if err == nil {
		t.Fatal("start succeeded with a flag that does not exist")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start waited for its timeout: %v", err)
	}
	if !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("error does not show the program's own words: %v", err)
	}
}

func start(t *testing.T) *apiserver.Server {
	t.Helper()
	server, err := apiserver.Start(t.Context(), apiserver.Options{})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	return server
}

func client(t *testing.T, server *apiserver.Server) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	return client
}
