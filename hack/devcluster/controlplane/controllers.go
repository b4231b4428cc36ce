package controlplane

// ControllerManagerArgs returns kube-controller-manager's command line.
//
// The autoscaler looks every 5 s, scales in after 15 s instead of 5 min and believes a pod's metrics soon after
// it started, so that a person can watch it work.
func (c Config) ControllerManagerArgs() []string {
	kubeconfig := c.KubeconfigPath(UserControllerManager)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--profiling=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.CertPath("service-account.key"),
		"--root-ca-file=" + c.CertPath(FileCA),
		"--cluster-signing-cert-file=" + c.CertPath(FileCA),
		"--cluster-signing-key-file=" + c.CertPath("ca.key"),
		"--allocate-node-cidrs=false",
		"--flex-volume-plugin-dir=" + c.Path("volume-plugins"),
		"--horizontal-pod-autoscaler-sync-period=5s",
		"--horizontal-pod-autoscaler-downscale-stabilization=15s",
		"--horizontal-pod-autoscaler-initial-readiness-delay=5s",
		"--horizontal-pod-autoscaler-cpu-initialization-period=10s",
	}
}

// SchedulerArgs returns kube-scheduler's command line.
func (c Config) SchedulerArgs() []string {
	kubeconfig := c.KubeconfigPath(UserScheduler)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--profiling=false",
	}
}
