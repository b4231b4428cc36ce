package disagg

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// The handshake, in the order of the frames:
//
//	hello      version, decode's nonce, whether it has a secret
//	challenge  version, prefill's nonce and incarnation, whether it has a secret
//	join       HMAC("decode", hello, challenge, join), then room, prompt tokens, layout, decode's place and incarnation
//	proof      HMAC("prefill", hello, challenge, join)
//
// The two labels keep a proof from being reflected; the nonces keep it from being replayed; the lengths in front of
// each part keep two different handshakes from having the same bytes. Without a secret the HMAC's key is empty.
const protocolVersion = 3

type hello struct {
	Version   int    `json:"version"`
	Nonce     string `json:"nonce"` // 16 bytes, hex
	HasSecret bool   `json:"has_secret"`
}

type challenge struct {
	Version     int    `json:"version"`
	Nonce       string `json:"nonce"`
	Incarnation string `json:"incarnation"` // of the prefill rank, as registered
	HasSecret   bool   `json:"has_secret"`
}

type join struct {
	Room         int64  `json:"room"`
	PromptTokens int    `json:"prompt_tokens"`
	Layout       Layout `json:"layout"`
	TPSize       int    `json:"tp_size"` // of the decode engine
	TPRank       int    `json:"tp_rank"`
	PPSize       int    `json:"pp_size"`
	PPRank       int    `json:"pp_rank"`
	Incarnation  string `json:"incarnation"` // of the decode rank
}

// fits reports why a prefill rank can't send its KV to the decode rank that joins, if so.
func (j join) fits(prefill *shard) error {
	decode := world{tp: j.TPSize, pp: j.PPSize}
	if err := decode.check(prefill.layout.shape()); err != nil {
		return faultf(ReasonMismatch, "the decode engine: %v", err)
	}
	at := coordinate{tp: j.TPRank, pp: j.PPRank}
	if !decode.has(at) {
		return faultf(ReasonProtocol, "decode rank %v is not in its world of %d tensor-parallel ranks by %d stages", at, decode.tp, decode.pp)
	}
	return compareLayouts(prefill.layout, j.Layout, prefill.holds.heads.len(), decode.holds(prefill.layout.shape(), at).heads.len())
}

// label begins the label of every proof; the side follows.
const label = "sluice kv hand-over 1 "

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of strings and integers
	}
	return b
}

// parseMessage reads one JSON message of the handshake strictly.
func parseMessage(typ frameType, b []byte, v any) error {
	if err := peer.ParseJSON(b, v); err != nil {
		return &fault{reason: ReasonProtocol, err: fmt.Errorf("%v message: %w", typ, err)}
	}
	return nil
}

func checkVersion(side string, v int) error {
	if v != protocolVersion {
		return faultf(ReasonMismatch, "protocol version differs: the %s rank speaks %d, this rank %d; run the same release on both pools", side, v, protocolVersion)
	}
	return nil
}

func checkNonce(n string) error {
	if !peer.ValidNonce(n) {
		return faultf(ReasonProtocol, "nonce: want 16 bytes in hex")
	}
	return nil
}

// checkSecrets compares whether the sides have a secret at all, which gives a better message than a failed proof.
func checkSecrets(prefillHas, decodeHas bool) error {
	const remedy = "give both engines the same --disaggregation-secret-file or SLUICE_PD_SECRET"
	if prefillHas && !decodeHas {
		return faultf(ReasonAuth, "the prefill engine has a secret, the decode engine has none: %s", remedy)
	}
	if decodeHas && !prefillHas {
		return faultf(ReasonAuth, "the decode engine has a secret, the prefill engine has none: %s", remedy)
	}
	return nil
}

var errWrongSecret = fmt.Errorf("the secrets of the prefill and the decode engine differ: give both the same --disaggregation-secret-file or SLUICE_PD_SECRET")

// compareLayouts names the first field that differs, for ranks with so many KV heads of their own.
func compareLayouts(prefill, decode Layout, prefillHeads, decodeHeads int) error {
	diff := func(field string, p, d any) error {
		return faultf(ReasonMismatch, "%s differs: prefill has %v, decode has %v", field, p, d)
	}
	switch {
	case prefill.ModelID != decode.ModelID:
		return diff("model_id", fmt.Sprintf("%q", prefill.ModelID), fmt.Sprintf("%q", decode.ModelID))
	case prefill.DType != decode.DType:
		return diff("dtype", fmt.Sprintf("%q", prefill.DType), fmt.Sprintf("%q", decode.DType))
	case prefill.Layers != decode.Layers:
		return diff("layers", prefill.Layers, decode.Layers)
	case prefill.PageSize != decode.PageSize:
		return diff("page_size", prefill.PageSize, decode.PageSize)
	case prefill.shape().heads != decode.shape().heads:
		return diff("kv_heads", prefill.shape().heads, decode.shape().heads)
	case prefill.WindowLayers != decode.WindowLayers || prefill.WindowTokens != decode.WindowTokens:
		return diff("attention window", fmt.Sprintf("%d tokens in layers %.64q", prefill.WindowTokens, prefill.WindowLayers),
			fmt.Sprintf("%d tokens in layers %.64q", decode.WindowTokens, decode.WindowLayers))
	case prefill.PageBytesPerLayer*decodeHeads != decode.PageBytesPerLayer*prefillHeads:
		return diff("page_bytes_per_layer", prefill.PageBytesPerLayer, decode.PageBytesPerLayer)
	}
	return nil
}

