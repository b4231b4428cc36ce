package tokenizer

import "unicode/utf8"

// Byte-level BPE writes each byte as one printable rune, so that a vocabulary is readable JSON: the 188 bytes that are
// printable in Latin-1 stand for themselves, the other 68 are U+0100 and following in ascending order.
var (
	runeOfByte [256]rune
	byteOfRune map[rune]byte
)

func init() {
	byteOfRune = make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if printable := b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae; !printable {
			r = next
			next++
		}
		runeOfByte[b] = r
		byteOfRune[r] = byte(b)
	}
}

// toBytes gives the bytes that a vocabulary entry stands for. ok is false when a rune stands for no byte.
func toBytes(entry string) (b []byte, ok bool) {
	b = make([]byte, 0, len(entry))
	for _, r := range entry {
		x, ok := byteOfRune[r]
		if !ok {
			return nil, false
		}
		b = append(b, x)
	}
	return b, true
}

// toEntry is the inverse of toBytes.
func toEntry(b []byte) string {
	out := make([]byte, 0, 2*len(b))
	for _, x := range b {
		out = utf8.AppendRune(out, runeOfByte[x])
	}
	return string(out)
}
