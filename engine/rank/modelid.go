package rank

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	sampleBytes    = 64 << 10
	sampleInterval = 16 << 20
)

// modelID names the weights in dir: the same for the same files wherever they lie, different for others but for a
// contrived case. It hashes the configuration and, of each weight file, name, size and a sample every sampleInterval
// bytes, so that large models start fast too.
func modelID(dir string) (string, error) {
	entries, err := os.ReadDir(dir) // in order
	if err != nil {
		return "", fmt.Errorf("list weights: %w", err)
	}
	names := []string{"config.json"}
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".safetensors" {
			names = append(names, e.Name())
		}
	}
	h := sha256.New()
	for _, name := range names {
		if err := sampleFile(h, filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("name the model in %s: %w", dir, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

func sampleFile(h io.Writer, path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(h, "%q %d\n", filepath.Base(path), st.Size()); err != nil {
		return err
	}
	last := max(st.Size()-sampleBytes, 0)
	for at := int64(0); ; at = min(at+sampleInterval, last) {
		if _, err := io.Copy(h, io.NewSectionReader(f, at, sampleBytes)); err != nil {
			return err
		}
		if at == last {
			return nil
		}
	}
}