// expect reads the next frame and refuses every other type; an error frame becomes the fault that it reports.
func (l *link) expect(typ frameType, deadline time.Time) ([]byte, error) {
	for {
		h, payload, err := l.next(deadline)
		switch {
		case err != nil:
			return nil, err
		case h.typ == typ:
			return payload, nil
		case h.typ == frameError:
			return nil, decodeError(payload)
		case h.typ == framePing:
			continue
		}
		return nil, faultf(ReasonProtocol, "a %v frame where %v is due", h.typ, typ)
	}
}

// greetDecode is the prefill rank's half. It returns what the decode rank wants, authenticated; the layout is not
// compared yet. Anything wrong was not said by a holder of the secret, or is a version mismatch. proved is called before the
// decode rank hears that it is accepted: until then it may be cut off and comes again.
func (l *link) greetDecode(secret []byte, incarnation string, deadline time.Time, proved func()) (join, error) {
	raw, err := l.expect(frameHello, deadline)
	if err != nil {
		return join{}, err
	}
	helloRaw := bytes.Clone(raw)
	var h hello
	if err := parseMessage(frameHello, helloRaw, &h); err != nil {
		return join{}, err
	}
	if err := checkVersion("decode", h.Version); err != nil {
		return join{}, err
	}
	if err := checkNonce(h.Nonce); err != nil {
		return join{}, err
	}
	challengeRaw := mustJSON(challenge{Version: protocolVersion, Nonce: peer.Nonce(), Incarnation: incarnation, HasSecret: len(secret) > 0})
	if err := checkSecrets(len(secret) > 0, h.HasSecret); err != nil {
		return join{}, err
	}
	if err := l.write(control(frameChallenge, challengeRaw)); err != nil {
		return join{}, err
	}
	raw, err = l.expect(frameJoin, deadline)
	if err != nil {
		return join{}, err
	}
	if len(raw) < proofBytes {
		return join{}, faultf(ReasonProtocol, "join frame has %d bytes, want at least %d", len(raw), proofBytes)
	}
	joinRaw := bytes.Clone(raw[proofBytes:])
	if !peer.Proven(raw[:proofBytes], secret, label+"decode", helloRaw, challengeRaw, joinRaw) {
		return join{}, &fault{reason: ReasonAuth, err: errWrongSecret}
	}
	var j join
	if err := parseMessage(frameJoin, joinRaw, &j); err != nil {
		return join{}, err
	}
	proved()
	return j, l.write(control(frameProof, peer.Proof(secret, label+"prefill", helloRaw, challengeRaw, joinRaw)))
}

// greetPrefill is the decode rank's half. incarnation is what the bootstrap server said.
func (l *link) greetPrefill(secret []byte, incarnation string, j join, deadline time.Time) error {
	helloRaw := mustJSON(hello{Version: protocolVersion, Nonce: peer.Nonce(), HasSecret: len(secret) > 0})
	if err := l.write(control(frameHello, helloRaw)); err != nil {
		return err
	}
	raw, err := l.expect(frameChallenge, deadline)
	if err != nil {
		return err
	}
	challengeRaw := bytes.Clone(raw)
	var c challenge
	if err := parseMessage(frameChallenge, challengeRaw, &c); err != nil {
		return err
	}
	if err := checkVersion("prefill", c.Version); err != nil {
		return err
	}
	if err := checkNonce(c.Nonce); err != nil {
		return err
	}
	if err := checkSecrets(c.HasSecret, len(secret) > 0); err != nil {
		return err
	}
	if c.Incarnation != incarnation {
		return faultf(ReasonStale, "the prefill rank is incarnation %.32q, the bootstrap server knows %.32q: it was restarted", c.Incarnation, incarnation)
	}
	joinRaw := mustJSON(j)
	if err := l.write(control(frameJoin, append(peer.Proof(secret, label+"decode", helloRaw, challengeRaw, joinRaw), joinRaw...))); err != nil {
		return err
	}
	raw, err = l.expect(frameProof, deadline)
	if err != nil {
		return err
	}
	if !peer.Proven(raw, secret, label+"prefill", helloRaw, challengeRaw, joinRaw) {
		return &fault{reason: ReasonAuth, err: errWrongSecret}
	}
	return nil
}
