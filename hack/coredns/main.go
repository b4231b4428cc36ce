// Command coredns is CoreDNS with the plugins that the dev cluster's name server needs and no others: a build
// with all of them takes several times as long.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	// The order in which a query passes through the plugins.
	dnsserver.Directives = []string{"bind", "errors", "kubernetes", "forward"}
	coremain.Run()
}
