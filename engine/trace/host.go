package trace

import (
	"net"
	"os"
	"strings"

	"github.com/google/uuid"
)

// unknownHost is the id of a machine that has none.
const unknownHost = "unknown"

// hostID names this machine: the id that its installation gave it, else one made of the hardware address of its first
// network card, else unknownHost.
func hostID(read func(path string) ([]byte, error), cards func() ([]net.Interface, error)) string {
	if id, err := read("/etc/machine-id"); err == nil {
		if id := strings.TrimSpace(string(id)); id != "" {
			return id
		}
	}
	list, err := cards()
	if err != nil {
		return unknownHost
	}
	for _, card := range list {
		if card.Flags&net.FlagLoopback == 0 && len(card.HardwareAddr) > 0 {
			return uuid.NewSHA1(uuid.NameSpaceDNS, []byte(card.HardwareAddr.String())).String()
		}
	}
	return unknownHost
}

// thisHost is the id of the machine that this runs on.
func thisHost() string { return hostID(os.ReadFile, net.Interfaces) }
