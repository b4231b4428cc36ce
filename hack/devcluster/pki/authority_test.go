package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestIssue(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	authority, err := NewAuthority("authority", now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority("other", now)
	if err != nil {
		t.Fatal(err)
	}
	server := Subject{CommonName: "server", DNSNames: []string{"server.example"}, IPs: []net.IP{net.IPv4(10, 0, 0, 1)}}
	client := Subject{CommonName: "client", Organizations: []string{"group"}, Client: true}
	both := Subject{CommonName: "both", DNSNames: []string{"both.example"}, Client: true}
	tests := []struct {
		name, reason string
		subject      Subject
		roots        *Authority
		options      x509.VerifyOptions
		accepted     bool
	}{
		{"server by name", "a server certificate proves its DNS name", server, authority,
			x509.VerifyOptions{DNSName: "server.example", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, true},
		{"server by address", "and its address", server, authority,
			x509.VerifyOptions{DNSName: "10.0.0.1", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, true},
		{"server by another name", "but no other name", server, authority,
			x509.VerifyOptions{DNSName: "other.example", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, false},
		{"server as client", "a server must not be able to log in", server, authority,
			x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, false},
		{"client", "a client can", client, authority,
			x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true},
		{"client as server", "but is no server", client, authority,
			x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, false},
		{"both", "one certificate may have both uses", both, authority,
			x509.VerifyOptions{DNSName: "both.example", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true},
		{"other authority", "another authority does not vouch for it", client, other,
			x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, false},
		{"expired", "certificates end", client, authority,
			x509.VerifyOptions{CurrentTime: now.Add(lifetime + time.Hour), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, false},
		{"clock behind", "a reader's clock may be a little behind", client, authority,
			x509.VerifyOptions{CurrentTime: now.Add(-time.Minute), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pair, err := authority.Issue(test.subject, now)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM); err != nil {
				t.Fatalf("key does not fit certificate: %v", err)
			}
			cert := parse(t, pair)
			got := Subject{CommonName: cert.Subject.CommonName, Organizations: cert.Subject.Organization, DNSNames: cert.DNSNames}
			want := Subject{CommonName: test.subject.CommonName, Organizations: test.subject.Organizations, DNSNames: test.subject.DNSNames}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("subject (-want +got):\n%s", diff)
			}
			options := test.options
			options.Roots = x509.NewCertPool()
			options.Roots.AddCert(parse(t, test.roots.Pair))
			if options.CurrentTime.IsZero() {
				options.CurrentTime = now
			}
			if _, err := cert.Verify(options); (err == nil) != test.accepted {
				t.Errorf("verification gives %v, want accepted %t: %s", err, test.accepted, test.reason)
			}
		})
	}
}

func TestParseAuthority(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	first, err := NewAuthority("first", now)
	if err != nil {
		t.Fatal(err)
	}
	second, err := NewAuthority("second", now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := first.Issue(Subject{CommonName: "leaf", Client: true}, now)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, reason string
		pair         Pair
		accepted     bool
	}{
		{"own pair", "what was written can be read", first.Pair, true},
		{"another's key", "signatures would be worthless", Pair{first.CertPEM, second.KeyPEM}, false},
		{"leaf", "a leaf cannot sign", leaf, false},
		{"no PEM", "a truncated file is refused, not dereferenced", Pair{[]byte("x"), nil}, false},
		{"swapped", "a certificate is no key", Pair{first.KeyPEM, first.CertPEM}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := ParseAuthority(test.pair); (err == nil) != test.accepted {
				t.Errorf("got error %v, want accepted %t: %s", err, test.accepted, test.reason)
			}
		})
	}
}

func parse(t *testing.T, pair Pair) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(pair.CertPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
