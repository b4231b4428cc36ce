package autoscaling

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Keys of the Secret beside tls.crt and tls.key.
const (
	secretAuthorityBundle = "ca.crt"
	secretAuthorityKey    = "ca.key"
)

// errOutpaced says that another replica wrote the Secret first; the next look finds its work.
var errOutpaced = errors.New("another replica wrote the Secret at the same time")

// vault keeps the server's credentials in a Secret that all replicas of the operator share.
//
// An empty Secret, or one that carries the component label, is the operator's: it is filled and renewed. Any other is
// somebody else's, for example a certificate manager's: it is used as it is, and never written.
type vault struct {
	secrets   corev1client.SecretInterface
	namespace string
	name      string
	dnsNames  []string
	clock     clock.PassiveClock
}

// refresh reads the Secret, and makes or renews its contents where they do not last. It fails with errOutpaced when
// another replica was faster; nothing is lost then. reason says why something was written; it is empty when nothing was.
func (v *vault) refresh(ctx context.Context) (current credentials, reason string, err error) {
	secret, err := v.secrets.Get(ctx, v.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return v.create(ctx)
	case err != nil:
		return credentials{}, "", fmt.Errorf("read Secret %s/%s: %w", v.namespace, v.name, err)
	}
	old := fromSecret(secret)
	now := v.clock.Now()
	if !v.owns(secret) {
		if err := old.check(v.dnsNames, now); err != nil {
			return credentials{}, "", fmt.Errorf("use Secret %s/%s, which lacks the label %s=%s and so is not renewed: %w",
				v.namespace, v.name, v1alpha1.LabelComponent, v1alpha1.ComponentMetricsAPI, err)
		}
		return old, "", nil
	}
	fresh, reason, err := renew(old, v.dnsNames, now)
	if err != nil || reason == "" {
		return fresh, "", err
	}
	update := secret.DeepCopy()
	v.fill(update, fresh)
	if _, err := v.secrets.Update(ctx, update, metav1.UpdateOptions{}); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return credentials{}, "", errOutpaced
		}
		return credentials{}, "", fmt.Errorf("update Secret %s/%s: %w", v.namespace, v.name, err)
	}
	return fresh, reason, nil
}

func (v *vault) create(ctx context.Context) (credentials, string, error) {
	fresh, _, err := renew(credentials{}, v.dnsNames, v.clock.Now())
	if err != nil {
		return credentials{}, "", err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: v.name, Namespace: v.namespace},
		Type:       corev1.SecretTypeTLS,
	}
	v.fill(secret, fresh)
	if _, err := v.secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return credentials{}, "", errOutpaced
		}
		return credentials{}, "", fmt.Errorf("create Secret %s/%s: %w", v.namespace, v.name, err)
	}
	return fresh, "the Secret did not exist", nil
}

// owns says whether the Secret is the operator's to write.
func (v *vault) owns(secret *corev1.Secret) bool {
	if secret.Labels[v1alpha1.LabelComponent] == v1alpha1.ComponentMetricsAPI {
		return true
	}
	for _, value := range secret.Data {
		if len(value) > 0 {
			return false
		}
	}
	return true
}

func (v *vault) fill(secret *corev1.Secret, c credentials) {
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	secret.Labels[v1alpha1.LabelComponent] = v1alpha1.ComponentMetricsAPI
	secret.Data = map[string][]byte{
		corev1.TLSCertKey:       c.Certificate,
		corev1.TLSPrivateKeyKey: c.Key,
		secretAuthorityBundle:   c.AuthorityBundle,
		secretAuthorityKey:      c.AuthorityKey,
	}
}

func fromSecret(secret *corev1.Secret) credentials {
	return credentials{
		AuthorityBundle: secret.Data[secretAuthorityBundle],
		AuthorityKey:    secret.Data[secretAuthorityKey],
		Certificate:     secret.Data[corev1.TLSCertKey],
		Key:             secret.Data[corev1.TLSPrivateKeyKey],
	}
}

// serving hands the newest certificate to the TLS server, which changes to it without a restart.
type serving struct {
	mu        sync.Mutex
	current   credentials
	listeners []dynamiccertificates.Listener
}

var _ dynamiccertificates.CertKeyContentProvider = (*serving)(nil)

// Name identifies the provider in logs.
func (s *serving) Name() string { return "metrics-api" }

// CurrentCertKeyContent gives the certificate and its key, PEM.
func (s *serving) CurrentCertKeyContent() (certificate, key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.Certificate, s.current.Key
}

// credentials gives what is served now.
func (s *serving) credentials() credentials {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// AddListener registers who hears of a new certificate.
func (s *serving) AddListener(l dynamiccertificates.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
}

// set makes c current and tells the listeners when the certificate changed.
func (s *serving) set(c credentials) {
	s.mu.Lock()
	changed := !bytes.Equal(s.current.Certificate, c.Certificate) || !bytes.Equal(s.current.Key, c.Key)
	s.current = c
	listeners := slices.Clone(s.listeners)
	s.mu.Unlock()
	if !changed {
		return
	}
	for _, l := range listeners {
		l.Enqueue()
	}
}
