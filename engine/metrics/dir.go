package metrics

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-dev/sluice/internal/folder"
)

const dirPrefix = "sluice-metrics-"

// PrivateDir makes a fresh folder for the stores of one replica, readable by its user alone: inside base, which is made when
// it doesn't exist, or inside the system's temporary directory when base is empty. The caller removes it.
func PrivateDir(base string) (*folder.Folder, error) {
	if base != "" {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return nil, fmt.Errorf("make metrics directory: %w", err)
		}
	}
	f, err := folder.Make(base, dirPrefix)
	if err != nil {
		return nil, fmt.Errorf("make metrics directory: %w", err)
	}
	return f, nil
}

// RemoveLeftOver removes the folders of PrivateDir that nobody owns any more, in base and in the temporary directory: their
// replicas were killed. One in which a process of this namespace writes stays.
func RemoveLeftOver(base string) {
	for _, place := range []string{"", base} {
		folder.Sweep(place, dirPrefix, inUse)
	}
}

// inUse reports whether a process that lives has a store in the folder.
func inUse(dir string) bool {
	space, err := processSpace()
	if err != nil {
		return true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return true
	}
	for _, e := range entries {
		if !isStore(e) {
			continue
		}
		r, err := openReader(filepath.Join(dir, e.Name()), nil, func(fault) {})
		switch {
		case passing(err):
			return true // nobody knows
		case err != nil:
			continue // it is no store, or not a whole one
		}
		p := r.process
		if err := r.close(); err != nil || p.space == space && p.alive() {
			return true
		}
	}
	return false
}
