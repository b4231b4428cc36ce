package buildcache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// rootModule is the module whose go.mod marks the repository root.
const rootModule = "github.com/sluice-dev/sluice"

// FindRoot returns the repository root: the nearest folder at or above dir whose go.mod declares Sluice's
// module. Tests run in their package's folder and programs anywhere inside a checkout, so both find it.
func FindRoot(dir string) (string, error) {
	start, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the repository root from %s: %w", dir, err)
	}
	for at := start; ; at = filepath.Dir(at) {
		data, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && modfile.ModulePath(data) == rootModule {
			return at, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find the repository root from %s: %w", start, err)
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find the repository root: no go.mod of %s at or above %s; run this inside a checkout", rootModule, start)
		}
	}
}

// requiredVersion returns the version that a go.mod file requires of a module, after replacement.
func requiredVersion(gomod []byte, module string) (string, error) {
	file, err := modfile.Parse("go.mod", gomod, nil)
	if err != nil {
		return "", fmt.Errorf("parse go.mod: %w", err)
	}
	for _, replace := range file.Replace {
		if replace.Old.Path == module && replace.New.Version != "" {
			return replace.New.Version, nil
		}
	}
	for _, require := range file.Require {
		if require.Mod.Path == module {
			return require.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("go.mod requires no %s", module)
}

// majorMinor splits "v1.36.3" into "1" and "36".
func majorMinor(version string) (major, minor string) {
	major, minor, _ = strings.Cut(strings.TrimPrefix(semver.MajorMinor(version), "v"), ".")
	return major, minor
}
