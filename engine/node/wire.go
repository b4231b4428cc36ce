package node

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

const (
	protocolVersion  = 1
	label            = "sluice nodes 1 " // of proofs; the side follows
	handshakeTimeout = 5 * time.Second
	maxHelloBytes    = 4 << 10
	maxMessageBytes  = 1 << 20
)

// hello is what a node says first, challenge what node 0 answers, verdict what it says in the end. Between the last two
// each side gives its proof.
type hello struct {
	Version   int    `json:"version"`
	Nonce     string `json:"nonce"`
	HasSecret bool   `json:"has_secret"`
	Node      int    `json:"node"`
	Nodes     int    `json:"nodes"`
	Shape     string `json:"shape"`
}

type challenge struct {
	Nonce     string `json:"nonce"`
	HasSecret bool   `json:"has_secret"`
}

type verdict struct {
	Refusal string `json:"refusal,omitempty"`
}

// message is everything that follows the handshake.
type message struct {
	Kind   kind   `json:"kind"`
	Orders []byte `json:"orders,omitempty"` // of kindOrders
	Error  string `json:"error,omitempty"`  // of kindFailed; of kindEnd when the end is not in order
}

type kind string

const (
	kindOrders kind = "orders" // node 0: what to start
	kindReady  kind = "ready"  // node k: it has started
	kindFailed kind = "failed" // node k: why it ends
	kindEnd    kind = "end"    // node 0: the replica ends
	kindPing   kind = "ping"   // both: alive
)

// errRefused is inside an error that trying again won't mend.
var errRefused = errors.New("refused")

var errSecrets = fmt.Errorf("%w: the secrets of the nodes differ: give all the same with --dist-secret-file or SLUICE_DIST_SECRET", errRefused)

// greet is node k's half of the handshake. An error with errRefused in it is final.
func greet(conn net.Conn, secret []byte, h hello) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	h.Version, h.Nonce, h.HasSecret = protocolVersion, peer.Nonce(), len(secret) > 0
	said, err := peer.WriteJSON(conn, h)
	if err != nil {
		return err
	}
	var c challenge
	answer, err := peer.ReadJSON(conn, maxHelloBytes, &c)
	if err != nil {
		return err
	}
	if c.HasSecret != h.HasSecret {
		return errSecrets
	}
	if err := peer.WriteFrame(conn, peer.Proof(secret, label+"join", said, answer)); err != nil {
		return err
	}
	theirs, err := peer.ReadFrame(conn, peer.ProofBytes)
	if err != nil {
		return err
	}
	if !peer.Proven(theirs, secret, label+"lead", said, answer) {
		return errSecrets
	}
	var v verdict
	if _, err := peer.ReadJSON(conn, maxHelloBytes, &v); err != nil {
		return err
	}
	if v.Refusal != "" {
		return fmt.Errorf("%w by node 0: %s", errRefused, v.Refusal)
	}
	return conn.SetDeadline(time.Time{})
}

// receive is node 0's half. judge says why a node that knows the secret is refused; it is told so.
func receive(conn net.Conn, secret []byte, judge func(hello) error) (hello, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return hello{}, err
	}
	var h hello
	said, err := peer.ReadJSON(conn, maxHelloBytes, &h)
	if err != nil {
		return hello{}, err
	}
	answer, err := peer.WriteJSON(conn, challenge{Nonce: peer.Nonce(), HasSecret: len(secret) > 0})
	if err != nil {
		return hello{}, err
	}
	theirs, err := peer.ReadFrame(conn, peer.ProofBytes)
	if err != nil {
		return hello{}, err
	}
	if !peer.Proven(theirs, secret, label+"join", said, answer) {
		_ = peer.WriteFrame(conn, nil) // it is refused either way
		return hello{}, errSecrets
	}
	if err := peer.WriteFrame(conn, peer.Proof(secret, label+"lead", said, answer)); err != nil {
		return hello{}, err
	}
	refusal := judge(h)
	v := verdict{}
	if refusal != nil {
		v.Refusal = refusal.Error()
	}
	if _, err := peer.WriteJSON(conn, v); err != nil {
		return hello{}, err
	}
	if refusal != nil {
		return hello{}, refusal
	}
	return h, conn.SetDeadline(time.Time{})
}
