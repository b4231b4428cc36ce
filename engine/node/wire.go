package node

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	protocolVersion  = 1
	nonceBytes       = 16
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

func newNonce() string {
	var b [nonceBytes]byte
	_, _ = rand.Read(b[:]) // it ends the process rather than fail
	return hex.EncodeToString(b[:])
}

// proof shows knowledge of the secret over what both said. The side keeps it from being reflected.
func proof(secret []byte, side string, said ...[]byte) []byte {
	mac := hmac.New(sha256.New, secret)
	var n [8]byte
	for _, part := range append([][]byte{[]byte("sluice nodes 1 " + side)}, said...) {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		mac.Write(n[:])
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// writeFrame writes 4 bytes of length, big-endian, and the payload.
func writeFrame(w io.Writer, payload []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...))
	return err
}

func readFrame(r io.Reader, most int) ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(prefix[:])
	if int64(n) > int64(most) {
		return nil, fmt.Errorf("frame of %d bytes: at most %d are allowed", n, most)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// writeJSON gives the bytes that it wrote.
func writeJSON(w io.Writer, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return b, writeFrame(w, b)
}

// readJSON reads one message and gives its bytes too.
func readJSON(r io.Reader, most int, v any) ([]byte, error) {
	b, err := readFrame(r, most)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return nil, fmt.Errorf("message %.64q: %w", b, err)
	}
	return b, nil
}

// greet is node k's half of the handshake. An error with errRefused in it is final.
func greet(conn net.Conn, secret []byte, h hello) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	h.Version, h.Nonce, h.HasSecret = protocolVersion, newNonce(), len(secret) > 0
	said, err := writeJSON(conn, h)
	if err != nil {
		return err
	}
	var c challenge
	answer, err := readJSON(conn, maxHelloBytes, &c)
	if err != nil {
		return err
	}
	if c.HasSecret != h.HasSecret {
		return errSecrets
	}
	if err := writeFrame(conn, proof(secret, "join", said, answer)); err != nil {
		return err
	}
	theirs, err := readFrame(conn, sha256.Size)
	if err != nil {
		return err
	}
	if !hmac.Equal(theirs, proof(secret, "lead", said, answer)) {
		return errSecrets
	}
	var v verdict
	if _, err := readJSON(conn, maxHelloBytes, &v); err != nil {
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
	said, err := readJSON(conn, maxHelloBytes, &h)
	if err != nil {
		return hello{}, err
	}
	answer, err := writeJSON(conn, challenge{Nonce: newNonce(), HasSecret: len(secret) > 0})
	if err != nil {
		return hello{}, err
	}
	theirs, err := readFrame(conn, sha256.Size)
	if err != nil {
		return hello{}, err
	}
	if !hmac.Equal(theirs, proof(secret, "join", said, answer)) {
		_ = writeFrame(conn, nil) // it is refused either way
		return hello{}, errSecrets
	}
	if err := writeFrame(conn, proof(secret, "lead", said, answer)); err != nil {
		return hello{}, err
	}
	refusal := judge(h)
	v := verdict{}
	if refusal != nil {
		v.Refusal = refusal.Error()
	}
	if _, err := writeJSON(conn, v); err != nil {
		return hello{}, err
	}
	if refusal != nil {
		return hello{}, refusal
	}
	return h, conn.SetDeadline(time.Time{})
}
