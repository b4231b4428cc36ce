package footprint

import (
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ownedMounts returns the mount points inside dir, the deepest first, so that they can be unmounted in order.
func ownedMounts(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return mountsInside(string(data), dir), nil
}

// mountsInside reads /proc/self/mountinfo. One path appears as often as something is mounted on it.
func mountsInside(mountinfo, dir string) []string {
	var found []string
	for _, line := range strings.Split(mountinfo, "\n") {
		// The fifth field is the mount point, with special characters as octal escapes.
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if point := unescape(fields[4]); strings.HasPrefix(point, dir+"/") {
			found = append(found, point)
		}
	}
	sort.SliceStable(found, func(i, j int) bool { return strings.Count(found[i], "/") > strings.Count(found[j], "/") })
	return found
}

// unescape replaces the kernel's octal escapes, such as \040 for a space.
func unescape(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if value, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(value))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// unmountAll unmounts everything inside dir, even if it is busy.
func unmountAll(dir string) error {
	mounts, err := ownedMounts(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, mount := range mounts {
		err := unix.Unmount(mount, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		// EINVAL: it is no mount point any more, since a mount above it took it along.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mount, err))
		}
	}
	return errors.Join(errs...)
}
