package parallel

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// The handshake of a connection, one frame of internal/peer each.
//
//	dialer    hello    JSON: who calls whom, for what
//	listener  welcome  JSON: its nonce, or why it refuses
//	dialer    HMAC("dial", hello, welcome)
//	listener  HMAC("listen", hello, welcome), or nothing when the dialer's is wrong
const (
	protocolVersion = 1
	label           = "sluice ranks 1 " // of proofs; the side follows
)

const (
	handshakeTimeout = 5 * time.Second
	maxHelloBytes    = 1 << 10
	maxTableBytes    = 1<<16 - 1
)

// hello is what a dialer wants.
type hello struct {
	Version   int    `json:"version"`
	Nonce     string `json:"nonce"`
	HasSecret bool   `json:"has_secret"`

	From    int     `json:"from"` // rank
	To      int     `json:"to"`   // rank
	Channel channel `json:"channel"`
	// Register is set on the connection that asks rank 0 for the table; Channel is 0 then.
	Register bool `json:"register,omitempty"`
	// World is the name that rank 0 gave to this gathering; empty on one host and on Register.
	World string `json:"world,omitempty"`

	TPSize int `json:"tp_size"`
	PPSize int `json:"pp_size"`
	Nodes  int `json:"nodes"`
}

type welcome struct {
	Nonce     string `json:"nonce"`
	HasSecret bool   `json:"has_secret"`
	Refusal   string `json:"refusal,omitempty"`
}

// registration is what a rank tells rank 0, table what it is told once all have registered.
type registration struct {
	Address string `json:"address"` // where it listens, host:port
}

type table struct {
	World     string   `json:"world"`
	Addresses []string `json:"addresses"` // by rank; rank 0's is the rendezvous
}

// errRefused is inside an error that trying again won't mend.
var errRefused = errors.New("refused")

var errSecrets = fmt.Errorf("%w: the secrets of the nodes differ: give all the same", errRefused)

// greet is the dialer's half. An error with errRefused in it is final.
func greet(conn net.Conn, secret []byte, h hello) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	h.Version, h.Nonce, h.HasSecret = protocolVersion, peer.Nonce(), len(secret) > 0
	said, err := peer.WriteJSON(conn, h)
	if err != nil {
		return err
	}
	var w welcome
	answer, err := peer.ReadJSON(conn, maxHelloBytes, &w)
	if err != nil {
		return err
	}
	if w.Refusal != "" {
		return fmt.Errorf("%w: %.512q", errRefused, w.Refusal)
	}
	if w.HasSecret != h.HasSecret {
		return errSecrets
	}
	if err := peer.WriteFrame(conn, peer.Proof(secret, label+"dial", said, answer)); err != nil {
		return err
	}
	theirs, err := peer.ReadFrame(conn, peer.ProofBytes)
	if err != nil {
		return err
	}
	if !peer.Proven(theirs, secret, label+"listen", said, answer) {
		return errSecrets
	}
	return conn.SetDeadline(time.Time{})
}

// receive is the listener's half. accept says why a hello is refused, or nothing.
func receive(conn net.Conn, secret []byte, accept func(hello) error) (hello, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return hello{}, err
	}
	var h hello
	said, err := peer.ReadJSON(conn, maxHelloBytes, &h)
	if err != nil {
		return hello{}, err
	}
	w := welcome{Nonce: peer.Nonce(), HasSecret: len(secret) > 0}
	if h.Version != protocolVersion {
		err = fmt.Errorf("it speaks version %d of the protocol, this rank %d: run the same release on all nodes", h.Version, protocolVersion)
	} else if !peer.ValidNonce(h.Nonce) {
		err = fmt.Errorf("its nonce is not %d bytes in hex", peer.NonceBytes)
	} else if h.HasSecret != w.HasSecret {
		err = errSecrets
	} else {
		err = accept(h)
	}
	if err != nil {
		w.Refusal = err.Error()
		_, _ = peer.WriteJSON(conn, w) // it is refused either way
		return hello{}, err
	}
	answer, err := peer.WriteJSON(conn, w)
	if err != nil {
		return hello{}, err
	}
	theirs, err := peer.ReadFrame(conn, peer.ProofBytes)
	if err != nil {
		return hello{}, err
	}
	if !peer.Proven(theirs, secret, label+"dial", said, answer) {
		_ = peer.WriteFrame(conn, nil) // as above
		return hello{}, errSecrets
	}
	if err := peer.WriteFrame(conn, peer.Proof(secret, label+"listen", said, answer)); err != nil {
		return hello{}, err
	}
	return h, conn.SetDeadline(time.Time{})
}
