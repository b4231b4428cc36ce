package node

import (
	"fmt"
	"strings"
)

// containerdConfig renders containerd's configuration. Everything that containerd writes goes into
// the cluster's folder, network namespaces included, so that its removal is complete.
func (c Config) containerdConfig() []byte {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	line("version = 4")
	line("root = %q", c.path("containerd", "root"))
	line("state = %q", c.path("containerd", "state"))
	line("imports = []")
	line("disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.image-verifier.v1.bindir']")
	line("")
	line("[plugins.'io.containerd.server.v1.grpc']")
	line("  address = %q", c.ContainerdSocket())
	line("[plugins.'io.containerd.server.v1.ttrpc']")
	line("  address = %q", c.ContainerdSocket()+".ttrpc")
	line("[plugins.'io.containerd.shim.v1.manager']")
	line("  socket_dir = %q", c.shimSockets())
	line("[plugins.'io.containerd.internal.v1.opt']")
	line("  path = %q", c.path("containerd", "opt"))
	line("[plugins.'io.containerd.cri.v1.images'.pinned_images]")
	line("  sandbox = %q", c.SandboxImage)
	line("")
	line("[plugins.'io.containerd.cri.v1.runtime']")
	line("  restrict_oom_score_adj = %t", c.RestrictOOMScore)
	line("  netns_mounts_under_state_dir = true")
	line("  [plugins.'io.containerd.cri.v1.runtime'.cni]")
	line("    bin_dirs = [%q]", c.CNIBin)
	line("    conf_dir = %q", c.path("config", "cni"))
	line("  [plugins.'io.containerd.cri.v1.runtime'.containerd]")
	line("    default_runtime_name = 'runc'")
	line("  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]")
	line("    runtime_type = 'io.containerd.runc.v2'")
	line("    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]")
	line("      BinaryName = %q", c.RuncPath)
	line("      Root = %q", c.path("containerd", "runc"))
	line("      SystemdCgroup = false")
	return []byte(out.String())
}

// shimSockets is the folder of the shims' sockets, whose names have 64 characters.
func (c Config) shimSockets() string { return c.path("s") }

// ContainerdArgs returns containerd's command line.
func (c Config) ContainerdArgs() []string {
	return []string{"--config=" + c.ContainerdFile(), "--log-level=warn"}
}
