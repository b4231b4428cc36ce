package footprint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sort"
	"strings"
)

// families are the two sets of iptables programs.
var families = []struct{ name, save, restore string }{
	{"ipv4", "iptables-save", "iptables-restore"},
	{"ipv6", "ip6tables-save", "ip6tables-restore"},
}

// chainPrefixes are the names of the chains that kubelet, kube-proxy and the CNI plugins make.
var chainPrefixes = []string{"KUBE-", "CNI-"}

// table is one table of iptables-save's output.
type table struct {
	name   string
	chains []string
	rules  []rule
}

// rule is one rule: "-A CHAIN SPEC".
type rule struct {
	chain string
	spec  string
}

// target returns the chain that the rule jumps or goes to, or "". Comments, which are quoted, may hold anything.
func (r rule) target() string {
	words := strings.Fields(unquoted(r.spec))
	for i := 0; i+1 < len(words); i++ {
		if words[i] == "-j" || words[i] == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// unquoted replaces the quoted parts of a rule by nothing. A backslash inside quotes takes the next byte along.
func unquoted(spec string) string {
	var out strings.Builder
	inside := false
	for i := 0; i < len(spec); i++ {
		switch {
		case spec[i] == '"':
			inside = !inside
		case inside && spec[i] == '\\':
			i++
		case !inside:
			out.WriteByte(spec[i])
		}
	}
	return out.String()
}

// parseTables reads iptables-save's output.
func parseTables(saved string) []table {
	var tables []table
	scanner := bufio.NewScanner(strings.NewReader(saved))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := scanner.Text()
		if name, ok := strings.CutPrefix(line, "*"); ok {
			tables = append(tables, table{name: name})
			continue
		}
		if len(tables) == 0 {
			continue
		}
		current := &tables[len(tables)-1]
		if declaration, ok := strings.CutPrefix(line, ":"); ok {
			chain, _, _ := strings.Cut(declaration, " ")
			current.chains = append(current.chains, chain)
		}
		if appended, ok := strings.CutPrefix(line, "-A "); ok {
			chain, spec, _ := strings.Cut(appended, " ")
			current.rules = append(current.rules, rule{chain: chain, spec: spec})
		}
	}
	return tables
}

// removalScript returns the input for "iptables-restore --noflush" that removes all chains of the cluster that
// are not among before, with the rules that lead to them, and touches nothing else. It is "" if there is none.
func removalScript(family string, tables []table, before []string) string {
	var script strings.Builder
	for _, table := range tables {
		var ours []string
		mine := map[string]bool{}
		for _, chain := range table.chains {
			if ownChain(chain) && !contains(before, chainKey(family, table.name, chain)) {
				ours, mine[chain] = append(ours, chain), true
			}
		}
		if len(ours) == 0 {
			continue
		}
		fmt.Fprintf(&script, "*%s\n", table.name)
		// Declaring a chain empties it, so that no chain refers to another when they are deleted.
		for _, chain := range ours {
			fmt.Fprintf(&script, ":%s - [0:0]\n", chain)
		}
		for _, rule := range table.rules {
			if mine[rule.target()] && !mine[rule.chain] {
				fmt.Fprintf(&script, "-D %s %s\n", rule.chain, rule.spec)
			}
		}
		for _, chain := range ours {
			fmt.Fprintf(&script, "-X %s\n", chain)
		}
		script.WriteString("COMMIT\n")
	}
	return script.String()
}

// addedChains returns the cluster's chains among now that are not among before.
func addedChains(before, now []string) []string {
	var added []string
	for _, key := range now {
		if !contains(before, key) {
			added = append(added, key)
		}
	}
	return added
}

// listChains returns every chain on the host that a cluster may have made, as "family/table/chain", sorted.
func listChains(ctx context.Context) ([]string, error) {
	found := []string{}
	for _, family := range families {
		tables, err := readTables(ctx, family.save)
		if err != nil {
			return nil, err
		}
		for _, table := range tables {
			for _, chain := range table.chains {
				if ownChain(chain) {
					found = append(found, chainKey(family.name, table.name, chain))
				}
			}
		}
	}
	sort.Strings(found)
	return found, nil
}

// removeChains removes the cluster's chains that are not among before.
func removeChains(ctx context.Context, before []string) error {
	var errs []error
	for _, family := range families {
		tables, err := readTables(ctx, family.save)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		script := removalScript(family.name, tables, before)
		if script == "" {
			continue
		}
		cmd := exec.CommandContext(ctx, family.restore, "--noflush", "--wait=10")
		cmd.Stdin = strings.NewReader(script)
		if output, err := cmd.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove iptables chains: %w: %s", err, strings.TrimSpace(string(output))))
		}
	}
	return errors.Join(errs...)
}

// readTables runs iptables-save. A host without iptables has no chains.
func readTables(ctx context.Context, save string) ([]table, error) {
	path, err := exec.LookPath(save)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list iptables chains: %w", err)
	}
	output, err := exec.CommandContext(ctx, path).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return nil, fmt.Errorf("list iptables chains: %s: %w: %s", save, err, strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, fmt.Errorf("list iptables chains: %w", err)
	}
	return parseTables(string(output)), nil
}

func ownChain(chain string) (own bool) {
	for _, prefix := range chainPrefixes {
		if strings.HasPrefix(chain, prefix) {
			return true
		}
	}
	return false
}

func chainKey(family, table, chain string) string { return family + "/" + table + "/" + chain }

// contains searches a sorted list.
func contains(sorted []string, key string) (found bool) {
	at := sort.SearchStrings(sorted, key)
	return at < len(sorted) && sorted[at] == key
}
