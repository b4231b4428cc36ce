package peer

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

const (
	// NonceBytes is the length of a nonce before it is written as hex.
	NonceBytes = 16
	// ProofBytes is the length of a proof.
	ProofBytes = sha256.Size
)

// Nonce gives 16 random bytes as hex.
func Nonce() string {
	var b [NonceBytes]byte
	_, _ = rand.Read(b[:]) // it ends the process rather than fail
	return hex.EncodeToString(b[:])
}

// ValidNonce reports whether a nonce that came from a peer is one.
func ValidNonce(nonce string) bool {
	b, err := hex.DecodeString(nonce)
	return err == nil && len(b) == NonceBytes
}

// Proof is what one side shows to prove that it knows the secret: an HMAC, [ProofBytes], over its label and what was said so
// far. The label, protocol and side, keeps a proof from being reflected or used in another protocol; nonces in what was said
// keep it from being replayed; the length before each part keeps two conversations from having the same bytes. Without a
// secret the key is empty.
func Proof(secret []byte, label string, said ...[]byte) []byte {
	mac := hmac.New(sha256.New, secret)
	var n [8]byte
	write := func(part []byte) {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		mac.Write(n[:])
		mac.Write(part)
	}
	write([]byte(label))
	for _, part := range said {
		write(part)
	}
	return mac.Sum(nil)
}

// Proven reports whether a proof is right, in time that does not depend on where it is wrong.
func Proven(proof, secret []byte, label string, said ...[]byte) bool {
	return hmac.Equal(proof, Proof(secret, label, said...))
}
