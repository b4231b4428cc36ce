package parallel

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

// The handshake of a connection, one frame each: 2 bytes of length, big-endian, and the payload.
//
//	dialer    hello    JSON: who calls whom, for what
//	listener  welcome  JSON: its nonce, or why it refuses
//	dialer    HMAC("dial", hello, welcome)
//	listener  HMAC("listen", hello, welcome), or nothing when the dialer's is wrong
//
// The labels keep a proof from being reflected, the nonces from being replayed, and lengths before each part keep two
// handshakes from having the same bytes. Without a secret the key is empty.
const protocolVersion = 1

const (
	handshakeTimeout = 5 * time.Second
	maxHelloBytes    = 1 << 10
	maxTableBytes    = 1<<16 - 1
	nonceBytes       = 16
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

func randomHex() string {
	var b [nonceBytes]byte
	rand.Read(b[:]) // never fails, it ends the process instead
	return hex.EncodeToString(b[:])
}

func proof(secret []byte, side string, said ...[]byte) []byte {
	mac := hmac.New(sha256.New, secret)
	var n [8]byte
	for _, part := range append([][]byte{[]byte("sluice ranks 1 " + side)}, said...) {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		mac.Write(n[:])
		mac.Write(part)
	}
	return mac.Sum(nil)
}

func writeFrame(w io.Writer, payload []byte) error {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(payload)))
	_, err := w.Write(append(b, payload...))
	return err
}

func readFrame(r io.Reader, most int) ([]byte, error) {
	var prefix [2]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(prefix[:]))
	if n > most {
		return nil, fmt.Errorf("frame of %d bytes: at most %d are allowed", n, most)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeJSON(w io.Writer, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return b, writeFrame(w, b)
}

// readJSON reads one message strictly and gives its bytes too.
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
	if d.More() {
		return nil, fmt.Errorf("message %.64q: more than one JSON value", b)
	}
	return b, nil
}

// greet is the dialer's half. An error with errRefused in it is final.
func greet(conn net.Conn, secret []byte, h hello) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	h.Version, h.Nonce, h.HasSecret = protocolVersion, randomHex(), len(secret) > 0
	said, err := writeJSON(conn, h)
	if err != nil {
		return err
	}
	var w welcome
	answer, err := readJSON(conn, maxHelloBytes, &w)
	if err != nil {
		return err
	}
	if w.Refusal != "" {
		return fmt.Errorf("%w: %.512q", errRefused, w.Refusal)
	}
	if w.HasSecret != h.HasSecret {
		return errSecrets
	}
	if err := writeFrame(conn, proof(secret, "dial", said, answer)); err != nil {
		return err
	}
	theirs, err := readFrame(conn, sha256.Size)
	if err != nil {
		return err
	}
	if !hmac.Equal(theirs, proof(secret, "listen", said, answer)) {
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
	said, err := readJSON(conn, maxHelloBytes, &h)
	if err != nil {
		return hello{}, err
	}
	w := welcome{Nonce: randomHex(), HasSecret: len(secret) > 0}
	if h.Version != protocolVersion {
		err = fmt.Errorf("it speaks version %d of the protocol, this rank %d: run the same release on all nodes", h.Version, protocolVersion)
	} else if n, e := hex.DecodeString(h.Nonce); e != nil || len(n) != nonceBytes {
		err = fmt.Errorf("its nonce is not %d bytes in hex", nonceBytes)
	} else if h.HasSecret != w.HasSecret {
		err = errSecrets
	} else {
		err = accept(h)
	}
	if err != nil {
		w.Refusal = err.Error()
		_, _ = writeJSON(conn, w) // it is refused either way
		return hello{}, err
	}
	answer, err := writeJSON(conn, w)
	if err != nil {
		return hello{}, err
	}
	theirs, err := readFrame(conn, sha256.Size)
	if err != nil {
		return hello{}, err
	}
	if !hmac.Equal(theirs, proof(secret, "dial", said, answer)) {
		_ = writeFrame(conn, nil) // as above
		return hello{}, errSecrets
	}
	if err := writeFrame(conn, proof(secret, "listen", said, answer)); err != nil {
		return hello{}, err
	}
	return h, conn.SetDeadline(time.Time{})
}
