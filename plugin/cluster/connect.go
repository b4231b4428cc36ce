package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// requestTimeout bounds every request to the API server but those that follow something.
const requestTimeout = 15 * time.Second

// Cluster is a connection to one API server.
type Cluster struct {
	Client client.Client
	// Core reads logs, which follow.
	Core kubernetes.Interface
	// Config makes further connections. It has no time-out.
	Config *rest.Config
	// Namespace that the user chose, or that of the context.
	Namespace string
}

// Connect finds the cluster by the rules of kubectl. It does not speak to it yet.
func Connect(loader clientcmd.ClientConfig) (*Cluster, error) {
	config, err := loader.ClientConfig()
	if err != nil {
		if clientcmd.IsEmptyConfig(err) {
			return nil, fmt.Errorf("no cluster is configured%s: set KUBECONFIG to a file that has one, or give --kubeconfig", looked(loader))
		}
		return nil, fmt.Errorf("find the cluster: %w: see kubectl config view", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("find the namespace: %w: give --namespace", err)
	}
	return New(config, namespace)
}

// looked says in which files a loader found nothing, and which of them are not there.
func looked(loader clientcmd.ClientConfig) string {
	access := loader.ConfigAccess()
	if access == nil {
		return ""
	}
	var files []string
	for _, file := range access.GetLoadingPrecedence() {
		if _, err := os.Stat(file); err != nil {
			file += " (" + reason(err) + ")"
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		return ""
	}
	return " in " + strings.Join(files, ", ")
}

// reason is why a file can't be read, without its name.
func reason(err error) string {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		err = failed.Err
	}
	return err.Error()
}

// New makes a Cluster of a configuration.
func New(config *rest.Config, namespace string) (*Cluster, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), "kubectl-sluice")
	config.QPS = -1 // the API server has priority and fairness
	config.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make the scheme: %w", err)
	}
	bounded := rest.CopyConfig(config)
	bounded.Timeout = requestTimeout
	api, err := client.New(bounded, client.Options{Scheme: scheme})
	if err != nil {
		return nil, explain(err, "connect to the cluster", "", config.Host)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return &Cluster{Client: api, Core: core, Config: config, Namespace: namespace}, nil
}
