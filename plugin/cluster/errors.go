package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// ErrNoService says that a service does not exist.
var ErrNoService = errors.New("no such InferenceService")

// ErrChanged says that an object was written by somebody else since it was read.
var ErrChanged = errors.New("it was changed meanwhile: try again")

// explain gives an error of the API server as one line with a remedy. what was attempted, such as "list InferenceServices"; where,
// such as " in namespace team-a" or empty; host of the API server.
func explain(err error, what, where, host string) error {
	var network net.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%s: the cluster has no InferenceService resource (inference.sluice.dev/v1alpha1): install the chart, helm install sluice charts/sluice", what)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: forbidden: %s: ask for the right%s, or choose another --namespace or --context", what, reasonOf(err), where)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the cluster does not accept these credentials: log in anew, or choose another --context", what)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%s: %w", what, ErrChanged)
	case apierrors.IsInvalid(err):
		return fmt.Errorf("%s: refused: %s", what, reasonOf(err))
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return fmt.Errorf("%s: the API server %s does not answer within %s: check the network, or choose another --context", what, host, requestTimeout)
	case errors.As(err, &network), strings.Contains(err.Error(), "connection refused"):
		return fmt.Errorf("%s: the API server %s is not reachable: %s: check the network, or choose another --context", what, host, oneLine(err.Error()))
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// reasonOf gives what the API server said, on one line.
func reasonOf(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Message != "" {
		return oneLine(status.Status().Message)
	}
	return oneLine(err.Error())
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
