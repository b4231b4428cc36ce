package trial

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// blockComment marks the rules of Block, so that they are found again and nobody else's are touched.
const blockComment = "sluice-trial"

// Block drops what one pod of the dev cluster sends to the engine's port of another, as a network plugin does that enforces
// NetworkPolicies: the dev cluster has none. unblock takes the rule back. A run that was killed leaves it, so Unblock comes
// before the first.
func (t *Trial) Block(ctx context.Context, from, to *corev1.Pod) (unblock func(context.Context) error, err error) {
	if _, foreign, err := target(ctx, t.Root); err != nil {
		return nil, err
	} else if foreign {
		return nil, errors.New("packets are dropped on the dev cluster's own host only; unset KUBECONFIG to use it")
	}
	if from.Status.PodIP == "" || to.Status.PodIP == "" {
		return nil, fmt.Errorf("pods %s and %s need addresses", from.Name, to.Name)
	}
	rule := []string{
		"FORWARD", "-s", from.Status.PodIP, "-d", to.Status.PodIP, "-p", "tcp", "--dport", fmt.Sprint(v1alpha1.DefaultEnginePort),
		"-m", "comment", "--comment", blockComment, "-j", "DROP",
	}
	if err := t.iptables(ctx, append([]string{"-I"}, rule...)...); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return t.iptables(ctx, append([]string{"-D"}, rule...)...) }, nil
}

// Unblock takes back every rule that Block made on this host.
func (t *Trial) Unblock(ctx context.Context) error {
	rules, err := output(ctx, t.Root, iptablesProgram, "-w", "-S", "FORWARD")
	if err != nil {
		return err
	}
	for line := range strings.Lines(rules) {
		rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A ")
		if !ok || !strings.Contains(rule, "--comment "+blockComment+" ") {
			continue
		}
		if err := t.iptables(ctx, append([]string{"-D"}, strings.Fields(rule)...)...); err != nil {
			return err
		}
	}
	return nil
}

// iptablesProgram is where Debian has it, which is not in everybody's PATH.
const iptablesProgram = "/usr/sbin/iptables"

func (t *Trial) iptables(ctx context.Context, args ...string) error {
	_, err := output(ctx, t.Root, iptablesProgram, append([]string{"-w"}, args...)...)
	return err
}
