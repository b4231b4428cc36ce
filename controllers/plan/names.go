package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// PoolName is the name of a pool's EnginePool, of its headless Service and of everything else that exists once a pool.
func PoolName(service, pool string) string { return service + "-" + pool }

// PodName is the name of an engine pod: at most 63 characters, as the rules of the API keep the parts short.
func PodName(poolName string, replica, nodeRank int32) string {
	return fmt.Sprintf("%s-%d-%d", poolName, replica, nodeRank)
}

// RouterName is the name of a service's router: Deployment, Service, ServiceAccount, Role and RoleBinding.
func RouterName(service string) string { return service + "-router" }

// SecretName is the name of the Secret by which the engines of a service prove that they belong together.
func SecretName(service string) string { return service + "-pd" }

// LabelValue makes a label value of any text: the text itself when it is one, else its allowed characters, shortened,
// with a hash of the whole, so that different texts stay different.
func LabelValue(text string) string {
	if len(validation.IsValidLabelValue(text)) == 0 {
		return text
	}
	const hashLength, maxPrefix = 8, validation.LabelValueMaxLength - 8 - 1
	sum := sha256.Sum256([]byte(text))
	hash := hex.EncodeToString(sum[:])[:hashLength]
	kept := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		default:
			return '-'
		}
	}, text)
	kept = strings.Trim(kept[:min(len(kept), maxPrefix)], "-_.")
	if kept == "" {
		return hash
	}
	return kept + "-" + hash
}
