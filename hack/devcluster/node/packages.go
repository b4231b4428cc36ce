package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// requirement is a program that a node needs from the host's distribution.
type requirement struct {
	// program is searched in the given folders, or in PATH if there is none.
	program string
	folders []string
	// debian is the package that has it.
	debian string
}

func requirements() []requirement {
	cni := []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}
	return []requirement{
		{program: "runc", debian: "runc"},
		{program: "iptables", debian: "iptables"},
		{program: "conntrack", debian: "conntrack"},
		{program: "ip", debian: "iproute2"},
		{program: "nsenter", debian: "util-linux"},
		{program: "ptp", folders: cni, debian: "containernetworking-plugins"},
		{program: "host-local", folders: cni, debian: "containernetworking-plugins"},
		{program: "portmap", folders: cni, debian: "containernetworking-plugins"},
		{program: "firewall", folders: cni, debian: "containernetworking-plugins"},
	}
}

// find returns the program's path, or "" if the host lacks it.
func (r requirement) find() string {
	if r.folders == nil {
		path, err := exec.LookPath(r.program)
		if err != nil {
			return ""
		}
		return path
	}
	for _, folder := range r.folders {
		path := filepath.Join(folder, r.program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// HostPrograms are the host's programs that a node's configuration names.
type HostPrograms struct {
	// Runc is the OCI runtime.
	Runc string
	// CNIBin is the folder of the CNI plugins.
	CNIBin string
}

// EnsureHostPrograms finds the programs that a node needs and installs the Debian packages of those that are
// missing. Where there is no apt-get, the error names all of them.
func EnsureHostPrograms(ctx context.Context, log io.Writer) (HostPrograms, error) {
	programs, packages := missing(requirements())
	if len(packages) > 0 {
		if _, err := exec.LookPath("apt-get"); err != nil {
			return HostPrograms{}, fmt.Errorf("this host lacks %s: install them (Debian's packages are %s)",
				strings.Join(programs, ", "), strings.Join(packages, " "))
		}
		fmt.Fprintf(log, "installing Debian packages: %s\n", strings.Join(packages, " "))
		if err := install(ctx, packages); err != nil {
			return HostPrograms{}, err
		}
		if programs, _ = missing(requirements()); len(programs) > 0 {
			return HostPrograms{}, fmt.Errorf("this host still lacks %s after installing %s", strings.Join(programs, ", "), strings.Join(packages, " "))
		}
	}
	var found HostPrograms
	for _, requirement := range requirements() {
		switch requirement.program {
		case "runc":
			found.Runc = requirement.find()
		case "ptp":
			found.CNIBin = filepath.Dir(requirement.find())
		}
	}
	return found, nil
}

// missing returns the programs that the host lacks and the packages that have them, each once.
func missing(requirements []requirement) (programs, packages []string) {
	seen := map[string]bool{}
	for _, requirement := range requirements {
		if requirement.find() != "" {
			continue
		}
		programs = append(programs, requirement.program)
		if !seen[requirement.debian] {
			seen[requirement.debian] = true
			packages = append(packages, requirement.debian)
		}
	}
	return programs, packages
}

// install installs Debian packages, after refreshing the index if the first try fails.
func install(ctx context.Context, packages []string) error {
	first := aptGet(ctx, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...)
	if first == nil {
		return nil
	}
	if err := aptGet(ctx, "update"); err != nil {
		return errors.Join(first, err)
	}
	return aptGet(ctx, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...)
}

func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet=2"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}
