package discovery

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Role is what an engine does: the value of the engine-type label.
type Role string

// The roles that a router can serve.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Unified Role = "unified"
)

// State is whether an engine may get requests.
type State string

const (
	// StateReady means: it may.
	StateReady State = "ready"
	// StateNotReady means: it is starting, its health check fails, or it has no address yet.
	StateNotReady State = "not_ready"
	// StateDraining means: it finishes what it has and is about to go.
	StateDraining State = "draining"
)

// Engine is one engine replica as discovery sees it. Plain data; equal values mean that nothing changed.
type Engine struct {
	ID            string // unique over time: a pod that replaces another one of the same name has another ID
	Name          string // for people: the pod's name or the URL
	Role          Role
	URL           string // base URL of the HTTP API, without a slash at the end
	BootstrapHost string // prefill: where decode engines find its bootstrap server
	BootstrapPort int    // prefill
	State         State
	Reason        string // why it is not ready
}

// Source finds engines.
type Source interface {
	// Run reports the whole list of engines, ordered by name, whenever it changes, the first time as soon as it is known,
	// until ctx ends. update is never called concurrently. Run fails only when it cannot go on.
	Run(ctx context.Context, update func([]Engine)) error
}

// ParseStatic reads the value of a --prefill, --decode or --worker flag: http://host:port, for prefill followed by a
// comma and the port of the bootstrap server.
func ParseStatic(role Role, value string, defaultBootstrapPort int) (Engine, error) {
	bad := func(format string, args ...any) (Engine, error) {
		return Engine{}, fmt.Errorf("engine %q: %s", value, fmt.Sprintf(format, args...))
	}
	base, portText, hasPort := strings.Cut(value, ",")
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" || u.Host == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return bad("want http://host:port")
	}
	if port := u.Port(); port == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "80")
	} else if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return bad("port %s: want 1 to 65535", port)
	}
	e := Engine{Role: role, URL: "http://" + u.Host, State: StateNotReady, Reason: "not checked yet"}
	e.ID, e.Name = e.URL, e.URL
	if role != Prefill {
		if hasPort {
			return bad("only a prefill engine has a bootstrap port: leave %q out", ","+portText)
		}
		return e, nil
	}
	e.BootstrapHost, e.BootstrapPort = u.Hostname(), defaultBootstrapPort
	if hasPort {
		if e.BootstrapPort, err = strconv.Atoi(portText); err != nil || e.BootstrapPort < 1 || e.BootstrapPort > 65535 {
			return bad("bootstrap port %q: want 1 to 65535", portText)
		}
	}
	return e, nil
}
