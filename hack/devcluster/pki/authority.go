package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// lifetime is how long certificates are valid. A development cluster is recreated long before.
const lifetime = 5 * 365 * 24 * time.Hour

// backdate covers clocks that differ a little between the maker and the reader of a certificate.
const backdate = 5 * time.Minute

// Pair is a certificate and its private key, both PEM.
type Pair struct {
	CertPEM []byte
	KeyPEM  []byte
}

// Authority signs certificates.
type Authority struct {
	// Pair is the authority's own certificate and key.
	Pair

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Subject says for whom and for what use a certificate is issued.
type Subject struct {
	CommonName    string
	Organizations []string
	// DNSNames and IPs are what a server answers to. A subject with any of them gets server use.
	DNSNames []string
	IPs      []net.IP
	// Client gives client use.
	Client bool
}

// NewAuthority makes a self-signed authority that is valid from now on.
func NewAuthority(commonName string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of authority %s: %w", commonName, err)
	}
	template, err := template(Subject{CommonName: commonName}, now)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %s: %w", commonName, err)
	}
	pair, err := encode(der, key)
	if err != nil {
		return nil, err
	}
	return ParseAuthority(pair)
}

// ParseAuthority reads an authority back from its PEM pair.
func ParseAuthority(pair Pair) (*Authority, error) {
	certBlock, _ := pem.Decode(pair.CertPEM)
	keyBlock, _ := pem.Decode(pair.KeyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, errors.New("parse authority: certificate or key is not PEM")
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse authority's certificate: %w", err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("parse authority: certificate of %s may not sign others", cert.Subject.CommonName)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse authority's key: %w", err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("parse authority: key does not belong to certificate of %s", cert.Subject.CommonName)
	}
	return &Authority{Pair: pair, cert: cert, key: key}, nil
}

// Issue makes a key and a certificate for the subject, valid from now on.
func (a *Authority) Issue(subject Subject, now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate the key of %s: %w", subject.CommonName, err)
	}
	template, err := template(subject, now)
	if err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %s: %w", subject.CommonName, err)
	}
	return encode(der, key)
}

// NewSigningKey makes a key pair for signing tokens: the private key and the public key, both PEM.
func NewSigningKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a token-signing key: %w", err)
	}
	private, err = encodeKey(key)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode a token-signing key: %w", err)
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

func template(subject Subject, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number for %s: %w", subject.CommonName, err)
	}
	cert := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: subject.CommonName, Organization: subject.Organizations},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		DNSNames:              subject.DNSNames,
		IPAddresses:           subject.IPs,
	}
	if len(subject.DNSNames)+len(subject.IPs) > 0 {
		cert.ExtKeyUsage = append(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if subject.Client {
		cert.ExtKeyUsage = append(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	return cert, nil
}

func encode(der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), KeyPEM: keyPEM}, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
