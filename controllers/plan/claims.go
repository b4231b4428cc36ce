package plan

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// Claim is what a claim of dynamic resource allocation was given, in the order of its results.
type Claim []ClaimedDevice

// ClaimedDevice is one device of a claim.
type ClaimedDevice struct {
	// Request of the claim that asked for it, "REQUEST" or "REQUEST/ALTERNATIVE".
	Request string
	// Driver that manages it, such as gpu.nvidia.com.
	Driver string
}

// NewClaim reads what a claim was given; false while that is not decided. Devices that are only looked at (adminAccess) are not
// held.
func NewClaim(claim *resourcev1.ResourceClaim) (c Claim, allocated bool) {
	if claim.Status.Allocation == nil {
		return nil, false
	}
	c = Claim{}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.AdminAccess == nil || !*result.AdminAccess {
			c = append(c, ClaimedDevice{Request: result.Request, Driver: result.Driver})
		}
	}
	return c, true
}

// claimUse is a claim that the engine of a pod uses.
type claimUse struct {
	object  string // name of the ResourceClaim; empty while it was not made from its template
	request string // the part that is used; empty: all
}

// uses lists the claims of a pod's engine, in the order of its container.
func uses(pod *corev1.Pod) []claimUse {
	objects := map[string]string{}
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			objects[claim.Name] = *claim.ResourceClaimName
		}
	}
	for _, made := range pod.Status.ResourceClaimStatuses {
		if made.ResourceClaimName != nil {
			objects[made.Name] = *made.ResourceClaimName
		}
	}
	var list []claimUse
	for _, container := range pod.Spec.Containers {
		if container.Name != EngineContainer {
			continue
		}
		for _, claim := range container.Resources.Claims {
			list = append(list, claimUse{objects[claim.Name], claim.Request})
		}
	}
	return list
}

// ClaimNames are the ResourceClaims that the engine of a pod uses, each once, as far as they exist.
func ClaimNames(pod *corev1.Pod) []string {
	var names []string
	for _, use := range uses(pod) {
		if use.object != "" && !slices.Contains(names, use.object) {
			names = append(names, use.object)
		}
	}
	return names
}

// claimed counts the devices that the engine of a pod got by claims, by driver. known is false when one of its claims is not
// among those that are given.
func claimed(pod *corev1.Pod, claims map[string]Claim) (byDriver map[string]int64, known bool) {
	byDriver = map[string]int64{}
	counted := map[claimUse]bool{}
	list := uses(pod)
	slices.SortStableFunc(list, func(a, b claimUse) int { return strings.Compare(a.request, b.request) }) // the whole before its parts
	for _, use := range list {
		claim, there := claims[use.object]
		if !there {
			return nil, false
		}
		if counted[use] || counted[claimUse{object: use.object}] {
			continue // named twice, or a part of what was counted whole
		}
		counted[use] = true
		for _, device := range claim {
			if use.request == "" || device.Request == use.request || strings.HasPrefix(device.Request, use.request+"/") {
				byDriver[device.Driver]++
			}
		}
	}
	return byDriver, true
}
