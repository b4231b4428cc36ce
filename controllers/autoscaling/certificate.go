package autoscaling

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Lifetimes. A certificate is replaced when two thirds of its life are over, so every change has months to spread.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	servingLife   = 365 * 24 * time.Hour

	// clockSkew is how far the clocks of the API servers may be behind the operator's.
	clockSkew = time.Hour
)

// credentials are the serving certificate and the authority that signed it, all PEM.
type credentials struct {
	// AuthorityBundle holds the authority that signs now, then older ones that have not expired: a replica may still
	// serve a certificate of theirs.
	AuthorityBundle []byte
	// AuthorityKey belongs to the first authority; empty when the credentials come from elsewhere.
	AuthorityKey []byte
	Certificate  []byte
	Key          []byte
}

// check says why the certificate cannot serve these names at now; nil when it can.
func (c credentials) check(names []string, now time.Time) error {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.AuthorityBundle) {
		return errors.New("authority: no certificate in the bundle")
	}
	for _, name := range names {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{
			DNSName: name, Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err != nil {
			return fmt.Errorf("serving certificate for %s: %w", name, err)
		}
	}
	return nil
}

// renew gives credentials that serve the names for long from now: the old ones as they are when they do, and reason
// empty, else with a new serving certificate, and with a new authority when the old one does not last.
func renew(old credentials, names []string, now time.Time) (fresh credentials, reason string, err error) {
	authority, key, authorityErr := old.authority(now)
	if authorityErr == nil {
		servingErr := old.check(names, now)
		if servingErr == nil {
			servingErr = old.servingLasts(authority, now)
		}
		if servingErr == nil {
			return old, "", nil
		}
		fresh, err = issue(authority, key, old.AuthorityBundle, names, now)
		fresh.AuthorityKey = old.AuthorityKey
		return fresh, servingErr.Error(), err
	}

	authority, key, err = newAuthority(now)
	if err != nil {
		return credentials{}, "", err
	}
	bundle := appendUnexpired(encodeCertificate(authority.Raw), old.AuthorityBundle, now)
	fresh, err = issue(authority, key, bundle, names, now)
	if err != nil {
		return credentials{}, "", err
	}
	fresh.AuthorityKey, err = encodeKey(key)
	return fresh, authorityErr.Error(), err
}

// authority gives the signing authority; an error says why it cannot go on.
func (c credentials) authority(now time.Time) (*x509.Certificate, crypto.Signer, error) {
	pair, err := tls.X509KeyPair(c.AuthorityBundle, c.AuthorityKey)
	if err != nil {
		return nil, nil, fmt.Errorf("authority: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, nil, errors.New("authority: the first certificate is none")
	}
	if err := lasts(pair.Leaf, now); err != nil {
		return nil, nil, fmt.Errorf("authority: %w", err)
	}
	return pair.Leaf, signer, nil
}

// servingLasts says why the serving certificate should be replaced although it is valid.
func (c credentials) servingLasts(authority *x509.Certificate, now time.Time) error {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	if err := pair.Leaf.CheckSignatureFrom(authority); err != nil {
		return fmt.Errorf("serving certificate: not of the newest authority: %w", err)
	}
	if err := lasts(pair.Leaf, now); err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	return nil
}

// lasts fails outside the first two thirds of a certificate's life.
func lasts(c *x509.Certificate, now time.Time) error {
	if now.Before(c.NotBefore) {
		return fmt.Errorf("valid only from %s", c.NotBefore.UTC().Format(time.RFC3339))
	}
	if renewAt := c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3); !now.Before(renewAt) {
		return fmt.Errorf("due for renewal since %s, ends %s", renewAt.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

func newAuthority(now time.Time) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority's key: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "sluice-metrics-api-ca"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	certificate, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the authority: %w", err)
	}
	return certificate, key, nil
}

// issue makes a serving certificate for the names and leaves AuthorityKey to the caller.
func issue(authority *x509.Certificate, authorityKey crypto.Signer, bundle []byte, names []string, now time.Time) (credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return credentials{}, fmt.Errorf("make the serving key: %w", err)
	}
	notAfter := now.Add(servingLife)
	if authority.NotAfter.Before(notAfter) {
		notAfter = authority.NotAfter
	}
	certificate, err := sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "sluice-metrics-api"},
		DNSNames:              names,
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, authority, key.Public(), authorityKey)
	if err != nil {
		return credentials{}, fmt.Errorf("sign the serving certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return credentials{}, err
	}
	return credentials{AuthorityBundle: bundle, Certificate: encodeCertificate(certificate.Raw), Key: keyPEM}, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// appendUnexpired adds the authorities of a bundle that are still valid.
func appendUnexpired(to, bundle []byte, now time.Time) []byte {
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return to
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err == nil && c.IsCA && now.Before(c.NotAfter) && !bytes.Contains(to, encodeCertificate(c.Raw)) {
			to = append(to, encodeCertificate(c.Raw)...)
		}
	}
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
