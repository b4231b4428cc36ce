package autoscaling

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"
)

var testNames = []string{"metrics.sluice-system.svc", "metrics.sluice-system.svc.cluster.local", "metrics.sluice-system"}

// epoch is when the tests begin.
var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

func mustRenew(t *testing.T, old credentials, names []string, now time.Time) (credentials, string) {
	t.Helper()
	c, reason, err := renew(old, names, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.check(names, now); err != nil {
		t.Fatalf("renewed credentials do not serve: %v", err)
	}
	return c, reason
}

func leaf(t *testing.T, c credentials) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func authorities(bundle []byte) int {
	n := 0
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return n
		}
		n++
	}
}

func TestRenew(t *testing.T) {
	first, reason := mustRenew(t, credentials{}, testNames, epoch)
	if reason == "" {
		t.Error("making the first credentials has no reason")
	}
	for _, tc := range []struct {
		name        string
		reason      string
		change      func(*credentials)
		names       []string
		after       time.Duration
		why         string // part of the reason given; empty: nothing is renewed
		authority   bool   // a new authority is made
		authorities int
	}{
		{name: "Fresh", reason: "nothing to do", authorities: 1},
		{name: "SoonToEnd", reason: "kept for two thirds of its life", after: 240 * day, authorities: 1},
		{name: "DueForRenewal", reason: "renewed long before the end", after: 250 * day, why: "due for renewal", authorities: 1},
		{name: "Ended", reason: "the operator was off for long", after: 400 * day, why: "expired", authorities: 1},
		{name: "OtherNames", reason: "the Service was renamed", names: []string{"other.sluice-system.svc"}, why: "other.sluice-system.svc", authorities: 1},
		{name: "AuthorityDue", reason: "the old authority stays trusted until it ends", after: 7 * 365 * day, why: "authority: due for renewal", authority: true, authorities: 2},
		{name: "AuthorityEnded", reason: "an ended authority is of no use", after: 11 * 365 * day, why: "authority: due for renewal", authority: true, authorities: 1},
		{name: "NoAuthorityKey", reason: "somebody removed the key", change: func(c *credentials) { c.AuthorityKey = nil }, why: "authority:", authority: true, authorities: 2},
		{name: "Garbage", reason: "somebody wrote into the Secret", change: func(c *credentials) { c.Certificate = []byte("x") }, why: "serving certificate:", authorities: 1},
		{name: "OtherKey", reason: "certificate and key do not belong together", change: func(c *credentials) { c.Key = c.AuthorityKey }, why: "serving certificate:", authorities: 1},
		{name: "ClockWentBack", reason: "not valid yet", after: -2 * time.Hour, why: "authority: valid only from", authority: true, authorities: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old, names, now := first, tc.names, epoch.Add(tc.after)
			if names == nil {
				names = testNames
			}
			if tc.change != nil {
				tc.change(&old)
			}
			got, why := mustRenew(t, old, names, now)
			if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
				t.Fatalf("reason %q, want one with %q: %s", why, tc.why, tc.reason)
			}
			if renewed := !bytes.Equal(got.AuthorityKey, old.AuthorityKey); renewed != tc.authority {
				t.Errorf("new authority: %t, want %t: %s", renewed, tc.authority, tc.reason)
			}
			if n := authorities(got.AuthorityBundle); n != tc.authorities {
				t.Errorf("%d authorities in the bundle, want %d: %s", n, tc.authorities, tc.reason)
			}
			if why == "" {
				return
			}
			if leaf(t, got).SerialNumber.Cmp(leaf(t, first).SerialNumber) == 0 {
				t.Error("the serving certificate is the old one")
			}
			if again, why := mustRenew(t, got, names, now); why != "" || !bytes.Equal(again.Certificate, got.Certificate) {
				t.Errorf("renewed at once again: %s", why)
			}
		})
	}
}

// TestRolloverTrust checks that a replica that still serves the old authority's certificate is trusted by the new bundle.
func TestRolloverTrust(t *testing.T) {
	now := epoch
	c, _ := mustRenew(t, credentials{}, testNames, now)
	for range 12 { // years in which the operator looks once a month
		for range 12 {
			now = now.Add(30 * day)
			old := c
			c, _ = mustRenew(t, old, testNames, now)
			held := credentials{AuthorityBundle: c.AuthorityBundle, Certificate: old.Certificate, Key: old.Key}
			if err := held.check(testNames, now); err != nil {
				t.Fatalf("at %s a replica with the previous certificate is not trusted: %v", now, err)
			}
		}
	}
}

func TestCheckRefusesClientCertificates(t *testing.T) {
	c, _ := mustRenew(t, credentials{}, testNames, epoch)
	l := leaf(t, c)
	if l.IsCA || len(l.ExtKeyUsage) != 1 || l.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth {
		t.Errorf("the serving certificate may do more than serve: CA %t, usages %v", l.IsCA, l.ExtKeyUsage)
	}
}
