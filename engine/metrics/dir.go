package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const dirPrefix = "sluice-metrics-"

// PrivateDir makes a fresh directory for the stores of one replica, readable by its user alone: inside base, which is
// made when it doesn't exist, or inside the system's temporary directory when base is empty. The caller removes it. In the
// temporary directory it also removes those whose processes have all ended without doing so.
func PrivateDir(base string) (string, error) {
	if base != "" {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return "", fmt.Errorf("make metrics directory: %w", err)
		}
	} else {
		sweep(os.TempDir())
	}
	dir, err := os.MkdirTemp(base, dirPrefix)
	if err != nil {
		return "", fmt.Errorf("make metrics directory: %w", err)
	}
	return dir, nil
}

// sweep removes what is certain to be left over. It is a courtesy: what can't be read or removed stays.
func sweep(temp string) {
	entries, err := os.ReadDir(temp)
	if err != nil {
		return
	}
	space, err := processSpace()
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), dirPrefix) {
			if dir := filepath.Join(temp, e.Name()); leftOver(dir, space) {
				_ = os.RemoveAll(dir) // another user's, or somebody was faster
			}
		}
	}
}

// leftOver reports whether a directory holds nothing but stores of processes that have ended, of this namespace.
func leftOver(dir string, space uint64) bool {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return false
	}
	for _, e := range entries {
		if !isStore(e) {
			return false
		}
		r, err := openReader(filepath.Join(dir, e.Name()), func(fault) {})
		if err != nil {
			return false
		}
		p := r.process
		if err := r.close(); err != nil || p.space != space || p.alive() {
			return false
		}
	}
	return true
}
